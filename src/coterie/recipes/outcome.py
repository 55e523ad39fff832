"""A run's numbers as the papers print them, and beside them what was published."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from .published import Published, published
from .recipe import Entry, Recipe

Rows = Sequence[Mapping[str, Any]]
"""The history of a run."""

POINTS = {
    "after_mix": "after mixing",
    "after_train": "after local training",
    "after_finetune": "after fine-tuning",
}
_CHOICES: dict[str, Callable[[Sequence[float]], float]] = {
    "best": max,
    "smallest": min,
    "final": lambda values: values[-1],
    "steady": lambda values: fmean(values[-max(1, len(values) // 5) :]),
    "first": max,  # rounds to a target are counted apart; the accuracy beside them is the best one
}
WHEN = {
    "best": "best round",
    "smallest": "smallest of all rounds",
    "final": "last round",
    "steady": "mean of the last fifth of the rounds",
    "first": "best round",
}


class Compared(NamedTuple):
    """One number, ours for every seed and the published one."""

    case: int
    method: str
    metric: str
    published: Published | None
    ours: list[float | None]

    @property
    def mean(self) -> float | None:
        """Over the seeds; None unless all have it."""
        known = [value for value in self.ours if value is not None]
        return fmean(known) if known and len(known) == len(self.ours) else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over several seeds."""
        return pstdev(self.ours) if len(self.ours) > 1 and self.mean is not None else None  # type: ignore[type-var]

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        theirs = None if self.published is None else self.published.value
        return None if self.mean is None or theirs is None else self.mean - theirs


def compared(recipe: Recipe, case: int, method: str, runs: Sequence[Rows]) -> list[Compared]:
    """What a method gave in a case; without published numbers, the metric of the experiment."""
    entry = recipe.entry(method)
    theirs = [p for p in published(recipe.name) if (p.case, p.method, p.reason) == (case, method, "")]
    wanted: list[tuple[str, Published | None]] = [(p.metric, p) for p in theirs if measured(p.metric)]
    if not wanted:
        wanted = [(metric, None) for metric in recipe.protocol.metrics(recipe.cases[case - 1].target)]
    return [Compared(case, method, m, p, [value(m, recipe, entry, rows) for rows in runs]) for m, p in wanted]


def measured(metric: str) -> bool:
    """Whether a run tells the number the paper prints."""
    return metric.startswith("rounds_to_") or metric in _FIELDS or metric == "comm_gparams"


def unmeasured(recipe: Recipe, cells: Iterable[tuple[int, str]]) -> list[str]:
    """The metrics that were published for these cases and methods, and that no run tells.

    >>> from .recipe import load
    >>> unmeasured(load("dfedsam-t1"), [(1, "dfedsam")])
    ['global_accuracy_train', 'generalization_gap']
    """
    chosen = set(cells)
    numbers = (p for p in published(recipe.name) if (p.case, p.method) in chosen and p.value is not None)
    return list(dict.fromkeys(p.metric for p in numbers if not p.reason and not measured(p.metric)))


# The field of a row and the factor that makes the printed unit of it; {point}: where the method's accuracy is taken.
_FIELDS = {
    "personal_accuracy": ("personal_accuracy_{point}", 100.0),
    "global_accuracy": ("global_accuracy_local", 100.0),  # one model for all, on each client's own samples
    "test_accuracy": ("global_accuracy", 100.0),  # on all samples
    "global_accuracy_val": ("global_accuracy", 100.0),
    "perplexity": ("perplexity_chunks", 1.0),
    "min_singular_value": ("smallest_singular_value", 1.0),
    "gradient_norm": ("gradient_norm", 1.0),
    "sharpness": ("sharpness", 1.0),
}


def value(metric: str, recipe: Recipe, entry: Entry, rows: Rows) -> float | None:
    """One number of one run; None where it was not reached or not measured."""
    if metric == "comm_gparams":
        return float(sum(row["parameters_sent"] for row in rows)) / 2e9  # one of the two directions
    if metric.startswith("rounds_to_"):
        return _rounds_to(float(metric.rpartition("_")[2]), entry, rows)
    field, factor = _FIELDS[metric]
    known = [v for row in rows if (v := _field(row, field.format(point=entry.point))) is not None]
    return factor * _CHOICES[recipe.protocol.over_rounds](known) if known else None


def _field(row: Mapping[str, Any], field: str) -> float | None:
    if field == "gradient_norm":  # the theorems for m of n have m/n G_v, of which runs with another m are no measure
        return sqrt(row["gradient_norm_shared"] + row["gradient_norm_personal"])
    found: float | None = row.get(field)
    return found


def _rounds_to(target: float, entry: Entry, rows: Rows) -> float | None:
    field = f"personal_accuracy_{entry.point}"
    share = target / 100  # 100 times an accuracy could fall short of it by rounding
    reached = (row["round"] for row in rows if row.get(field) is not None and row[field] >= share)
    return next(reached, None)


def protocol(metric: str, recipe: Recipe, entry: Entry) -> str:
    """What a number is: where, when, over whom.

    >>> from .recipe import load
    >>> recipe = load("dfedalt-t1")
    >>> protocol("personal_accuracy", recipe, recipe.entry("fedavg"))
    'personal accuracy in % after local training, best round, all clients, each on test samples in its own proportions'
    """
    when, whom = WHEN[recipe.protocol.over_rounds], recipe.protocol.clients
    if metric == "comm_gparams":
        return "parameters sent in one direction, in 1e9, over all rounds"
    if metric.startswith("rounds_to_"):
        of = "personal accuracy" if recipe.protocol.metric in ("personal_accuracy", "rounds_to") else "accuracy"
        goal = metric.rpartition("_")[2]
        return f"rounds until {goal} % {of} {POINTS[entry.point]}, the first one counted as 1, {whom}"
    if metric in ("personal_accuracy", "global_accuracy", "test_accuracy"):
        point = entry.point if metric == "personal_accuracy" else "after_mix"
        return f"{metric.replace('_', ' ')} in % {POINTS[point]}, {when}, {whom}"
    if metric == "global_accuracy_val":
        return f"global accuracy in % after mixing, {when}, the mean of all models on all test samples"
    return f"{metric.replace('_', ' ')} after mixing, {when}, {whom}"
