"""The first formula for a cohort: the local work between two exchanges, whatever submodel each client has.

A method that gives clients submodels says in ``Program.submodels`` which client has which in a round. The rest is here:
a client's submodel is extracted from the common model to be trained, measured, returned and saved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ..core.annotations import Example
from ..core.errors import UserError
from ..core.tensors import (
    Integers,
    Tensors,
    Tree,
    concatenate,
    count,
    entries,
    floating,
    leaves,
    replicate,
    rows,
    split,
    to_device,
)
from ..data.batches import Samples
from ..engines import Serial
from ..local.optimizers import Optimizer, RoundRates, Slots, part_of, put_together
from ..local.paces import pace_of
from ..local.slices import Sliced
from ..local.steps import REFERENCE, Aux, Carry, Descent, Frozen, Phase
from ..models.model import Model
from .base import Algorithm, Assigned, ModelGroup, Problem, Program, Round, Submodel, Trained
from .capacities import Share
from .options import Training

T = TypeVar("T")
NUMBERS = 2**28  # entries of cut models that are held at a time: 1 GiB in single precision
Submodels = Callable[[Round], Sequence[Assigned]]
NOTHING: dict[str, Tree] = {}
Message = Callable[[Tensors], Tensors]
"""A model, or stacked models -> what is sent of it."""
Names = Annotated[frozenset[str], Example("p.names")]
"""Those of tensors."""
AuxOf = Mapping[str, Callable[[Any, Round], Tree]]
"""By the names that corrections look up: functions of the state and the round, stacked over the cohort."""


@dataclass(frozen=True)
class LocalUpdate:
    """The local work of a method: its phases, one after another, bound to a problem.

    offers: the names that ``run`` will have values of, for corrections to look up. "reference" is always there: the
    model that a client begins the round with, unless ``run`` has another.
    """

    problem: Problem
    phases: Sequence[Phase]
    training: Training
    offers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for phase in self.phases:
            for name in sorted(phase.needs - self.offers - {REFERENCE}):
                names = ", ".join(sorted(self.offers | {REFERENCE}))
                raise UserError(
                    f"a correction looks up {name!r}, but this method gives {names} only: give it too, as in "
                    f"aux={{{name!r}: ...}}, or leave the correction out"
                )

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        """The optimizer of each phase."""
        return [self.training.optimizer_of(phase) for phase in self.phases]

    @cached_property
    def round_rates(self) -> RoundRates:
        """How rates change from round to round."""
        return self.training.round_rates

    def run(self, r: Round, models: Tensors, memory: Slots | None = None, aux: Aux = NOTHING) -> Trained:
        """Run all phases from the stacked ``models``; the optimizers' state is private, and nothing is sent yet."""
        looked_up = {REFERENCE: models, **aux}
        loss, steps = torch.zeros(len(r.cohort), device=r.samples.y.device), np.zeros(len(r.cohort))
        memory, passes = memory or {}, 0
        t, rounds = self.training, self.problem.rounds
        pace = None if t.lr_schedule is None else pace_of(t.lr_schedule, r.index)
        grad = r.engine.gradient(self.problem.model.objective)
        if t.micro_batch is not None:
            grad = Sliced(grad, t.micro_batch)
        for phase, optimizer in zip(self.phases, self.optimizers, strict=True):
            if not phase.trains:  # a phase that trains nothing is none
                continue
            batches = r.batches(phase.stream, phase.amount, None if phase.full_batch else t.batch_size, t.replacement)
            first = (phase.lr,) if phase.group is None else (phase.lr, phase.group.lr)
            rates = tuple(self.round_rates.rate(lr, r.index, rounds) for lr in first)
            params, rest = split(models, phase.trains)
            running, rest = split(
                rest, {*self.problem.model.running, *(name for c in phase.corrections for name in c.renews)}
            )
            state = part_of(memory, phase.trains) if memory else {}
            step = Descent(phase, optimizer, grad, rates, t.clip, bool(state), pace)
            kind = torch.promote_types(next(iter(params.values())).dtype, torch.float32)
            start = Carry(params, running, state, torch.zeros_like(loss, dtype=kind))
            frozen = Frozen(rest, {name: looked_up[name] for name in phase.needs})
            end: Carry = r.scan(step, start, frozen, batches)
            models, memory = models | end.x | end.running, put_together(memory, end.opt) if end.opt else memory
            loss, steps = loss + end.loss, steps + batches.steps
            passes += reduce(lambda once, c: c.passes(once, batches), phase.corrections, batches.seen)
        made = torch.from_numpy(steps).to(loss, non_blocking=True)
        return Trained(models, {}, memory, loss / made, made, ((self.problem.model, passes),))

    def train(self, r: Round, models: Tensors, memory: Slots, message: Message, aux: Aux = NOTHING) -> Trained:
        """Run all phases and send the ``message`` of the models; clients with submodels of their own train those.

        Those with equal shapes train side by side, one submodel after another. Nothing between two of them waits for
        the device, or it would have nothing to do while the next one is prepared.
        """
        if self.problem.submodels is None:
            done = self.run(r, models, memory, aux)
            return done._replace(sent=message(done.models))
        assigned = self.problem.submodels(r)
        parts = [self._train_submodel(a, r, common, aux) for a, common in prepared(assigned, models)]
        order = torch.from_numpy(np.concatenate([a.places for a in assigned]).argsort())
        stacked = concatenate([(part.models, part.mass, part.loss, part.steps) for part in parts])
        models, mass, loss, steps = rows(stacked, to_device(order, r.members.device))
        sent = message(models)
        passes = tuple(p for part in parts for p in part.passes)
        groups = tuple(group for part in parts for group in part.groups)
        return Trained(models, sent, {}, loss, steps, passes, {k: mass[k] for k in sent} if mass else None, groups)

    def _train_submodel(self, a: Assigned, r: Round, models: Tensors, aux: Aux) -> Trained:
        """Train the members with one submodel; the result is in the common form."""
        device, submodel = r.members.device, a.submodel
        mine, index = to_device((torch.from_numpy(a.places), a.index), device)
        problem = replace(self.problem, model=submodel.model, submodels=None)
        everything = self.problem.parameters
        phases = [replace(p, trains=problem.parameters) if p.trains == everything else p for p in self.phases]
        work, members = replace(self, problem=problem, phases=phases), replace(r, cohort=r.cohort[a.places])
        done = work.run(members, extracted(submodel, models, mine, a.index), None, rows(dict(aux), mine))
        one = equal_rows(a.index)
        values, mass = vmap(submodel.embed, (0, None if one else 0))(done.models, rows(index, 0) if one else index)
        group = ModelGroup(a.places, submodel.model, done.models, submodel.private)
        return done._replace(models=values, mass=mass, groups=(group,))


