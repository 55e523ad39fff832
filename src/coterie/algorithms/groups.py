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
from .base import Algorithm, Assigned, ModelGroup, Problem, Round, Submodel
from .capacities import Share

T = TypeVar("T")
NUMBERS = 2**28  # entries of cut models that are held at a time: 1 GiB in single precision
Submodels = Callable[[Round], Sequence[Assigned]]


def assigned(groups: Sequence[tuple[Share, Submodel]], r: Round) -> list[Assigned]:
    """Who of the cohort has which view, where a view leaves nothing to choose."""
    return [Assigned(places, submodel, {}) for places, submodel in present(groups, r)]


def present(groups: Sequence[tuple[Share, T]], r: Round) -> list[tuple[Integers, T]]:
    """The places of a group's clients in the cohort, of those who have that capacity in this round."""
    here = [(np.flatnonzero(np.isin(r.cohort, s.clients)), form) for s, form in groups if s.lasts(r.index)]
    return [(places, form) for places, form in here if len(places)]


def named_submodel(model: Model, common: Mapping[str, torch.Tensor], place: Callable[[str], str] = str) -> Submodel:
    """A model that holds some of the common tensors, under names of its own that ``place`` translates."""
    places = {place(k): k for k in model.start}

    def extract(x: Tensors, index: Tree) -> Tensors:
        return {own: x[there] for there, own in places.items()}

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        absent = {k: torch.zeros_like(v) for k, v in common.items() if k not in places}
        held = {there: x[own] for there, own in places.items()}
        mass = {k: torch.ones_like(v) for k, v in held.items()}
        return held | absent, mass | absent

    return Submodel(model, extract, embed)


def extracted(submodel: Submodel, models: Tensors, mine: Tensor, index: Tree) -> Tensors:
    """What some members train, stacked; taken once where all have the same model and cut."""
    if alike(models, index):
        once: Tensors = replicate(submodel.extract(rows(models, 0), rows(index, 0)), len(mine))
        return once
    if one_for_all(models):  # which is not copied for everybody before it is cut
        cuts: Tensors = vmap(submodel.extract, in_dims=(None, 0))(rows(models, 0), index)
        return cuts
    each: Tensors = vmap(submodel.extract)(rows(models, mine), index)
    return each


def one_for_all(models: Tensors) -> bool:
    """Whether stacked tensors are those of one model, shown to everybody."""
    return all(v.stride(0) == 0 for v in models.values())


def alike(models: Tensors, index: Tree) -> bool:
    """Whether all members see one model in the same way."""
    return one_for_all(models) and all(bool((v == v[:1]).all()) for v in leaves(index))


def model_groups(model: Model, submodels: Submodels | None, models: Tensors, r: Round) -> Iterator[ModelGroup]:
    """What the members would deploy: the stacked ``models``, each in the form its owner has in round ``r``.

    Where members hold cuts of their own, some are made at a time: all of them together may not fit into memory.
    """
    if submodels is None:
        yield ModelGroup(np.arange(len(r.cohort)), model, models)
        return
    for a in submodels(r):
        size = len(a.places) if alike(models, a.index) else max(1, NUMBERS // entries(a.submodel.model.start.values()))
        for start in range(0, len(a.places), size):
            some = slice(start, start + size)
            mine = torch.from_numpy(a.places[some]).to(r.members.device)
            own = extracted(a.submodel, models, mine, rows(a.index, some))
            yield ModelGroup(a.places[some], a.submodel.model, own, a.submodel.private)


def held(model: Model, submodels: Submodels | None, r: Round) -> list[Model]:
    """The form that every member has in round ``r``."""
    found = [model] * len(r.cohort)
    for a in () if submodels is None else submodels(r):
        for place in a.places:
            found[place] = a.submodel.model
    return found


def final_models(algorithm: Algorithm, model: Model, clients: int, rounds: int, seed: int) -> list[Model]:
    """The form that every client has after the last round, without its data; ``model``: as the method adapted it."""
    program = algorithm.bind(Problem(model, clients, rounds, seed))
    everybody, nothing = np.arange(clients), torch.empty(0, dtype=torch.int64)
    samples = Samples(nothing, nothing, (nothing,) * clients)
    last = Round(max(0, rounds - 1), everybody, (), samples, Serial(), seed, everybody, everybody)
    return held(model, program.submodels, last)
