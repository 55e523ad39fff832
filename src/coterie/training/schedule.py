"""The rounds of a run, known from the beginning: participants, mixing matrices, evaluations and costs.

The interval of evaluations follows from counts, not from a clock: the same run is always evaluated in the same rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import ceil, log
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithms.base import Round, Trained
from ..algorithms.options import members
from ..core import rng
from ..core.tensors import Integers, floating, leaves, size_in_bytes
from ..data.batches import Batches
from ..measure.convergence import OWN_TRAIN
from ..measure.selection import chooses
from ..models.model import Model
from ..store import RunFolder, flatten
from ..topology import Topology, drop_messages, without_absent
from .initial_models import everybodys
from .settings import RunSettings

if TYPE_CHECKING:
    from .experiment import Experiment


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run."""

    clients: int
    participation: float  # a fraction, or how many where it is an integer
    settings: RunSettings
    topology: Topology | None = None  # None: there is a server
    gossip_steps: int = 1  # exchanges of a round
    fresh_graph: bool = False  # whether each exchange has a graph of its own
    weight_stays_with: Literal["receiver", "sender"] = "receiver"  # the weight of a message that is not delivered
    _latest: dict[int, Integers] = field(default_factory=dict, repr=False, compare=False)
    _fixed: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def every(self) -> int:
        """The rounds between two evaluations; 1 until "auto" is a number."""
        every = self.settings.evaluate_every
        return every if isinstance(every, int) else 1

    def cohort(self, t: int) -> Integers:
        """Return who takes part in round ``t``, in ascending order: of those who are asked, whoever is there."""
        asked = self.asked(t)
        likely = self.settings.offline
        if not likely:
            return asked
        return asked[rng.generator(self.settings.seed, "offline", t).random(self.clients)[asked] >= likely]

    def asked(self, t: int) -> Integers:
        """Return who is asked to take part in round ``t``: drawn without replacement, in ascending order."""
        n, m = self.clients, self.active
        if m == n:
            return np.arange(n)
        return np.sort(rng.generator(self.settings.seed, "sample", t).choice(n, m, replace=False))

    @cached_property
    def active(self) -> int:
        """How many clients are asked to take part in a round."""
        return members(self.participation, self.clients)

    def matrices(self, t: int, device: torch.device, **trained: Tensor) -> tuple[Tensor, ...]:
        """Return the mixing matrices of round ``t``, one exchange after another; none where there is a server.

        ``trained``: what the topology uses of the clients' training in this round; else they count as alike.
        """
        if self.topology is None:
            return ()
        absent = self.settings.offline > 0 or self.active < self.clients  # whether a round may be without some of them
        if self.topology.fixed and not self.settings.drop_messages and not absent:
            if device not in self._fixed:
                self._fixed[device] = self.topology(0).to(device)
            return (self._fixed[device],) * self.gossip_steps
        different = self.gossip_steps if self.fresh_graph or self.settings.drop_messages else 1
        present = self.cohort(t) if absent else None
        topology = self.topology
        graph = (lambda t: topology(t, **trained)) if trained else topology
        Ws = tuple(self._matrix(graph, t, q, present).to(device) for q in range(different))
        return Ws * (self.gossip_steps // different)

    def informed(self, r: Round, trained: Trained) -> Round:
        """Return the round with the matrices of a topology that uses what the clients have trained; NaN: did not train.

        Models are what is sent, flattened to one row for each client.
        """
        uses: frozenset[str] = frozenset() if self.topology is None else self.topology.uses
        if not uses:
            return r
        seen = {"losses": trained.loss[:, None]}
        if "models" in uses:
            seen["models"] = torch.cat([v.reshape(len(v), -1).double() for v in floating(trained.sent).values()], 1)
        values = {}
        for name in uses:
            rows = torch.full((self.clients, seen[name].shape[1]), torch.nan, dtype=torch.float64)
            rows[torch.from_numpy(r.cohort)] = seen[name].double().cpu()
            values[name] = rows[:, 0] if name == "losses" else rows
        return replace(r, Ws=self.matrices(r.index, r.samples.y.device, **values))

    def _matrix(self, graph: Callable[[int], Tensor], t: int, q: int, present: Integers | None) -> Tensor:
        """Return the matrix of exchange ``q`` of round ``t``, without what is not delivered."""
        exchange = t * self.gossip_steps + q  # counted over all rounds
        W = graph(exchange if self.fresh_graph else t)
        if self.settings.drop_messages:
            draw = rng.generator(self.settings.seed, "silent", exchange)
            W = drop_messages(W, self.settings.drop_messages, self.weight_stays_with, draw)
        return W if present is None else without_absent(W, present, self.weight_stays_with)

    def evaluated(self, t: int) -> int:
        """Return the first round from ``t`` on that is evaluated; the last one always is.

        >>> [Schedule(10, 1.0, RunSettings(rounds=8, evaluate_every=3)).evaluated(t) for t in range(8)]
        [2, 2, 2, 5, 5, 5, 7, 7]
        """
        return min(t + -(t + 1) % self.every, max(t, self.settings.rounds - 1))

    def final(self, t: int) -> Integers:
        """Return who takes part in round ``t`` and not again before the next evaluation, in ascending order."""
        end = self.evaluated(t)
        if end not in self._latest:  # found once for all rounds until then
            latest = np.full(self.clients, -1)
            for k in range(t - t % self.every, end + 1):
                latest[self.cohort(k)] = k
            self._latest.clear()
            self._latest[end] = latest
        return np.flatnonzero(self._latest[end] == t)


# Of the training's multiply-adds. An evaluation takes up to 1.7 times as long as its count suggests, because its
# forward pass is more than a third of a step of small models: 5 % by count are 3 to 9 % by the clock.
SHARE = 0.05
CALL = 20e6  # multiply-adds in the time that an engine takes for anything: 1 to 2 ms on two cores
PARTS = 8  # one round is sampled from each eighth of the run
FREE_MACS = 20e9  # multiply-adds of all evaluations of a run, about two seconds on two cores: less needs no saving
EVALUATIONS = 10  # of a run, at least: with fewer, neither a curve nor the rounds to a target say anything


def interval(asked: int | Literal["auto"], experiment: "Experiment", begun: RunFolder | None) -> int:
    """Return the rounds between two evaluations; a continued run keeps its own unless another number is asked for."""
    if isinstance(asked, str):  # auto
        known = None if begun is None else begun.config().get("evaluate_every")
        return known if isinstance(known, int) and known > 0 else evaluation_interval(experiment)
    return asked


def evaluation_interval(experiment: "Experiment") -> int:
    """Return the rounds between two evaluations: 1 where something is recorded or chosen, because that was asked for.

    Only rounds that were evaluated can be chosen.
    """
    e = experiment
    if not e.measurable or e.settings.record or chooses(e.settings.saved):
        return 1
    price = e.flops_per_sample(e.model) / 3
    work = evaluation_passes(e) * price
    if e.settings.rounds * (work + 4 * CALL) <= FREE_MACS:
        return 1
    cheap = ceil((work + calls(e) * CALL) / (SHARE * training_price(e) * max(1, training_passes(e))))
    return min(cheap, max(1, e.settings.rounds // EVALUATIONS))


def training_price(e: "Experiment") -> float:
    """Count the multiply-adds of a sample that is trained on, forward and back: the mean over the members' submodels.

    Rounds from all parts of the run are looked at, because submodels may change.
    """
    submodels = e.program.submodels
    if submodels is None:
        return float(e.flops_per_sample(e.model))
    rounds = sorted({e.settings.rounds * (2 * k + 1) // (2 * PARTS) for k in range(PARTS)})
    asked = (replace(e.round(t), cohort=e.schedule.asked(t)) for t in rounds)  # with those that are absent
    held = [(len(a.places), e.flops_per_sample(a.submodel.model)) for r in asked for a in submodels(r)]
    return sum(count * flops for count, flops in held) / sum(count for count, _ in held)


def calls(e: "Experiment") -> float:
    """Count how often an engine is called: after aggregation, for the mean model, and after local training.

    Where m of n take part, the latest trainings of all of them lie in about the last n/m (1 + log m) rounds.
    """
    n, m = e.federation.clients, len(e.schedule.asked(0))
    return 2 + (1 if m == n else n / m * (1 + log(m)))


def evaluation_passes(e: "Experiment") -> int:
    """Count the samples that go forward in one evaluation: the clients' own twice, and all through the mean model.

    Fine-tuning for the measurement goes forward and back.
    """
    tuning = 3 * e.program.training.finetune_epochs * int(e.train.sizes.sum())
    trained = 2 * int(e.train.sizes.sum()) if OWN_TRAIN in e.settings.record else 0
    return (3 if tuning else 2) * int(e.tests.sizes.sum()) + len(e.tests.y) + tuning + trained


def training_passes(e: "Experiment") -> int:
    """Count the samples that go forward and back in the last phase of the first round: the main one."""
    phase, t = e.program.phases[-1], e.program.training
    return Batches(
        e.train, e.schedule.asked(0), phase.amount, None if phase.full_batch else t.batch_size, key=None
    ).seen


SAMPLED = 8  # rounds that are counted, evenly spread, of a longer run


class Forecast(NamedTuple):
    """The cost of one run. FLOPs are multiply-adds, as the results count them."""

    flops: float  # forward and backward passes of all clients, all rounds
    bytes: float  # over all links, both directions, all rounds
    memory: int  # bytes of what all clients hold between two rounds, and of the samples
    forward: float  # FLOPs of one sample through a client's own model, the mean over the clients
    evaluation: float  # FLOPs of all evaluations
    cohort: int  # clients that train in a round


def forecast(e: "Experiment") -> Forecast:
    """Count a run; exact where it has few rounds, else from rounds that are spread over all of it."""
    sampled = sorted({e.settings.rounds * (2 * k + 1) // (2 * SAMPLED) for k in range(SAMPLED)})
    rounds = [e.round(t) for t in (sampled if e.settings.rounds > SAMPLED else range(e.settings.rounds))]
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


def _flops(e: "Experiment", r: Round) -> int:
    """Count the passes of all phases, each through the form of the model that a member trains."""
    size, total = e.program.training.batch_size, 0
    for places, model in _forms(e, r):
        for phase in (p for p in e.program.phases if p.trains):
            batch = None if phase.full_batch else size
            batches = Batches(e.train, r.cohort[places], phase.amount, batch, None, False, e.smallest_batch)
            passes = reduce(lambda once, c: c.passes(once, batches), phase.corrections, batches.seen)
            total += passes * e.flops_per_sample(model)
    return total


def _forms(e: "Experiment", r: Round) -> list[tuple[Integers, Model]]:
    """Return the places in the cohort of those who train each form of the model."""
    if e.program.submodels is None:
        return [(np.arange(len(r.cohort)), e.model)]
    return [(a.places, a.submodel.model) for a in e.program.submodels(r)]
