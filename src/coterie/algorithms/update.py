"""The first formula for a cohort: what clients do between two exchanges, whatever form of the model each has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ..core.errors import RequestError
from ..core.tensors import Tensors, Tree, concatenate, floating, rows, split, zeros_like
from ..local.steps import REFERENCE, Aux, Descent, Held, Phase, Reached, Start
from ..models.model import Model
from .base import Assigned, Form, Problem, Round, Trained
from .forms import taken
from .options import Training

NOTHING: dict[str, Tree] = {}
Given = Mapping[str, Callable[[Any, Round], Tree]]
"""By the names that corrections look up: functions of the state and the round, stacked over the cohort."""


class Update(NamedTuple):
    """A cohort after its local work, stacked."""

    model: Tensors
    memory: Tensors  # momentum that outlives the round; empty where it does not
    loss: Tensor  # [m] summed over the steps of all phases
    steps: Tensor  # [m] how many there were
    passes: tuple[tuple[Model, int], ...]  # how many times a sample went forward and backward through which model

    def trained(self, models: Tensors, sent: Tensors, kept: Tree) -> Trained:
        """What an exchange begins with."""
        return Trained(models, sent, kept, self.loss / self.steps, self.steps, self.passes)


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
                raise RequestError(
                    f"a correction looks up {name!r}, but this method gives {known} only: give it too, as in "
                    f"aux={{{name!r}: ...}}, or leave the correction out"
                )

    def run(self, r: Round, model: Tensors, memory: Tensors | None = None, aux: Aux = NOTHING) -> Update:
        """The cohort after all phases, from the stacked ``model``."""
        device, start = r.members.device, {REFERENCE: model, **aux}
        loss, steps = torch.zeros(len(r.cohort), device=device), np.zeros(len(r.cohort))
        memory, seen = memory or {}, 0
        for phase in self.phases:
            if not phase.trains:  # a phase that trains nothing is none
                continue
            batches = r.batches(phase.stream, phase.amount, None if phase.whole else self.training.batch_size)
            sgd = self.training.sgd(phase, r.index, self.problem.rounds)
            moving, held = split(model, phase.trains)
            running, rest = split(held, phase.renews.union(self.problem.model.running))
            kept = split(memory, phase.trains)[0]
            step = Descent(phase, sgd, r.engine.gradient(self.problem.model.objective), lasting=bool(kept))
            known = {name: start[name] for name in phase.needs}
            end: Reached = r.walk(step, Start(moving, running, kept), Held(rest, known), batches)
            model, memory = model | end.x | end.running, memory | end.memory
            loss, steps = loss + end.loss, steps + batches.steps
            seen += batches.seen * phase.gradients
        return Update(model, memory, loss, torch.from_numpy(steps).to(loss), ((self.problem.model, seen),))

    def train(self, r: Round, models: Tensors, memory: Tensors, shared: frozenset[str], aux: Aux = NOTHING) -> Trained:
        """The same as an exchange wants it: what is ``shared`` is sent; in forms of their own where clients have them.

        Those with equal shapes train side by side, one view after another.
        """
        if self.problem.views is None:
            done = self.run(r, models, memory, aux)
            return done.trained(done.model, message_of(shared)(done.model), done.memory)
        assigned = self.problem.views(r)
        groups = [self._train_view(a, r, models, aux) for a in assigned]
        back = torch.from_numpy(np.concatenate([a.places for a in assigned]).argsort()).to(r.members.device)
        together: Part = rows(concatenate([part for part, _, _ in groups]), back)
        sent = message_of(shared)(together.models)
        mass = {k: together.mass[k] for k in sent} if together.mass else None
        passes = tuple(p for _, passes, _ in groups for p in passes)
        forms = tuple(form for _, _, form in groups)
        return Trained(together.models, sent, {}, together.loss, together.steps, passes, mass, forms)

    def _train_view(
        self, a: Assigned, r: Round, models: Tensors, aux: Aux
    ) -> tuple["Part", tuple[tuple[Model, int], ...], Form]:
        """The work of those with one view."""
        mine, view = torch.from_numpy(a.places).to(r.members.device), a.view
        own = replace(self.problem, model=view.model, views=None)
        everything = self.problem.parameters
        phases = [p._replace(trains=own.parameters) if p.trains == everything else p for p in self.phases]
        work, sub = replace(self, problem=own, phases=phases), replace(r, cohort=r.cohort[a.places])
        done = work.run(sub, taken(view, models, mine, a.where), None, rows(dict(aux), mine))
        values, mass = vmap(view.put)(done.model, a.where)
        form = Form(a.places, view.model, done.model, view.kept)
        return Part(values, mass, done.loss / done.steps, done.steps), done.passes, form


class Part(NamedTuple):
    """What the members with one view came to, in the common form; stacked over them."""

    models: Tensors
    mass: Tensors
    loss: Tensor
    steps: Tensor


def looked_up(aux: Given, state: Any, r: Round) -> dict[str, Tree]:
    """What corrections will find by name in round ``r``."""
    return {name: value(state, r) for name, value in aux.items()}


def message_of(shared: frozenset[str]) -> Callable[[Tensors], Tensors]:
    """The part of a model that is sent; integer buffers do not travel."""
    return lambda model: floating(split(model, shared)[0])


def lasting(training: Training, phases: Sequence[Phase], model: Tensors) -> Tensors:
    """The momentum a client starts with, where it outlives the rounds."""
    if not (training.persistent_momentum and training.momentum):
        return {}
    return zeros_like({k: v for k, v in model.items() if any(k in p.trains for p in phases)})
