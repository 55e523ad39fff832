"""Views by name: clients that hold some of the server's tensors, and who of a cohort holds which."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from ..batches import Integers
from ..problem import Model
from ..tensors import Tensors, Tree
from .base import Assigned, Round, View


def assigned(groups: Sequence[tuple[Integers, View]], r: Round) -> list[Assigned]:
    """Who of the cohort has which view, where a view leaves nothing to choose."""
    here = [(np.flatnonzero(np.isin(r.cohort, clients)), view) for clients, view in groups]
    return [Assigned(places, view, {}) for places, view in here if len(places)]


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
