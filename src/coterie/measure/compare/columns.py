"""What a comparison is made of, runs as plain data, and its columns: one cell per method, the best ones marked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal, NamedTuple

from ...core.errors import UserError
from ...core.schema import ClientSummary, Config, Row, Summary, number
from ...core.spec import scaled
from ..rows import FINETUNED, rounds_to

TARGET = 80.0  # known before anybody has looked at the runs, so that no method is favored, and equal in all tables
POINTS = {"after_mix": "after mixing", "after_train": "after training", FINETUNED: "after fine-tuning"}
_MIXED = "personal_accuracy_after_mix"
_MEANS = {
    "after_mix": "right after the exchange",
    "after_train": "right after local work, before the exchange; a client that did not take part counts with its "
    "latest training",
    FINETUNED: "tuned for the measurement only, for methods that do so",
    "worst": "the lowest accuracy of all clients after mixing; over several seeds, the mean of each seed's lowest",
    "p10": "the accuracy after mixing that a tenth of the clients stays below",
    "global": "the mean of all models, or the server's, on all test samples together, after mixing",
    "rounds": "the first evaluated round whose mean personal accuracy after mixing is that high; over several seeds, "
    "the mean if all of them get there; -: not reached (--target counts to another)",
    "sent": "over all links, both directions, all rounds",
    "busiest": "the most that one node, a server included, sends (up) or gets (down) in a round, in any seed",
    "flops": "forward and backward passes of all clients, all rounds",
    "seconds": "training and mixing in all rounds, without evaluation",
}


@dataclass(frozen=True, eq=False)
class RunData:
    """One run without its models."""

    config: Config
    history: Sequence[Row]
    summary: Summary
    client_summary: ClientSummary  # {} before the run is finished
    finished: bool = True

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    def last(self, name: str) -> float | None:
        """Return a number of the last round that has measured it."""
        return next((v for row in reversed(self.history) if (v := number(row, name)) is not None), None)

    @property
    def evaluated(self) -> int:
        """The last round whose models were evaluated; without classes to get right, the last one."""
        known = (row["round"] for row in reversed(self.history) if row.get("global_accuracy") is not None)
        return next(known, len(self.history))


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """One method: one run per seed."""

    label: str
    runs: Sequence[RunData]

    def finals(self, point: str) -> list[float]:
        """Return the mean personal accuracy of the last evaluated round in %, per seed; empty unless all have it."""
        known = [100 * a["final"] for run in self.runs if (a := run.summary["personal_accuracy"].get(point))]
        return known if len(known) == len(self.runs) else []


class Cell(NamedTuple):
    """A number as it is written; without a value it cannot be the best, and is sorted last."""

    value: float | None
    text: str
    spreads: tuple[tuple[str, str], ...] = ()  # (over what, how far), the one first that is shown where one has room
    parts: tuple[str, ...] = ()  # what else is written beside it where there is room
    best: bool = False  # of its column, as far as the printed digits tell

    @property
    def spread(self) -> str | None:
        """How far it spreads, over the seeds if there are several, else over the clients."""
        return self.spreads[0][1] if self.spreads else None


class Column(NamedTuple):
    """A number of every method."""

    title: str
    of: str  # what the number is of, where the title does not tell
    unit: str
    best: Callable[[Iterable[float]], float]  # min or max
    keep: int  # columns with the lowest number go first where not all have room
    means: str
    cells: Sequence[Cell]  # one per method

    @property
    def subtitle(self) -> str:
        """What stands below the title where there is room."""
        return ", ".join(filter(None, (self.of, self.unit)))

    def marked(self) -> "Column":
        """Mark the best cells: all that print the same as the best, and none where all do."""
        known = {c.value: c.text for c in self.cells if c.value is not None}
        best = known[self.best(known)] if len(set(known.values())) > 1 else None
        return self._replace(cells=[c._replace(best=c.value is not None and c.text == best) for c in self.cells])


def check_target(target: float) -> None:
    """Refuse what no mean accuracy can reach, or every one does."""
    if not 0 < target <= 100:
        raise UserError(f"--target {target:g} is no accuracy in %: choose one above 0 and up to 100")


def columns(methods: Sequence[MethodRuns], target: float) -> list[Column]:
    """Return all columns; fine-tuning only where a method does so."""

    def of_last(name: str) -> list[Cell]:
        return [_last(m, name) for m in methods]

    def point(point: str, keep: int) -> Column:
        cells = [accuracy(m, point) for m in methods]
        return Column(POINTS[point], "personal accuracy", "%", max, keep, _MEANS[point], cells)

    tuned = any(FINETUNED in run.summary["personal_accuracy"] for m in methods for run in m.runs)
    rounds = [_over_seeds([rounds_to(run.history, target / 100) for run in m.runs], whole=True) for m in methods]
    seconds = [_over_seeds([run.summary["seconds"] for run in m.runs]) for m in methods]
    flops, busiest = [_total(m, "flops", "FLOP") for m in methods], [_busiest(m) for m in methods]
    every = [  # the busiest node last: a window of usual width ends before it
        point("after_mix", 10),
        point("after_train", 9),
        *([point(FINETUNED, 8)] if tuned else []),
        Column("worst client", "after mixing", "%", max, 7, _MEANS["worst"], [worst(m) for m in methods]),
        Column("10th percentile", "after mixing", "%", max, 3, _MEANS["p10"], of_last(f"{_MIXED}_p10")),
        Column("global", "accuracy", "%", max, 4, _MEANS["global"], of_last("global_accuracy")),
        Column(f"rounds to {target:g} %", "after mixing", "", min, 5, _MEANS["rounds"], rounds),
        Column("sent", "bytes", "", min, 6, _MEANS["sent"], [sent(m) for m in methods]),
        Column("FLOPs", "training", "", min, 1, _MEANS["flops"], flops),
        Column("seconds", "training", "", min, 2, _MEANS["seconds"], seconds),
        Column("busiest node", "bytes per round", "", min, 0, _MEANS["busiest"], busiest),
    ]
    return [column.marked() for column in every]


def accuracy(method: MethodRuns, point: str) -> Cell:
    """Return the mean over clients and seeds, with both spreads."""
    every = [run.summary["personal_accuracy"].get(point) for run in method.runs]
    cell = _over_seeds([None if a is None else 100 * a["final"] for a in every])
    if cell.value is None:
        return cell
    over_clients = ("clients", f"{100 * fmean(a['std'] for a in every if a is not None):.1f}")
    return cell._replace(spreads=(*cell.spreads, over_clients))


def worst(method: MethodRuns) -> Cell:
    """Return the mean of each seed's lowest: the lowest of all seeds would fall with every seed that is added."""
    return _last(method, f"{_MIXED}_worst")


