"""What a comparison is made of, runs as plain data, and its columns: one cell per method, the best ones marked."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from ...core.errors import UserError
from ...core.schema import (
    FINETUNED,
    TRAIN_AFTER_MIX,
    TRAIN_AFTER_TRAIN,
    ClientSummary,
    Config,
    MetricInfo,
    MetricSummary,
    Row,
    SelectionSummary,
    Summary,
    global_column,
    number,
    personal_column,
)
from ...core.schema_several import Tuned
from ...core.spec import scaled
from ...core.units import metrics_of, personal_summary, scale, unit, words, written
from ..rows import rounds_to
from ..selection import reported
from .meanings import MEANS, POINTS, TARGET, meanings


@dataclass(frozen=True, eq=False)
class RunData:
    """One run without its models."""

    config: Config
    history: Sequence[Row]
    summary: Summary
    client_summary: ClientSummary  # {} before the run is finished
    finished: bool = True
    tuned: Tuned | None = None  # how its settings were chosen, where trials chose them

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    @property
    def selection(self) -> SelectionSummary | None:
        """How the reported round was chosen; None where it is the last one."""
        return self.summary.get("selection")

    def last(self, name: str) -> float | None:
        """Return a number of the reported round, or of the last one that has measured it."""
        apart = {} if self.selection is None else self.selection.get("row", {})
        chosen: Any = {**(reported(self.config, self.history) or {}), **apart}
        if (known := number(chosen, name)) is not None:
            return known
        return next((v for row in reversed(self.history) if (v := number(row, name)) is not None), None)

    @property
    def evaluated(self) -> int:
        """The reported round, by default the last whose models were evaluated; where nothing is measured, the last."""
        if self.selection is not None and self.selection["round"] is not None:
            return self.selection["round"]
        name = "" if self.metric is None else global_column(self.metric)
        known = (row["round"] for row in reversed(self.history) if row.get(name) is not None)
        return next(known, len(self.history))

    @property
    def metric(self) -> MetricInfo | None:
        """The metric that decides, where there is one."""
        return next(iter(metrics_of(self.config)), None)


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """One method: one run per seed."""

    label: str
    runs: Sequence[RunData]

    @property
    def metric(self) -> MetricInfo | None:
        """The metric that decides, where there is one."""
        return self.runs[0].metric

    @property
    def dealt_anew(self) -> bool:
        """Whether a number is another client in every seed, with other samples; clients that have names stay."""
        hands = {run.config["fingerprints"]["data"] for run in self.runs}
        return len(hands) > 1 and len({_who(run) for run in self.runs}) > 1

    def summaries(self, point: str) -> list[MetricSummary | None]:
        """Return what is known of the personal metric, per seed."""
        metric = self.metric
        return [None if metric is None else personal_summary(run.summary, metric).get(point) for run in self.runs]

    @property
    def end(self) -> str:
        """When the models are measured that clients end with: fine-tuned, where the method tunes them."""
        return FINETUNED if any(self.summaries(FINETUNED)) else "after_mix"

    def finals(self, point: str) -> list[float]:
        """Return the mean personal metric of the last evaluated round in its unit, per seed; [] unless all have it."""
        metric, known = self.metric, [found["final"] for found in self.summaries(point) if found is not None]
        return [scale(metric) * v for v in known] if metric is not None and len(known) == len(self.runs) else []


def _who(run: RunData) -> tuple[object, ...]:
    """Return what tells whose numbers a run has: names, or the seeds that deal the samples and keep clients out."""
    if names := run.client_summary.get("names"):
        return tuple(names)
    return run.config["data"].get("seed"), run.seed if run.config.get("holdout_clients") else None


class Spread(NamedTuple):
    """How far a number spreads: the standard deviation."""

    over: Literal["seeds", "clients"]
    value: float
    text: str


class Cell(NamedTuple):
    """A number as it is written; without a value it cannot be the best, and is sorted last."""

    value: float | None
    text: str
    spreads: tuple[Spread, ...] = ()  # the one first that is shown where one has room: over the seeds if several
    parts: tuple[str, ...] = ()  # what else is written beside it where there is room
    best: bool = False  # of its column, as far as the printed digits tell

    @property
    def spread(self) -> Spread | None:
        """How far it spreads, over the seeds if there are several, else over the clients."""
        return self.spreads[0] if self.spreads else None


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


def check_target(target: float | None, metric: MetricInfo | None) -> float | None:
    """Return the target in the metric's unit; unless one is given, 80 %, where that is its unit, and none elsewhere.

    What no mean of the metric can reach, or every one does, is refused.
    """
    if metric is None:
        if target is not None:
            raise UserError(f"--target {target:g} is of a metric, and nothing is measured here: leave it out")
        return None
    if target is not None and metric["percent"] and not 0 < target <= 100:
        raise UserError(f"--target {target:g} is no {words(metric)} in %: choose one above 0 and up to 100")
    return TARGET if target is None and metric["percent"] else target


def columns(methods: Sequence[MethodRuns], target: float | None) -> list[Column]:
    """Return all columns; fine-tuning only where a method does so, metrics only where there is one."""
    metric = methods[0].metric
    seconds = [_over_seeds([run.summary["seconds"] for run in m.runs], "{:,.1f}".format) for m in methods]
    flops, busiest = [_total(m, "flops", "FLOP") for m in methods], [_busiest(m) for m in methods]
    work = "without the final fine-tuning" if any(m.end == FINETUNED for m in methods) else "training"
    every = [  # the busiest node last: a window of usual width ends before it
        *([] if metric is None else _metric_columns(methods, metric, target)),
        Column("sent", "bytes", "", min, 6, MEANS["sent"], [sent(m) for m in methods]),
        Column("FLOPs", work, "", min, 1, MEANS["flops"], flops),
        Column("seconds", work, "", min, 2, MEANS["seconds"], seconds),
        Column("busiest node", "bytes per round", "", min, 0, MEANS["busiest"], busiest),
    ]
    return [column.marked() for column in every]


def _metric_columns(methods: Sequence[MethodRuns], metric: MetricInfo, target: float | None) -> list[Column]:
    """Return the columns of the metric that decides: of personal models, of the global one, and rounds to a target.

    Those that were measured beside it have one column each.
    """
    higher, name = metric["higher_is_better"], words(metric)
    best, of, means = (max if higher else min), unit(metric), meanings(metric)

    def made(title: str, what: str, keep: int, key: str, last: str) -> Column:
        return Column(title, what, of, best, keep, means[key], [_last(m, last, metric) for m in methods])

    def point(point: str, keep: int) -> Column:
        cells = [personal_cell(m, point) for m in methods]
        return Column(POINTS[point], f"personal {name}", of, best, keep, means[point], cells)

    known = {key for m in methods for run in m.runs for key in personal_summary(run.summary, metric)}
    tenth, mixed = f"{10 if higher else 90}th percentile", personal_column(metric, "after_mix")
    return [
        point("after_mix", 10),
        point("after_train", 9),
        *([point(FINETUNED, 8)] if FINETUNED in known else []),
        *(point(train, 2) for train in (TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN) if train in known),
        made("worst client", "after aggregation", 7, "worst", f"{mixed}_worst"),
        made(tenth, "after aggregation", 3, "p10", f"{mixed}_p10"),
        *([made("weighted", "after aggregation", -1, "weighted", f"{mixed}_weighted")] if _unequal(methods) else []),
        made("global", name, 4, "global", global_column(metric)),
        *(_further_column(methods, further) for further in metrics_of(methods[0].runs[0].config)[1:]),
        *_rounds_column(methods, metric, target, means["rounds"]),
    ]


def _unequal(methods: Sequence[MethodRuns]) -> bool:
    """Whether clients have different numbers of test samples, so that a weighted mean is another one."""
    return any(len(set(run.client_summary.get("test_samples", ()))) > 1 for m in methods for run in m.runs)


def _further_column(methods: Sequence[MethodRuns], metric: MetricInfo) -> Column:
    """Return another metric than the one that decides, of personal models after aggregation."""
    cells = [_last(m, personal_column(metric, "after_mix"), metric) for m in methods]
    better = "higher" if metric["higher_is_better"] else "lower"
    means = f"the personal {words(metric)} after aggregation; {better} is better"
    return Column(
        words(metric), "after aggregation", unit(metric), max if metric["higher_is_better"] else min, 4, means, cells
    )


def _rounds_column(
    methods: Sequence[MethodRuns], metric: MetricInfo, target: float | None, means: str
) -> Iterator[Column]:
    """Yield the rounds to a target: one that was typed, or 80 %; nobody knows one of another unit beforehand."""
    goal = check_target(target, metric)
    if goal is None:
        return
    every = [[rounds_to(run.history, metric, goal / scale(metric)) for run in m.runs] for m in methods]
    cells = [_over_seeds(found, "{:.0f}".format if len(found) == 1 else "{:,.1f}".format) for found in every]
    yield Column(f"rounds to {goal:g} {unit(metric)}".rstrip(), "after aggregation", "", min, 5, means, cells)


def personal_cell(method: MethodRuns, point: str) -> Cell:
    """Return the mean over clients and seeds, with both spreads."""
    metric, every = method.metric, method.summaries(point)
    if metric is None:
        return Cell(None, "-")
    cell = _over_seeds([None if a is None else scale(metric) * a["final"] for a in every], written(metric))
    if cell.value is None:
        return cell
    far = scale(metric) * fmean(a["std"] for a in every if a is not None)
    return cell._replace(spreads=(*cell.spreads, Spread("clients", far, written(metric)(far))))


def worst(method: MethodRuns) -> Cell:
    """Return the mean of each seed's worst: the worst of all seeds would fall with every seed that is added."""
    metric = method.metric
    return Cell(None, "-") if metric is None else _last(method, personal_column(metric, "after_mix_worst"), metric)


