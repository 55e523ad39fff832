"""Forms of the model: which client has which, and what each client would deploy.

A method that gives clients forms of their own says in ``Program.submodels`` which client has which in a round. The
rest is here: a client trains the common form seen through its submodel, and that is also measured, returned and saved.
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
    """Assign submodels that leave nothing to choose to the members of a cohort."""
    return [Assigned(places, submodel, {}) for places, submodel in present(groups, r)]


def present(groups: Sequence[tuple[Share, T]], r: Round) -> list[tuple[Integers, T]]:
    """Return the places in the cohort of every group's clients, of the groups that exist in this round."""
    found = [(np.flatnonzero(np.isin(r.cohort, s.clients)), form) for s, form in groups if s.lasts(r.index)]
    return [(places, form) for places, form in found if len(places)]


def named_submodel(model: Model, common: Mapping[str, torch.Tensor], place: Callable[[str], str] = str) -> Submodel:
    """Return the submodel that holds some of the common tensors; ``place`` maps its names to the common ones."""
    places = {place(k): k for k in model.start}

    def extract(x: Tensors, index: Tree) -> Tensors:
        return {own: x[there] for there, own in places.items()}

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        absent = {k: torch.zeros_like(v) for k, v in common.items() if k not in places}
        values = {there: x[own] for there, own in places.items()}
        mass = {k: torch.ones_like(v) for k, v in values.items()}
        return values | absent, mass | absent

    return Submodel(model, extract, embed)


def extracted(submodel: Submodel, models: Tensors, mine: Tensor, index: Tree) -> Tensors:
    """Return the submodels of some members, stacked; extracted once where all have the same model and index."""
    if alike(models, index):
        once: Tensors = replicate(submodel.extract(rows(models, 0), rows(index, 0)), len(mine))
        return once
    if one_for_all(models):  # one model is not copied for every member before it is cut
        cuts: Tensors = vmap(submodel.extract, in_dims=(None, 0))(rows(models, 0), index)
        return cuts
    each: Tensors = vmap(submodel.extract)(rows(models, mine), index)
    return each


def one_for_all(models: Tensors) -> bool:
    """Tell whether stacked tensors are those of one model, expanded over all members."""
    return all(v.stride(0) == 0 for v in models.values())


def alike(models: Tensors, index: Tree) -> bool:
    """Tell whether all members see one model in the same way."""
    return one_for_all(models) and all(bool((v == v[:1]).all()) for v in leaves(index))


def chunks(places: Integers, model: Model) -> Iterator[slice]:
    """Yield the members some at a time, as many as there are models of this form that fit into memory together."""
    size = max(1, NUMBERS // entries(model.start.values()))
    for start in range(0, len(places), size):
        yield slice(start, start + size)


def model_groups(model: Model, submodels: Submodels | None, models: Tensors, r: Round) -> Iterator[ModelGroup]:
    """Yield what the members would deploy: the stacked ``models``, each in the form its owner has in round ``r``.

    Where members have different cuts, some are made at a time: all of them together may not fit into memory.
    """
    if submodels is None:
        yield ModelGroup(np.arange(len(r.cohort)), model, models)
        return
    for a in submodels(r):
        parts = [slice(None)] if alike(models, a.index) else chunks(a.places, a.submodel.model)
        for some in parts:
            mine = torch.from_numpy(a.places[some]).to(r.members.device)
            own = extracted(a.submodel, models, mine, rows(a.index, some))
            yield ModelGroup(a.places[some], a.submodel.model, own, a.submodel.private)


def held(model: Model, submodels: Submodels | None, r: Round) -> list[Model]:
    """Return the form that every member has in round ``r``."""
    forms = [model] * len(r.cohort)
    for a in () if submodels is None else submodels(r):
        for place in a.places:
            forms[place] = a.submodel.model
    return forms


def final_models(algorithm: Algorithm, model: Model, clients: int, rounds: int, seed: int) -> list[Model]:
    """Return the form that every client has after the last round, without its data.

    ``model``: as the method adapted it.
    """
    program = algorithm.bind(Problem(model, clients, rounds, seed))
    everybody, nothing = np.arange(clients), torch.empty(0, dtype=torch.int64)
    samples = Samples(nothing, nothing, (nothing,) * clients)
    last = Round(max(0, rounds - 1), everybody, (), samples, Serial(), seed, everybody, everybody)
    return held(model, program.submodels, last)
