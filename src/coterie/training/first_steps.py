"""The first step of every kind that a run takes, on a few samples: what an engine cannot do shows before it begins."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..algorithms.base import ModelGroup, Program, Round
from ..algorithms.options import Training
from ..algorithms.update import model_groups
from ..core.errors import UserError
from ..core.rng import torch_draws
from ..core.tensors import replicate, split
from ..data import Federation
from ..data.batches import Amount, Batch, Batches
from ..engines.base import Engine
from ..engines.serial import Serial
from ..local.steps import Correction, Phase
from ..measure.evaluate import sample_statistics
from ..models.model import Model
from ..models.trials import is_known_code
from .experiment import Experiment
from .first import everybodys
from .model_check import PROBE

Attempt = Callable[[Engine], object]
"""Takes the first steps on an engine; raises what the run would raise there."""


@dataclass(frozen=True)
class FirstSteps(Round):
    """A round in which every phase has one step."""

    def batches(self, stream: int, amount: Amount, batch_size: int | None, replacement: bool = False) -> Batches:
        """Return the first batch of every member."""
        return super().batches(stream, Amount(steps=1), batch_size, replacement)


def first_steps(e: Experiment, engine: Engine) -> FirstSteps:
    """Return the first steps of the two largest clients: one without samples would try nothing.

    Where clients are unequal, one of them has a sample less, so that a batch is padded as it will be.
    """
    two, sizes = np.sort(np.argsort(-e.train.sizes, kind="stable")[:2]), e.train.sizes
    few = min(PROBE, e.program.training.batch_size or PROBE)
    owned = [e.train.owned[0][:0]] * len(sizes)
    for place, client in enumerate(two):
        owned[client] = e.train.owned[client][: few - (place if few > 2 and sizes.min() < sizes.max() else 0)]
    samples, everybody = replace(e.train, owned=tuple(owned)), np.arange(len(sizes))
    return FirstSteps(
        0, two, e.round(0).Ws, samples, engine, e.settings.seed, everybody, two, e.dropout, e.smallest_batch
    )


def take_first_steps(e: Experiment, engine: Engine) -> None:
    """Let two clients train one step of every phase, tune one and be evaluated, each on a few of its own samples.

    They have what they would begin with, so that an engine sees what it will see, one model for all or one for each.
    """
    r = first_steps(e, engine)
    two, samples, start = r.cohort, r.samples, e.model.start
    program, state = _begun(e, r)
    before, after = program.models(state), program.train(state, r).models
    common = [k for k in e.model.parameters if k in after]  # a submodel may have names of its own
    if all(torch.equal(before[k], after[k]) for k in common):
        check_reached(e.model, e.federation)
    groups = [ModelGroup(np.arange(len(two)), e.model, replicate(start, len(two)))]  # as one model is evaluated
    groups += model_groups(e.model, program.submodels, program.models(state), r)
    groups += () if program.finetune is None else program.finetune(state, r)
    for group in groups if e.measurable else ():
        sample_statistics(engine, group.model, group.models, samples, two[group.places], e.metrics)


def _begun(e: Experiment, r: Round) -> tuple[Program[Any], Any]:
    """Return what a method does for the clients of a round, and the state that they begin with."""
    program, start = e.changed(shard=r.cohort).program, e.model.start
    state = program.init(start, everybodys(e.first, start, r.cohort))
    return program, state if program.prepare is None else program.prepare(state, r)


def parts_of(phase: Phase, t: Training) -> tuple[object, ...]:
    """Return what a step of a phase runs besides the model and its loss."""
    return (*phase.corrections, t.optimizer_of(phase))


def check_corrections(e: Experiment) -> None:
    """Refuse corrections and optimizers of one's own that go another way the next time: engines ask once for many.

    Two clients take their first steps twice. What torch draws is the same each time.
    """
    t = e.program.training
    own = [part for phase in e.program.phases for part in parts_of(phase, t) if not is_known_code(part)]
    if not own:
        return
    r = first_steps(e, Serial(e.federation.y.device))
    program, state = _begun(e, r)
    first, second = (program.train(state, r).models for _ in range(2))
    if any(not torch.allclose(v, second[k], rtol=1e-3, atol=1e-5, equal_nan=True) for k, v in first.items()):
        names = ", ".join(sorted({type(part).__name__ for part in own}))
        one, fix = "one of the corrections", "let it look up in aux what it needs"
        if not any(isinstance(part, Correction) for part in own):
            one, fix = "the optimizer", "let it carry in its state what it needs"
        raise UserError(
            f"the same steps end elsewhere when they are taken again, so {one} {names} keeps something that all "
            f"clients would share, or draws elsewhere than from torch: {fix}, and draw with torch"
        )


def check_reached(model: Model, federation: Federation) -> None:
    """Refuse a loss that depends on no parameter; an error of autograd would say so without a way out."""
    x = {k: model.start[k].detach().requires_grad_() for k in model.parameters}
    batch = Batch(federation.sample(2), federation.y[:2].clone(), None)
    with torch_draws(device=batch.y.device):
        loss, _ = model.objective(x, split(model.start, model.buffers)[0], batch)
    if not loss.requires_grad:
        raise UserError(
            "the loss depends on no parameter of the model: compute its outputs without torch.no_grad, detach or argmax"
        )
