"""What a table shows of the runs: one row a method, one column a number, the best of every column known."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from ..measure import FINETUNED, rounds_to
from ..measure.report import Row
from ..run import Run
from ..text import scaled

_MIXED = "personal_accuracy_after_mix"
_FINETUNED = "the same after fine-tuning for the measurement, for methods that do so"
_GLOBAL = "the mean of all models on all test samples, after mixing"
_NODE = "the most that one node, a server included, sends or gets in a round"
_REACHED = "the first measured round whose mean personal accuracy after mixing is that high; -: none"


class Outcome(NamedTuple):
    """What is kept of one run; its models are not."""

    summary: dict[str, Any]
    history: list[Row]
    clients: dict[str, list[float | None]]  # each client's accuracy after the last round, by protocol


class Result(NamedTuple):
    """One method, one outcome a seed."""

    method: str
    outcomes: list[Outcome]

    @classmethod
    def of(cls, method: str, runs: Sequence[Run]) -> "Result":
        """Of the runs of one method."""
        return cls(method, [Outcome(r.summary, r.history, r.census["accuracy"]) for r in runs])

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """One a seed."""
        return [outcome.summary for outcome in self.outcomes]


class Cell(NamedTuple):
    """A number as it is written, and how far it spreads; without a value it cannot be the best."""

    value: float | None
    text: str
    spread: str | None = None


NOTHING = Cell(None, "-")


class Column(NamedTuple):
    """A number of every method."""

    heading: tuple[str, ...]  # a word or two, one to a line where there is little room
    unit: str
    cell: Callable[[Result], Cell]
    best: Callable[[Sequence[float]], float]  # min or max
    keep: int  # columns with the lowest number go first where not all have room
    means: str = ""  # what the number is, if the headings do not share a sentence

    @property
    def title(self) -> str:
        """The heading in one line."""
        return " ".join(self.heading)

    def winners(self, results: Sequence[Result]) -> list[bool]:
        """Who is best, as far as the digits tell; nobody where all are equal."""
        cells = [self.cell(r) for r in results]
        known = [c for c in cells if c.value is not None]
        if len({c.text for c in known}) < 2:
            return [False] * len(cells)
        best = self.best([c.value for c in known if c.value is not None])
        text = next(c.text for c in known if c.value == best)
        return [c.value is not None and c.text == text for c in cells]


def columns(results: Sequence[Result], target: float) -> list[Column]:
    """All there are; fine-tuning only where a method does so."""
    tuned = any(FINETUNED in s["personal_accuracy"] for r in results for s in r.summaries)
    tuning = Column(("fine-tuned",), "%", lambda r: _personal(r, FINETUNED), max, 8, _FINETUNED)
    return [
        Column(("after", "mixing"), "%", lambda r: _personal(r, "after_mix"), max, 10),
        Column(("after", "training"), "%", lambda r: _personal(r, "after_train"), max, 9),
        *([tuning] if tuned else []),
        Column(("worst", "client"), "%", lambda r: _last(r, f"{_MIXED}_worst"), max, 7, "the lowest after mixing"),
        Column(("10th", "percentile"), "%", lambda r: _last(r, f"{_MIXED}_p10"), max, 3, "of the clients after mixing"),
        Column(("global",), "%", lambda r: _last(r, "global_accuracy"), max, 4, _GLOBAL),
        Column(("rounds", f"to {target:g} %"), "", lambda r: _rounds(r, target), min, 5, _REACHED),
        Column(("sent",), "", lambda r: _total(r, "bytes_sent", "B"), min, 6, "over all links, both directions"),
        Column(("busiest", "node"), "", _busiest, min, 0, _NODE),
        Column(("FLOPs",), "", lambda r: _total(r, "flops", "FLOP"), min, 1, "of all clients' training"),
        Column(("seconds",), "", _seconds, min, 2, "of training and mixing, without evaluation"),
    ]


def _personal(result: Result, protocol: str) -> Cell:
    """The mean over the clients; its spread is that over the seeds, or of one seed that over the clients."""
    known = [a for s in result.summaries if (a := s["personal_accuracy"].get(protocol))]
    if len(known) == 1:
        return Cell(known[0]["final"], f"{100 * known[0]['final']:.1f}", f"{100 * known[0]['std']:.1f}")
    return _over_seeds([100 * a["final"] for a in known])


def _last(result: Result, name: str) -> Cell:
    """A number of the last round, which is always measured, in %."""
    known = [v for o in result.outcomes if o.history and (v := o.history[-1][name]) is not None]
    return _over_seeds([100 * v for v in known])


def _rounds(result: Result, target: float) -> Cell:
    """The mean over the seeds, if all of them get there."""
    each = [rounds_to(o.history, target / 100) for o in result.outcomes]
    known = [float(t) for t in each if t is not None]
    if known and len(known) < len(each):
        return Cell(None, f"{len(known)} of {len(each)} seeds")
    return _over_seeds(known, ".1f" if len(known) > 1 else ".0f")


def _total(result: Result, name: str, unit: str) -> Cell:
    mean = fmean(s[name] for s in result.summaries)
    return Cell(mean, scaled(mean, unit))


def _busiest(result: Result) -> Cell:
    """Up or down, whichever is more."""
    most = max(s[way] for s in result.summaries for way in ("busiest_bytes_up", "busiest_bytes_down"))
    return Cell(most, scaled(most, "B"))


def _seconds(result: Result) -> Cell:
    return _over_seeds([s["seconds"] for s in result.summaries])


def _over_seeds(values: Sequence[float], digits: str = ".1f") -> Cell:
    if not values:
        return NOTHING
    spread = format(pstdev(values), digits) if len(values) > 1 else None
    return Cell(fmean(values), format(fmean(values), digits), spread)
