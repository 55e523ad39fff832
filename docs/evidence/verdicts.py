"""What all pages of the evidence say of a claim, and by which rule; and how they write a mean and its deviation."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

HOLDS, DOES_NOT, CONTRADICTED = WORDS = ("reproduced", "not reproduced", "contradicted")
RULE = (
    "A claim that one thing is above another is *reproduced* where the difference, taken seed by seed, has the claimed "
    "sign in all seeds and its mean exceeds its standard deviation; it is *contradicted* where the same is true of the "
    "opposite; otherwise it is *not reproduced*. A seed of which a run diverged leaves nothing to show. Several "
    "steps hold where each does, and are contradicted where the last is on the wrong side of the first. That something "
    "does not move holds where by the same rule no step rises or falls, nor the whole; it is contradicted where the "
    "whole does. Standard deviations are those of a sample (n - 1)."
)


def spread(numbers: Iterable[float], digits: int = 1) -> str:
    """Mean and standard deviation of a sample, over the seeds.

    >>> spread([1.0, 2.0, 3.0]), spread([1.0])
    ('2.0 ± 1.0', '1.0')
    """
    known = list(numbers)
    if len(known) < 2:
        return f"{known[0]:.{digits}f}" if known else "-"
    return f"{fmean(known):.{digits}f} ± {stdev(known):.{digits}f}"


def differences(low: Mapping[int, float], high: Mapping[int, float]) -> list[float]:
    """high - low by seed; none where a seed of one of them is missing.

    >>> differences({0: 1.0, 1: 2.0}, {0: 3.0, 1: 3.0}), differences({0: 1.0, 1: 2.0}, {0: 3.0})
    ([2.0, 1.0], [])
    """
    return [round(high[seed] - low[seed], 6) for seed in sorted(low)] if low.keys() == high.keys() else []


def verdict(found: Sequence[float]) -> str:
    """One of three words for differences that a claim says are positive.

    >>> [verdict(d) for d in ([1.0, 2.0, 3.0], [0.1, 0.1, 3.0], [-1.0, -2.0, -3.0], [1.0])]
    ['reproduced', 'not reproduced', 'contradicted', 'not reproduced']
    """
    if len(found) < 2 or abs(fmean(found)) <= stdev(found):
        return DOES_NOT
    return HOLDS if min(found) > 0 else CONTRADICTED if max(found) < 0 else DOES_NOT


def rising(steps: Sequence[Mapping[int, float]]) -> str:
    """The word for a claim that each is above the one before it."""
    if all(verdict(differences(low, high)) == HOLDS for low, high in pairwise(steps)):
        return HOLDS
    ends = verdict(differences(steps[0], steps[-1]))
    return CONTRADICTED if ends == CONTRADICTED else DOES_NOT


def unmoved(steps: Sequence[Mapping[int, float]]) -> str:
    """The word for a claim that all are alike, and what moves where it does not hold.

    >>> unmoved([{0: 1.0, 1: 2.0}, {0: 1.1, 1: 1.9}]), unmoved([{0: 1.0, 1: 2.0}, {0: 0.9, 1: 1.9}])
    ('reproduced', 'contradicted: falls by 7 %')
    """
    ends = moved(steps[0], steps[-1])
    if ends:
        return f"{CONTRADICTED}: {ends}"
    places = [f"{moved(*pair)} at step {k}" for k, pair in enumerate(pairwise(steps), start=1) if moved(*pair)]
    return f"{DOES_NOT}: {', '.join(places)}" if places else HOLDS


def moved(low: Mapping[int, float], high: Mapping[int, float]) -> str:
    """Whether the second rises above or falls below the first, and by how much of it; nothing where neither is so."""
    word = verdict(differences(low, high))
    if word == DOES_NOT:
        return ""
    share = abs(fmean(high.values()) / fmean(low.values()) - 1)
    return f"{'rises' if word == HOLDS else 'falls'} by {100 * share:.0f} %"
