"""What a run will cost, counted from its program without training anything."""

from functools import reduce
from typing import NamedTuple

import numpy as np

from ..algorithms.base import Round
from ..core.tensors import Integers, leaves, size_in_bytes
from ..data.batches import Batches
from ..models.model import Model
from ..store import flatten
from .evaluation import evaluation_passes
from .experiment import Experiment
from .first import everybodys

LOOKED_AT = 8  # rounds that are counted, evenly spread, of a run that has more


class Forecast(NamedTuple):
    """The cost of one run. FLOPs are multiply-adds, as the results count them."""

    flops: float  # forward and backward passes of all clients, all rounds
    bytes: float  # over all links, both directions, all rounds
    memory: int  # bytes of what all clients hold between two rounds, and of the samples
    forward: float  # FLOPs of one sample through a client's own model, the mean over the clients
    evaluation: float  # FLOPs of all evaluations
    cohort: int  # clients that train in a round


def forecast(e: Experiment) -> Forecast:
    """Count a run; exact where it has few rounds, else from rounds that are spread over all of it."""
    looked_at = sorted({e.settings.rounds * (2 * k + 1) // (2 * LOOKED_AT) for k in range(LOOKED_AT)})
    rounds = [e.round(t) for t in (looked_at if e.settings.rounds > LOOKED_AT else range(e.settings.rounds))]
    share = e.settings.rounds / len(rounds)
    state = e.program.init(e.model.start, everybodys(e.first, e.model.start, e.local_clients))
    samples = leaves((e.federation.x, e.federation.y, e.federation.test_x, e.federation.test_y))
    forward = sum(e.forward_flops(r) / max(1, len(r.cohort)) for r in rounds) / len(rounds)
    evaluations = -(-e.settings.rounds // e.schedule.every) if e.measurable else 0
    return Forecast(
        share * sum(_flops(e, r) for r in rounds),
        share * sum(e.program.traffic(state, r).totals.bytes for r in rounds),
        size_in_bytes(flatten(state).values()) + size_in_bytes(samples),
        forward,
        evaluations * evaluation_passes(e) * forward,
        max(len(r.cohort) for r in rounds),
    )


def _flops(e: Experiment, r: Round) -> int:
    """Count the passes of all phases, each through the form of the model that a member trains."""
    size, total = e.program.training.batch_size, 0
    for places, model in _forms(e, r):
        for phase in (p for p in e.program.phases if p.trains):
            batch = None if phase.full_batch else size
            batches = Batches(e.train, r.cohort[places], phase.amount, batch, None, False, e.smallest_batch)
            passes = reduce(lambda once, c: c.passes(once, batches), phase.corrections, batches.seen)
            total += passes * e.flops_per_sample(model)
    return total


def _forms(e: Experiment, r: Round) -> list[tuple[Integers, Model]]:
    """Return the places in the cohort of those who train each form of the model."""
    if e.program.submodels is None:
        return [(np.arange(len(r.cohort)), e.model)]
    return [(a.places, a.submodel.model) for a in e.program.submodels(r)]
