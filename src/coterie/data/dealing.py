"""What all divisions have in common: shuffled classes, draws by weight, checks."""

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Weights whose sum is below this are taken for nothing: dividing by it would only magnify rounding.
_NOTHING = 1e-12


def by_class(labels: Ints, rng: np.random.Generator) -> list[Ints]:
    """The shuffled members of every class that occurs."""
    return [rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]


def ladder(weights: Floats, left: NDArray[np.bool_]) -> Floats:
    """Running sums over the entries that are left; they count alike where their weights amount to nothing."""
    live = weights * left
    live[live.sum(-1) < _NOTHING] = left
    return np.cumsum(live, -1)


def joined(pieces: Iterable[Sequence[Ints]]) -> list[Ints]:
    """Every client's pieces in one array, sorted."""
    return [np.sort(np.concatenate(piece)) for piece in pieces]


def quotas(samples: int, clients: int) -> list[int]:
    """Equal sizes, as far as they go.

    >>> quotas(7, 3)
    [3, 2, 2]
    """
    return [samples // clients + (client < samples % clients) for client in range(clients)]


def check_clients(labels: Ints, clients: int) -> None:
    """Refuses more clients than samples."""
    if not 1 <= clients <= len(labels):
        most = len(labels)
        raise UserError(f"clients={clients} is not possible with {most} samples: ask for 1 to {most}")


def check_alpha(alpha: float) -> None:
    """Refuses what no Dirichlet distribution has."""
    if not (alpha > 0 and isfinite(alpha)):
        raise UserError(f"alpha must be a number above 0, not {alpha:g}")


def check_classes(labels: Ints, classes: int) -> int:
    """How many classes there are; refuses more of them a client, or none."""
    kinds = len(np.unique(labels))
    if not 1 <= classes <= kinds:
        raise UserError(f"{classes} classes a client of {kinds} is not possible: ask for 1 to {kinds}")
    return kinds
