"""Forms of the model: who holds which, what each would deploy, and views by name.

A method that gives clients forms of their own says in ``Program.views`` who has which in a round. Everything else is
here: what is trained is the common form seen through the view, and so is what is measured, returned and saved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ..core.tensors import Tensors, Tree, entries, leaves, replicate, rows
from ..data.batches import Integers, Samples
from ..engines import Serial
from ..models.model import Model
from .base import Algorithm, Assigned, Form, Problem, Round, View
from .capacities import Share

T = TypeVar("T")
NUMBERS = 2**28  # entries of cut models that are held at a time: 1 GiB in single precision
Views = Callable[[Round], Sequence[Assigned]]


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


def taken(view: View, models: Tensors, mine: Tensor, where: Tree) -> Tensors:
    """What some members train, stacked; taken once where all have the same model and cut."""
    if alike(models, where):
        once: Tensors = replicate(view.take(rows(models, 0), rows(where, 0)), len(mine))
        return once
    if one_for_all(models):  # which is not copied for everybody before it is cut
        cuts: Tensors = vmap(view.take, in_dims=(None, 0))(rows(models, 0), where)
        return cuts
    each: Tensors = vmap(view.take)(rows(models, mine), where)
    return each


def one_for_all(models: Tensors) -> bool:
    """Whether stacked tensors are those of one model, shown to everybody."""
    return all(v.stride(0) == 0 for v in models.values())


def alike(models: Tensors, where: Tree) -> bool:
    """Whether all members see one model in the same way."""
    return one_for_all(models) and all(bool((v == v[:1]).all()) for v in leaves(where))


def formed(model: Model, views: Views | None, models: Tensors, r: Round) -> Iterator[Form]:
    """What the members would deploy: the stacked ``models``, each in the form its owner has in round ``r``.

    Where members hold cuts of their own, some are made at a time: all of them together may not fit into memory.
    """
    if views is None:
        yield Form(np.arange(len(r.cohort)), model, models)
        return
    for a in views(r):
        size = len(a.places) if alike(models, a.where) else max(1, NUMBERS // entries(a.view.model.start.values()))
        for start in range(0, len(a.places), size):
            some = slice(start, start + size)
            mine = torch.from_numpy(a.places[some]).to(r.members.device)
            own = taken(a.view, models, mine, rows(a.where, some))
            yield Form(a.places[some], a.view.model, own, a.view.kept)


def held(model: Model, views: Views | None, r: Round) -> list[Model]:
    """The form that every member has in round ``r``."""
    found = [model] * len(r.cohort)
    for a in () if views is None else views(r):
        for place in a.places:
            found[place] = a.view.model
    return found


def held_at_the_end(algorithm: Algorithm, model: Model, clients: int, rounds: int, seed: int) -> list[Model]:
    """The form that every client has after the last round, without its data; ``model``: as the method adapted it."""
    program = algorithm.bind(Problem(model, clients, rounds, seed))
    everybody, nothing = np.arange(clients), torch.empty(0, dtype=torch.int64)
    samples = Samples(nothing, nothing, (nothing,) * clients)
    last = Round(max(0, rounds - 1), everybody, (), samples, Serial(), seed, everybody, everybody)
    return held(model, program.views, last)
