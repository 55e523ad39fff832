"""The first formula for a cohort: what clients do between two exchanges, whatever form of the model each has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.func import vmap

from ..core.errors import UserError
from ..core.tensors import Tensors, Tree, concatenate, floating, rows, split, zeros_like
from ..local.steps import REFERENCE, Aux, Carry, Descent, Frozen, Phase
from .base import Assigned, ModelGroup, Problem, Round, Trained
from .groups import extracted
from .options import Training

NOTHING: dict[str, Tree] = {}
Given = Mapping[str, Callable[[Any, Round], Tree]]
"""By the names that corrections look up: functions of the state and the round, stacked over the cohort."""


@dataclass(frozen=True)
class LocalUpdate:
    """The local work of a method: its phases, one after another, bound to a problem.

    given: the names of what ``run`` will be handed for corrections to look up. "reference" needs no giver: it is the
    model that a client begins the round with, unless another is given.
    """

    problem: Problem
    phases: Sequence[Phase]
    training: Training
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for phase in self.phases:
            for name in sorted(phase.needs - self.given - {REFERENCE}):
                known = ", ".join(sorted(self.given | {REFERENCE}))
                raise UserError(
                    f"a correction looks up {name!r}, but this method gives {known} only: give it too, as in "
                    f"aux={{{name!r}: ...}}, or leave the correction out"
                )

    def run(self, r: Round, models: Tensors, memory: Tensors | None = None, aux: Aux = NOTHING) -> Trained:
        """Run all phases from the stacked ``models``; the momentum is private, and nothing is sent yet."""
        looked_up = {REFERENCE: models, **aux}
        loss, steps = torch.zeros(len(r.cohort), device=r.members.device), np.zeros(len(r.cohort))
        memory, passes = memory or {}, 0
        for phase in self.phases:
            if not phase.trains:  # a phase that trains nothing is none
                continue
            batches = r.batches(phase.stream, phase.amount, None if phase.full_batch else self.training.batch_size)
            sgd = self.training.sgd(phase, r.index, self.problem.rounds)
            params, rest = split(models, phase.trains)
            running, rest = split(rest, phase.renews.union(self.problem.model.running))
            buffer = split(memory, phase.trains)[0]
            step = Descent(phase, sgd, r.engine.gradient(self.problem.model.objective), persistent=bool(buffer))
            kind = torch.promote_types(next(iter(params.values())).dtype, torch.float32)
            start = Carry(params, running, buffer, torch.zeros_like(loss, dtype=kind))
            frozen = Frozen(rest, {name: looked_up[name] for name in phase.needs})
            end: Carry = r.scan(step, start, frozen, batches)
            models, memory = models | end.x | end.running, memory | end.buffer
            loss, steps = loss + end.loss, steps + batches.steps
            passes += batches.seen * phase.gradients
        made = torch.from_numpy(steps).to(loss)
        return Trained(models, {}, memory, loss / made, made, ((self.problem.model, passes),))

    def train(self, r: Round, models: Tensors, memory: Tensors, shared: frozenset[str], aux: Aux = NOTHING) -> Trained:
        """Run all phases and send what is ``shared``; clients with submodels of their own train those.

        Those with equal shapes train side by side, one submodel after another.
        """
        if self.problem.submodels is None:
            done = self.run(r, models, memory, aux)
            return done._replace(sent=message_of(shared)(done.models))
        assigned = self.problem.submodels(r)
        parts = [self._train_submodel(a, r, models, aux) for a in assigned]
        back = torch.from_numpy(np.concatenate([a.places for a in assigned]).argsort()).to(r.members.device)
        stacked = concatenate([(part.models, part.mass, part.loss, part.steps) for part in parts])
        models, mass, loss, steps = rows(stacked, back)
        sent = message_of(shared)(models)
        passes = tuple(p for part in parts for p in part.passes)
        groups = tuple(group for part in parts for group in part.groups)
        return Trained(models, sent, {}, loss, steps, passes, {k: mass[k] for k in sent} if mass else None, groups)

    def _train_submodel(self, a: Assigned, r: Round, models: Tensors, aux: Aux) -> Trained:
        """Train those with one submodel; the result is in the common form."""
        mine, submodel = torch.from_numpy(a.places).to(r.members.device), a.submodel
        problem = replace(self.problem, model=submodel.model, submodels=None)
        everything = self.problem.parameters
        phases = [p._replace(trains=problem.parameters) if p.trains == everything else p for p in self.phases]
        work, members = replace(self, problem=problem, phases=phases), replace(r, cohort=r.cohort[a.places])
        done = work.run(members, extracted(submodel, models, mine, a.index), None, rows(dict(aux), mine))
        values, mass = vmap(submodel.embed)(done.models, a.index)
        group = ModelGroup(a.places, submodel.model, done.models, submodel.private)
        return done._replace(models=values, mass=mass, groups=(group,))


def look_up(aux: Given, state: Any, r: Round) -> dict[str, Tree]:
    """What corrections will find by name in round ``r``."""
    return {name: value(state, r) for name, value in aux.items()}


def message_of(shared: frozenset[str]) -> Callable[[Tensors], Tensors]:
    """The part of a model that is sent; integer buffers do not travel."""
    return lambda model: floating(split(model, shared)[0])


def persistent(training: Training, phases: Sequence[Phase], model: Tensors) -> Tensors:
    """The momentum a client starts with, where it outlives the rounds."""
    if not (training.persistent_momentum and training.momentum):
        return {}
    return zeros_like({k: v for k, v in model.items() if any(k in p.trains for p in phases)})