def sent(method: MethodRuns) -> Cell:
    """Return the bytes of all rounds, mean over the seeds."""
    return _total(method, "bytes_sent", "B")


def _last(method: MethodRuns, name: str) -> Cell:
    """Return a number of the last evaluated round, in %."""
    return _over_seeds([None if (v := run.last(name)) is None else 100 * v for run in method.runs])


def _total(method: MethodRuns, name: Literal["bytes_sent", "flops"], unit: str) -> Cell:
    mean = fmean(run.summary[name] for run in method.runs)
    return Cell(mean, scaled(mean, unit))


def _busiest(method: MethodRuns) -> Cell:
    """Return up or down, whichever is more; beside it both."""
    up = max(run.summary["busiest_bytes_up"] for run in method.runs)
    down = max(run.summary["busiest_bytes_down"] for run in method.runs)
    parts = (f"up {scaled(up, 'B')}", f"down {scaled(down, 'B')}")
    return Cell(max(up, down), scaled(max(up, down), "B"), parts=parts)


def _over_seeds(values: Sequence[float | None], whole: bool = False) -> Cell:
    """Return the mean over the seeds, if all of them have the number."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return Cell(None, f"{len(known)} of {len(values)} seeds" if known else "-")
    mean = fmean(known)
    if len(known) == 1:
        return Cell(mean, f"{mean:.0f}" if whole else f"{mean:,.1f}")
    return Cell(mean, f"{mean:,.1f}", (("seeds", f"{pstdev(known):,.1f}"),))