def look_up(aux: AuxOf, state: Any, r: Round) -> dict[str, Tree]:
    """Return the values that corrections look up by name in round ``r``."""
    return {name: value(state, r) for name, value in aux.items()}


def message_of(shared: frozenset[str]) -> Message:
    """Return the function that takes the sent part of a model; integer buffers do not travel."""
    return lambda model: floating(split(model, shared)[0])


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


def prepared(assigned: Sequence[Assigned], models: Tensors) -> Iterator[tuple[Assigned, Tensors]]:
    """Yield who has which submodel, and the stacked tensors that it is extracted from."""
    done: dict[Callable[[Tensors], Tensors], Tensors] = {}
    for a in assigned:
        prepare = a.submodel.prepare
        if prepare is not None and prepare not in done:
            once = one_for_all(models)
            done[prepare] = replicate(prepare(rows(models, 0)), count(models)) if once else vmap(prepare)(models)
        yield a, models if prepare is None else done[prepare]


def extracted(submodel: Submodel, models: Tensors, mine: Tensor, index: Tree) -> Tensors:
    """Return the submodels of some members, stacked; extracted once where all have the same model and index."""
    there = to_device(index, mine.device)
    if alike(models, index):
        once: Tensors = replicate(submodel.extract(rows(models, 0), rows(there, 0)), len(mine))
        return once
    if one_for_all(models):  # one model is not copied for every member before it is cut
        cuts: Tensors = vmap(submodel.extract, in_dims=(None, 0))(rows(models, 0), there)
        return cuts
    each: Tensors = vmap(submodel.extract)(rows(models, mine), there)
    return each


def one_for_all(models: Tensors) -> bool:
    """Tell whether stacked tensors are those of one model, expanded over all members."""
    return all(v.stride(0) == 0 for v in models.values())


def alike(models: Tensors, index: Tree) -> bool:
    """Tell whether all members see one model in the same way."""
    return one_for_all(models) and equal_rows(index)


def equal_rows(index: Tree) -> bool:
    """Tell whether all rows of what is stacked are equal; ask before it is on a device, or that will be waited for."""
    return all(bool((v == v[:1]).all()) for v in leaves(index))


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
    for a, common in prepared(submodels(r), models):
        parts = [slice(None)] if alike(common, a.index) else chunks(a.places, a.submodel.model)
        for some in parts:
            mine = to_device(torch.from_numpy(a.places[some]), r.members.device)
            own = extracted(a.submodel, common, mine, rows(a.index, some))
            yield ModelGroup(a.places[some], a.submodel.model, own, a.submodel.private)


def submodel_of_each(model: Model, submodels: Submodels | None, r: Round) -> list[Model]:
    """Return the form that every member has in round ``r``."""
    forms = [model] * len(r.cohort)
    for a in () if submodels is None else submodels(r):
        for place in a.places:
            forms[place] = a.submodel.model
    return forms


def final_models(
    algorithm: Algorithm, model: Model, clients: int, rounds: int, seed: int, t: int | None = None
) -> list[Model]:
    """Return the form that every client has after the last round, or after round ``t``, without its data.

    ``model``: as the method adapted it.
    """
    program = algorithm.bind(Problem(model, clients, rounds, seed))
    everybody, nothing = np.arange(clients), torch.empty(0, dtype=torch.int64)
    samples = Samples(nothing, nothing, (nothing,) * clients)
    then = Round(rounds - 1 if t is None else t, everybody, (), samples, Serial(), seed, everybody, everybody)
    return submodel_of_each(model, program.submodels, then)


def nobody_trains(program: Program[Any], state: Any, r: Round) -> Trained:
    """Train one client with no samples, to get results of the right shapes for no clients."""
    empty = replace(r.samples, owned=tuple(own[:0] for own in r.samples.owned))
    one = program.train(state, replace(r, cohort=r.local_clients[:1], samples=empty))
    models, sent, private = rows((one.models, one.sent, one.private), slice(0, 0))
    return Trained(models, sent, private, one.loss[:0], one.steps[:0], (), one.mass and rows(one.mass, slice(0, 0)))
