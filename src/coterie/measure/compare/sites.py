"""Which method is better where clients are too few for a test over clients: each one's own test samples tell."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.schema_several import SiteVerdict
from ..paired import CLEAR, FEWEST, exact_flips, holm, said_p
from .columns import MethodRuns, RunData
from .gains import SURE, Gain, client_gains

Outcome = Literal["better", "worse", "unclear"]


class SiteTest(NamedTuple):
    """One method against another at one client, by its own test samples."""

    gain: Gain
    p: float | None  # corrected for all that was compared; None: answers are not right or wrong, the interval tells

    @property
    def outcome(self) -> Outcome:
        """Whether the first method is clearly better or worse there."""
        if self.p is not None and self.p >= CLEAR:
            return "unclear"
        if self.p is not None:
            return "better" if self.gain.difference > 0 else "worse"
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "unclear"

    @property
    def said(self) -> str:
        """The client with its numbers."""
        g = self.gain
        sure = " to ".join(g.ends) if self.p is None else said_p(self.p)
        return f"{g.name} ({g.difference:+.3g}, {sure})"


class SiteTests(NamedTuple):
    """The best method against another, at every client."""

    label: str
    other: str
    each: list[SiteTest]

    @property
    def said(self) -> str:
        """The clients by what they have of it."""
        groups = {"better for": "better", "worse for": "worse", "no clear difference for": "unclear"}
        parts = []
        for words, outcome in groups.items():
            if some := [test.said for test in self.each if test.outcome == outcome]:
                parts.append(f"{words} {', '.join(some)}")
        return f"{self.label} against {self.other}: {'; '.join(parts)}."

    @property
    def saved(self) -> Iterator[SiteVerdict]:
        """The same for compare.json."""
        for test in self.each:
            g = test.gain
            yield {
                "against": self.other,
                "client": g.client,
                "name": g.name,
                "verdict": test.outcome,
                "difference": g.difference,
                "low": g.low,
                "high": g.high,
                "p": test.p,
            }


def site_tests(methods: Sequence[MethodRuns]) -> list[SiteTests]:
    """Return the method with the best mean against every other, client by client; [] where too little is known.

    All pairs of methods at all clients count as tests, because which method is best is read from the same numbers.
    """
    pairs = {(i, j): client_gains(methods[i], methods[j]) for i, j in combinations(range(len(methods)), 2)}
    if not pairs or not all(pairs.values()) or any(len(each) >= FEWEST for each in pairs.values()):
        return []
    tested = [(i, j, gain) for (i, j), each in pairs.items() for gain in sorted(each, key=lambda g: g.client)]
    if all("right" in run.client_summary for m in methods for run in m.runs):
        raw = [exact_flips(_apart(methods[i], methods[j], gain.client)) for i, j, gain in tested]
        ps: list[float | None] = [*holm(raw)]
    else:
        ps = [None] * len(tested)
    best = _best(pairs, len(methods))
    found: dict[int, list[SiteTest]] = {}
    for (i, j, gain), p in zip(tested, ps, strict=True):
        if best in (i, j):
            found.setdefault(i + j - best, []).append(SiteTest(gain if i == best else _mirrored(gain), p))
    return [SiteTests(methods[best].label, methods[j].label, each) for j, each in found.items()]


def site_sentences(tests: Sequence[SiteTests], seeds: int, anew: str) -> list[str]:
    """Say what the test is, then the best method against every other; ``anew``: where seeds have other clients."""
    clients = len(tests[0].each)
    number = "One client is" if clients == 1 else f"{clients} clients are"
    few = f"{number} too few for a test over clients: the test samples of each decide, on the model that it ends with"
    if tests[0].each[0].p is None:
        how = f"intervals of {100 * SURE:g} % by drawing them again, not corrected for the number of clients"
    else:
        which = "McNemar test" if seeds == 1 else f"sign-flip test of the right answers of {seeds} seeds"
        how = f"exact {which}, two-sided, Holm-corrected for all clients and pairs of methods"
    return [f"{few} ({'; '.join(filter(None, (how, anew)))}).", *(each.said for each in tests)]


def _best(pairs: dict[tuple[int, int], list[Gain]], methods: int) -> int:
    """Return the method that is ahead of the others, summed over the clients."""
    lead = np.zeros(methods)
    for (i, j), each in pairs.items():
        apart = sum(gain.difference for gain in each)
        lead[i], lead[j] = lead[i] + apart, lead[j] - apart
    return int(lead.argmax())


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
