"""Who takes part in which round, and which rounds are evaluated: known from the beginning."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core import rng as rng
from ..core.errors import UserError
from ..data.batches import Integers


@dataclass(frozen=True)
class Participation:
    """Of all clients, in all rounds."""

    clients: int
    participation: float  # a fraction, or how many where it is a whole number
    seed: int
    rounds: int
    evaluate_every: int  # rounds between two evaluations
    offline: float = 0.0  # how likely a client is not there for a whole round

    def cohort(self, t: int) -> Integers:
        """Who takes part in round ``t``, in ascending order: of those who are asked, whoever is there."""
        asked = self.asked(t)
        if not self.offline:
            return asked
        return asked[rng.generator(self.seed, "offline", t).random(self.clients)[asked] >= self.offline]

    def asked(self, t: int) -> Integers:
        """Who is to take part in round ``t``: drawn without replacement, in ascending order."""
        n, wanted = self.clients, self.participation
        m = wanted if isinstance(wanted, int) else max(1, round(wanted * n))
        if not 1 <= m <= n:
            raise UserError(f"participation={wanted} asks for {m} of {n} clients: use a fraction up to 1.0")
        if m == n:
            return np.arange(n)
        return np.sort(rng.generator(self.seed, "sample", t).choice(n, m, replace=False))

    def evaluated(self, t: int) -> int:
        """The first round from ``t`` on that is evaluated; the last one always is.

        >>> [Participation(10, 1.0, 0, rounds=8, evaluate_every=3).evaluated(t) for t in range(8)]
        [2, 2, 2, 5, 5, 5, 7, 7]
        """
        return min(t + -(t + 1) % self.evaluate_every, max(t, self.rounds - 1))

    def final(self, t: int) -> Integers:
        """Who takes part in round ``t`` and not again before the next evaluation, in ascending order."""
        end = self.evaluated(t)
        if end not in self._known:  # found once for all rounds until then
            latest = np.full(self.clients, -1)
            for k in range(t - t % self.evaluate_every, end + 1):
                latest[self.cohort(k)] = k
            self._known.clear()
            self._known[end] = latest
        return np.flatnonzero(self._known[end] == t)

    @cached_property
    def _known(self) -> dict[int, Integers]:
        return {}
