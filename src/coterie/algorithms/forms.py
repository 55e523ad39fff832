"""Views by name: clients that hold some of the server's tensors, and who of a cohort holds which."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from ..batches import Integers
from ..problem import Model
from ..tensors import Tensors, Tree
from .base import Assigned, Round, View
from .capacities import Share

T = TypeVar("T")


def assigned(groups: Sequence[tuple[Share, View]], r: Round) -> list[Assigned]:
    """Who of the cohort has which view, where a view leaves nothing to choose."""
    return [Assigned(places, view, {}) for places, view in present(groups, r)]


def present(groups: Sequence[tuple[Share, T]], r: Round) -> list[tuple[Integers, T]]:
    """The places of a group's clients in the cohort, of those who have that capacity in this round."""
    here = [(np.flatnonzero(np.isin(r.cohort, s.clients)), form) for s, form in groups if s.lasts(r.index)]
    return [(places, form) for places, form in here if len(places)]


def named_view(model: Model, common: Mapping[str, torch.Tensor], place: Callable[[str], str] = str) -> View:
    """A model that holds some of the common tensors, under names of its own that ``place`` translates."""
    places = {place(k): k for k in model.start}

    def take(x: Tensors, where: Tree) -> Tensors:
        return {own: x[there] for there, own in places.items()}

    def put(x: Tensors, where: Tree) -> tuple[Tensors, Tensors]:
        absent = {k: torch.zeros_like(v) for k, v in common.items() if k not in places}
        held = {there: x[own] for there, own in places.items()}
        mass = {k: torch.ones_like(v) for k, v in held.items()}
        return held | absent, mass | absent

    return View(model, take, put)
