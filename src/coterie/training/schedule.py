"""Who takes part in which round, who mixes with whom, and which rounds are evaluated: known from the beginning."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..algorithms.base import Round, Trained
from ..algorithms.options import members
from ..core import rng
from ..core.tensors import Integers, floating
from ..topology import Topology, drop_messages, without_absent
from .settings import RunSettings


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
