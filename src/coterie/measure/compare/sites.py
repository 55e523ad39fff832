"""Which method is better where clients are too few for a test over clients: each one's own test samples tell."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.schema_several import SiteVerdict
from ..paired import FEWEST, exact_flips, holm
from .columns import MethodRuns, RunData
from .gains import SURE, Gain, Gains, Verdict, client_gains

OUTCOMES: Mapping[Verdict, Literal["better", "worse", "unclear"]] = {
    "helps": "better",
    "harms": "worse",
    "unclear": "unclear",
}
Pairs = Mapping[tuple[int, int], Sequence[Gain]]  # by two places in a comparison: each client's gain of the first


class SiteTests(NamedTuple):
    """The best method against another, at every client."""

    label: str
    other: str
    each: Sequence[Gain]

    @property
    def said(self) -> str:
        """The clients by what they have of it."""
        groups: dict[str, list[str]] = {"better for": [], "worse for": [], "no clear difference for": [], "tie for": []}
        for gain in self.each:
            if not gain.difference:
                groups["tie for"].append(gain.name)
            else:
                outcome = OUTCOMES[gain.verdict]
                groups["no clear difference for" if outcome == "unclear" else f"{outcome} for"].append(gain.said)
        return "; ".join(f"{words} {', '.join(clients)}" for words, clients in groups.items() if clients)

    @property
    def saved(self) -> Iterator[SiteVerdict]:
        """The same for compare.json."""
        for gain in self.each:
            yield {
                "against": self.other,
                "client": gain.client,
                "name": gain.name,
                "verdict": OUTCOMES[gain.verdict],
                "difference": gain.difference,
                "low": gain.low,
                "high": gain.high,
                "p": gain.p,
            }


def site_pairs(methods: Sequence[MethodRuns]) -> Pairs:
    """Return what each client gains of every method against every other, with a test; {} where too little is known.

    All pairs of methods at all clients count as tests, because which method is best is read from the same numbers.
    """
    pairs = {(i, j): client_gains(methods[i], methods[j]) for i, j in combinations(range(len(methods)), 2)}
    if not pairs or not all(pairs.values()) or any(len(each) >= FEWEST for each in pairs.values()):
        return {}
    pairs = {pair: sorted(each, key=lambda gain: gain.client) for pair, each in pairs.items()}
    if not all("right" in run.client_summary for m in methods for run in m.runs):
        return pairs
    raw = [exact_flips(_apart(methods[i], methods[j], gain.client)) for (i, j), each in pairs.items() for gain in each]
    ps = iter(holm(raw))
    return {pair: [gain._replace(p=next(ps)) for gain in each] for pair, each in pairs.items()}


def site_tests(methods: Sequence[MethodRuns], pairs: Pairs, best: int) -> list[SiteTests]:
    """Return the best method against every other, client by client."""
    others = [j for j in range(len(methods)) if j != best] if pairs else []
    return [SiteTests(methods[best].label, methods[j].label, _against(pairs, best, j)) for j in others]


def decided(found: Gains, methods: Sequence[MethodRuns], pairs: Pairs) -> Gains:
    """Return gains with the tests of few clients, so that intervals tell nothing else beside them."""
    labels = [m.label for m in methods]
    if not pairs or found.seeds > 1:  # a test is of a client over all seeds, and these are other ones in each
        return found
    each = _against(pairs, labels.index(found.label), labels.index(found.reference))
    return found._replace(each=sorted(each, key=lambda gain: (-gain.difference, gain.client)))


def how_tested(tests: Sequence[SiteTests], seeds: int, anew: str) -> str:
    """Say what the tests of few clients are; ``anew``: where seeds have other clients."""
    clients = len(tests[0].each)
    number = "One client is" if clients == 1 else f"{clients} clients are"
    few = f"{number} too few for a test over clients: the test samples of each decide, on the model that it ends with"
    if tests[0].each[0].p is None:
        how = f"intervals of {100 * SURE:g} % by drawing them again, not corrected for the number of clients"
    else:
        which = "McNemar test" if seeds == 1 else f"sign-flip test of the right answers of {seeds} seeds"
        how = f"exact {which}, two-sided, Holm-corrected for all clients and pairs of methods"
    return f"{few} ({'; '.join(filter(None, (how, anew)))})."


def _against(pairs: Pairs, one: int, other: int) -> list[Gain]:
    """Return what the first of two methods gains against the second."""
    return [*pairs[one, other]] if one < other else [_mirrored(gain) for gain in pairs[other, one]]


def _mirrored(gain: Gain) -> Gain:
    """Return what the other method gains."""
    return gain._replace(difference=0 - gain.difference, low=0 - gain.high, high=0 - gain.low)  # 0, not -0


def _apart(one: MethodRuns, other: MethodRuns, client: int) -> NDArray[np.int64]:
    """Return, for each test sample of a client, how many seeds more get it right with one method than with the other.

    Seeds may have other test samples in the same places: to exchange the methods for all of a place together is one of
    the exchanges that could be made, so the test holds for them, too.
    """
    each = [_right(a, client) - _right(b, client) for a, b in zip(one.runs, other.runs, strict=True)]
    most = max(map(len, each))
    found: NDArray[np.int64] = np.sum([np.pad(d, (0, most - len(d))) for d in each], axis=0)
    return found


def _right(run: RunData, client: int) -> NDArray[np.int64]:
    return np.array([*map(int, run.client_summary["right"][client])], np.int64)
