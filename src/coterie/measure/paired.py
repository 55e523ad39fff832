"""Whether one method is better than another for the same clients: a paired test, and what several tests cost."""

from collections.abc import Sequence
from itertools import combinations, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.spec import counted

Numbers = NDArray[np.float64]

FEWEST = 6  # clients: with five even a difference that all of them share has p = 2 / 2^5 > 0.05
EXACT = 32  # clients up to which all 2^n flips are counted
FLIPS, AT_ONCE = 20_000, 500  # that are drawn beyond
CLEAR = 0.05  # p below which a difference is called one
_TIE = 1e-12  # of what is subtracted: means over seeds that are equal differ by less
_ROUNDING = 1e-9  # many metrics are fractions, so sums are often equal, but for rounding


class Paired(NamedTuple):
    """One method against another over the same clients."""

    better: int  # clients that fare better with the first
    ties: int  # clients that fare alike with both
    clients: int
    p: float  # two-sided, corrected for all that was compared
    mean: float  # of all differences

    @property
    def clear(self) -> bool:
        """Whether the first method is better, and more than by chance."""
        return self.p < CLEAR and self.mean > 0

    @property
    def counts(self) -> str:
        """For how many clients the first is better.

        >>> Paired(9, 1, 20, 0.0312, 0.5).counts
        'better for 9 of 20 clients, 1 tie'
        """
        ties = f", {counted(self.ties, 'tie')}" if self.ties else ""
        return f"better for {self.better} of {self.clients} clients{ties}"


def fewest(tests: int) -> int:
    """Return how many clients it takes until a difference that all of them share is clear among so many tests.

    >>> fewest(1) == FEWEST, fewest(3), fewest(10)
    (True, 7, 9)
    """
    return next(n for n in count(FEWEST) if tests * 2 / 2**n < CLEAR)


def said_p(p: float) -> str:
    """Return p with as many digits as it takes to see on which side of 0.05 it is.

    >>> said_p(0.0312), said_p(1.0), said_p(1e-9)
    ('p = 0.031', 'p = 1.000', 'p < 0.0001')
    """
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}" if p < 0.01 else f"p = {p:.3f}"


def difference(first: Numbers, second: Numbers) -> Numbers:
    """Return the first numbers less the second; what rounding alone sets apart is a tie, 0.

    >>> difference(np.array([0.1 + 0.2, 0.5]), np.array([0.3, 0.25])).tolist()
    [0.0, 0.25]
    """
    apart = first - second
    return np.where(np.abs(apart) <= _TIE * np.maximum(np.abs(first), np.abs(second)), 0.0, apart)


def sign_flip(differences: Numbers) -> float:
    """Return how likely a mean so far from 0 is, if every difference might as well have had the other sign.

    Where neither method is better, the names of the two could be exchanged client by client: of all 2^n exchanges p
    is the share that leads as far from 0. Fisher, The Design of Experiments (1935), section 21.

    >>> sign_flip(np.array([0.1, 0.2, 0.1, 0.3, 0.2, 0.1]))  # all the same way: 2 of 2^6
    0.03125
    """
    d: Numbers = np.abs(differences[differences != 0])  # a client without a difference flips into itself
    reached = abs(float(differences.sum())) - _ROUNDING * float(d.sum())
    return _counted(d, reached) if len(d) <= EXACT else _drawn(d, reached)


def _counted(d: Numbers, reached: float) -> float:
    """Count exactly. Every sum is one of the first half's plus one of the second's: 2^(n/2) to sort instead of 2^n."""
    one, other = _sums(d[::2]), np.sort(_sums(d[1::2]))
    beyond = len(other) - np.searchsorted(other, reached - one)
    return min(1.0, 2 * float(beyond.sum()) / 2.0 ** len(d))


def _drawn(d: Numbers, reached: float) -> float:
    """Estimate from flips drawn at random, always the same; the one that was seen counts, so p is never too small.

    A normal distribution would be: accuracies of clients with few test samples differ by few sizes, and its p of 34
    equal differences, 23 of them one way, is 0.040 instead of 0.058. Phipson and Smyth (2010).
    """
    draw, hits = np.random.default_rng(0), 0
    for _ in range(FLIPS // AT_ONCE):
        signs = 2 * draw.integers(0, 2, (AT_ONCE, len(d)), dtype=np.int8) - 1
        hits += int((np.abs(signs @ d) >= reached).sum())
    return (1 + hits) / (1 + FLIPS)


def exact_flips(differences: NDArray[np.int64]) -> float:
    """Return ``sign_flip`` of integers, exactly, however many there are.

    Of -1, 0 and 1, samples that one method, none or the other gets right, it is McNemar's exact test (Psychometrika
    12, 1947): the distribution of all flips' sums, built up number by number.

    >>> exact_flips(np.array([1, 1, 1, 1, 1, -1, 0]))  # 2 (1 + 6) of 2^6
    0.21875
    """
    sizes = np.abs(differences[differences != 0])
    most, reached = int(sizes.sum()), abs(int(differences.sum()))
    share = np.zeros(2 * most + 1)
    share[most] = 1.0
    for size in sizes.tolist():
        share = (np.roll(share, size) + np.roll(share, -size)) / 2
    return min(1.0, float(share[np.abs(np.arange(-most, most + 1)) >= reached].sum()))


def _sums(numbers: Numbers) -> Numbers:
    """Return all 2^n sums with either sign."""
    sums = np.zeros(1)
    for number in numbers:
        sums = np.concatenate((sums + number, sums - number))
    return sums


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p of every test, enlarged so that one in twenty families of tests has an error at 0.05, not one test.

    Holm, A simple sequentially rejective multiple test procedure (1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = least
    return adjusted


def against(best: int, gains: Numbers) -> dict[int, Paired]:
    """Test one method against every other, given [methods, clients] numbers of which the higher is the better one.

    All pairs of methods count as tests: which one is best was read from the same numbers, and the largest of all
    differences is among its own.
    """

    pairs = list(combinations(range(len(gains)), 2))
    ps = holm([sign_flip(difference(gains[i], gains[j])) for i, j in pairs])
    of_best = {i + j - best: p for (i, j), p in zip(pairs, ps, strict=True) if best in (i, j)}
    return {j: _paired(difference(gains[best], gains[j]), p) for j, p in of_best.items()}


def _paired(apart: Numbers, p: float) -> Paired:
    return Paired(int((apart > 0).sum()), int((apart == 0).sum()), len(apart), p, float(apart.mean()))
