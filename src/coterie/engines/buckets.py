"""Which clients run side by side: those with equally many steps, as long as little of their batches is padding."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..core.tensors import Integers
from ..data.batches import Batches

PADDING = 0.15  # padded entries for every real one, over all clients together


class Bucket(NamedTuple):
    """Clients beside each other, and what their batches hold."""

    clients: tuple[Integers, ...]
    members: int
    steps: list[int]  # of each of the batches
    widest: Integers  # the largest count of every step
    real: int  # entries that are samples
    padded: int  # entries that are not

    def beside(self, other: "Bucket") -> "Bucket":
        """Put both together."""
        members, real = self.members + other.members, self.real + other.real
        widest = np.maximum(self.widest, other.widest)
        padded = members * int(widest.sum()) - real
        return Bucket(self.clients + other.clients, members, self.steps, widest, real, padded)


def buckets(together: Sequence[Batches], exact: bool) -> list[Integers]:
    """Group the clients, by their places; each is in one group. ``exact``: nothing may be padded.

    Every bucket may pad equally much, a share of what is allowed in all: so the few entries of small clients do not
    ask for many small groups. The shares become smaller until all buckets together stay within what is allowed.
    """
    kinds = list(_kinds(together))
    allowed = 0.0 if exact else PADDING * sum(kind.real for kind in kinds)
    share = allowed
    found = _gathered(kinds, share)
    while sum(bucket.padded for bucket in found) > allowed:
        share *= 0.7
        found = _gathered(kinds, share)
    return [np.concatenate(bucket.clients) for bucket in found]


def _gathered(kinds: Sequence[Bucket], share: float) -> list[Bucket]:
    """Put neighbors together as long as a bucket pads no more than its share.

    The largest are first: beside them, smaller ones need ever more, so a bucket that is closed is as large as can be.
    """
    found: list[Bucket] = []
    for kind in kinds:
        both = found[-1].beside(kind) if found and found[-1].steps == kind.steps else None
        if both is not None and both.padded <= share:
            found[-1] = both
        else:
            found.append(kind)
    return found


def _kinds(together: Sequence[Batches]) -> Iterator[Bucket]:
    """Yield the clients with equally many steps and samples, those with many first."""
    columns = [batches.steps for batches in together] + [batches.sizes for batches in together]
    order = np.lexsort([-column for column in reversed(columns)])
    differ = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    for clients in np.split(order, np.flatnonzero(differ) + 1):
        steps = [int(batches.steps[clients[0]]) for batches in together]
        counts = np.concatenate([batches.counts(clients[:1])[2][0] for batches in together])
        yield Bucket((clients,), len(clients), steps, counts, len(clients) * int(counts.sum()), 0)
