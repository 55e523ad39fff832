"""The first step of every kind that a run takes, on a few samples: what an engine cannot do shows before it begins."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..algorithms.base import ModelGroup, Round
from ..algorithms.update import model_groups
from ..core.tensors import replicate
from ..data.batches import Amount, Batches
from ..engines.base import Engine
from ..measure.evaluate import right_answers
from .experiment import Experiment
from .first import everybodys

PROBE = 8  # samples to try a model with

Attempt = Callable[[Engine], object]
"""Takes the first steps on an engine; raises what the run would raise there."""


@dataclass(frozen=True)
class FirstSteps(Round):
    """A round in which every phase has one step."""

    def batches(self, stream: int, amount: Amount, batch_size: int | None) -> Batches:
        """Return the first batch of every member."""
        return super().batches(stream, Amount(steps=1), batch_size)


def take_first_steps(e: Experiment, engine: Engine) -> None:
    """Let two clients train one step of every phase, tune one and be evaluated, each on a few of its own samples.

    The largest are taken: a client without samples would try nothing. They have what they would begin with, so that an
    engine sees what it will see, one model for all or one for each.
    """
    two = np.sort(np.argsort(-e.train.sizes, kind="stable")[:2])
    few = (own[: PROBE if i in two else 0] for i, own in enumerate(e.train.owned))
    samples, everybody = replace(e.train, owned=tuple(few)), np.arange(e.federation.clients)
    r = FirstSteps(0, two, e.round(0).Ws, samples, engine, e.seed, everybody, two, e.dropout)
    program, start = e.changed(shard=two).program, e.model.start
    state = program.init(start, everybodys(e.first, start, two))
    if program.prepare is not None:
        state = program.prepare(state, r)
    program.train(state, r)
    groups = [ModelGroup(np.arange(len(two)), e.model, replicate(start, len(two)))]  # as one model is evaluated
    groups += model_groups(e.model, program.submodels, program.models(state), r)
    groups += () if program.finetune is None else program.finetune(state, r)
    for group in groups if e.measurable else ():
        right_answers(engine, group.model, group.models, samples, two[group.places])