def sent(method: MethodRuns) -> Cell:
    """Return the bytes of all rounds, mean over the seeds."""
    return _total(method, "bytes_sent", "B")


def _last(method: MethodRuns, name: str, metric: MetricInfo) -> Cell:
    """Return a number of the last evaluated round, in the unit of a metric."""
    values = [None if (v := run.last(name)) is None else scale(metric) * v for run in method.runs]
    return _over_seeds(values, written(metric))


def _total(method: MethodRuns, name: Literal["bytes_sent", "flops"], unit: str) -> Cell:
    mean = fmean(run.summary[name] for run in method.runs)
    return Cell(mean, scaled(mean, unit))


def _busiest(method: MethodRuns) -> Cell:
    """Return up or down, whichever is more; beside it both."""
    up = max(run.summary["busiest_bytes_up"] for run in method.runs)
    down = max(run.summary["busiest_bytes_down"] for run in method.runs)
    parts = (f"up {scaled(up, 'B')}", f"down {scaled(down, 'B')}")
    return Cell(max(up, down), scaled(max(up, down), "B"), parts=parts)


def _over_seeds(values: Sequence[float | None], write: Callable[[float], str]) -> Cell:
    """Return the mean over the seeds, if all of them have the number."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return Cell(None, f"{len(known)} of {len(values)} seeds" if known else "-")
    mean = fmean(known)
    if len(known) == 1:
        return Cell(mean, write(mean))
    far = stdev(known)
    return Cell(mean, write(mean), (Spread("seeds", far, write(far)),))
