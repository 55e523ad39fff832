"""Our numbers beside the published ones: of one run, of several runs (speed-ups, leads), or counted without any."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from ...core.custom import is_own
from .costs import is_size, size
from .metrics import Rows, comes_from_one_run, value
from .published import PublishedNumber, published_numbers
from .recipe import Recipe

ALL = "all cases"  # the label of a number that several runs give together

Runs = Mapping[tuple[int, str], Sequence[Rows]]
"""The histories of a recipe's runs, one per seed, by case, counted from 1, and method."""

Number = float | None
"""None where it was not reached, or where a run that it needs is missing."""

AcrossRuns = Callable[[Recipe, Runs, int | None, str, str], list[Number]]
"""(recipe, runs, case, method, metric) -> one number per seed."""


class RecipeResult(NamedTuple):
    """One number, ours for every seed and the published one."""

    case: int | None  # None: over several cases
    method: str  # empty: over several methods
    metric: str
    published: PublishedNumber | None
    ours: list[Number]

    @property
    def mean(self) -> Number:
        """The mean over the seeds; None unless all have it."""
        return mean_of_all(self.ours)

    @property
    def spread(self) -> Number:
        """The standard deviation over several seeds, which are a sample: divided by one less than there are."""
        return stdev(self.ours) if len(self.ours) > 1 and self.mean is not None else None  # type: ignore[type-var]

    @property
    def difference(self) -> Number:
        """Ours minus theirs."""
        theirs = None if self.published is None else self.published.value
        return None if self.mean is None or theirs is None else self.mean - theirs

    @property
    def who(self) -> str:
        """The method, or how the paper names several."""
        return self.method or ("" if self.published is None else self.published.printed)


def mean_of_all(values: Sequence[Number]) -> Number:
    """Return the mean, or None where a value is missing.

    >>> mean_of_all([1.0, 2.0]), mean_of_all([1.0, None]), mean_of_all([])
    (1.5, None, None)
    """
    known = [v for v in values if v is not None]
    return fmean(known) if known and len(known) == len(values) else None


def digits(value: float, sign: str = "") -> str:
    """Write two digits behind the point, or three that count where these would be noughts; none in the thousands.

    >>> digits(-2.345, "+"), digits(0.00131), digits(0.0), digits(11_173_962)
    ('-2.35', '0.00131', '0.00', '11,173,962')
    """
    if abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.2f}" if abs(value) >= 0.1 or not value else f"{value:{sign}.3g}"


def is_reproducible(p: PublishedNumber) -> bool:
    """Return whether one run, several of them, or the models alone give the number."""
    return comes_from_one_run(p.metric) or is_size(p.metric) or across_runs(p.metric) is not None


def recipe_results(recipe: Recipe, runs: Runs) -> list[RecipeResult]:
    """Return what the runs gave, cell by cell, and then what several of them gave together."""
    cells = runs or {(n, m): [] for n in recipe.find() for m in recipe.cases[n - 1].methods}
    of_cells = [
        RecipeResult(n, m, metric, p, _ours(recipe, runs, n, m, metric))
        for n, m in cells
        for metric, p in _metrics_of_cell(recipe, n, m)
    ]
    several = [p for p in published_numbers(recipe.name) if p.case is None and not p.reason]
    run = {m for _, m in cells}
    return of_cells + [
        RecipeResult(None, p.method, p.metric, p, _ours(recipe, runs, None, p.method, p.metric))
        for p in several
        if not p.method or p.method in run
    ]


def _metrics_of_cell(recipe: Recipe, case: int, method: str) -> Iterator[tuple[str, PublishedNumber | None]]:
    """Yield the published numbers of a cell; without any, those of the experiment. Rounds imply a speed-up."""
    theirs = [p for p in published_numbers(recipe.name) if (p.case, p.method, p.reason) == (case, method, "")]
    target = recipe.cases[case - 1].target
    if theirs:
        yield from ((p.metric, p) for p in theirs if is_reproducible(p))
    else:
        yield from ((metric, None) for metric in recipe.protocol.metrics(target))
    speedup = f"speedup_to_{target}"
    if recipe.protocol.metric == "rounds_to" and speedup not in (p.metric for p in theirs):
        yield speedup, None


def _ours(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    several = across_runs(metric)
    if several is not None:
        return several(recipe, runs, case, method, metric)
    assert case is not None
    return [size(recipe, case, method, metric)] if is_size(metric) else _per_seed(recipe, runs, case, method, metric)


def _per_seed(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Return a number of a method's own runs, one per seed; none where it was not run."""
    assert case is not None
    return [value(metric, recipe, recipe.entry(method), rows) for rows in runs.get((case, method), ())]


def _speedup(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Return the rounds of the slowest method of the experiment that reaches the target, over its own."""
    counted = metric.replace("speedup_to", "rounds_to")
    own = _per_seed(recipe, runs, case, method, counted)
    every = [_per_seed(recipe, runs, n, m, counted) for n, m in runs if n == case and not is_own(m)] or [own]
    slowest = [max((t for t in seed if t is not None), default=None) for seed in zip(*every, strict=True)]
    return [a / b if a is not None and b is not None else None for a, b in zip(slowest, own, strict=True)]


def _mean_speedup(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Return the mean over all cases; None unless the method reaches the target in every one."""
    each = [
        _speedup(recipe, runs, number, method, f"speedup_to_{recipe.cases[number - 1].target}")
        for number in recipe.find()
        if (number, method) in runs
    ]
    if len(each) < len(recipe.cases):
        return [None] * max((len(seeds) for seeds in runs.values()), default=0)
    return [mean_of_all(seed) for seed in zip(*each, strict=True)]


def _lead(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Return how far a method is ahead of the one that the metric ends with, in the experiment's main number."""
    return _difference(recipe, runs, (case, method), (case, metric.rpartition("_over_")[2].lower()))


def _ring_to_full(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Return how much better the full graph is than a ring, where clients hold few classes."""
    full, ring = (
        next(n for n, case in enumerate(recipe.cases, 1) if "pathological" in case.label and graph in case.label)
        for graph in ("full", "ring")
    )
    return _difference(recipe, runs, (full, method), (ring, method))


def _margins(recipe: Recipe, runs: Runs) -> list[list[float]]:
    """Return by seed how far each of the paper's own methods is ahead of each other one, in all Dirichlet cases."""
    own = ("dfedalt", "dfedsalt")
    leads = [
        _difference(recipe, runs, (number, method), (number, rival))
        for number, case in enumerate(recipe.cases, 1)
        if case.partition.startswith("dirichlet")
        for method in own
        for rival in case.methods
        if rival not in own and not is_own(rival)
    ]
    return [[lead for lead in seed if lead is not None] for seed in zip(*leads, strict=True)] if all(leads) else []


def _difference(
    recipe: Recipe, runs: Runs, first: tuple[int | None, str], second: tuple[int | None, str]
) -> list[Number]:
    """Return the main number of one cell minus that of another, per seed; nothing where one was not run."""
    a, b = (_per_seed(recipe, runs, case, method, recipe.protocol.metric) for case, method in (first, second))
    both = zip(a, b, strict=True) if a and b else ()
    return [x - y if x is not None and y is not None else None for x, y in both]


_ACROSS_RUNS: Mapping[str, AcrossRuns] = {
    "speedup_mean": _mean_speedup,
    "accuracy_margin_over_DFedAvgM": _lead,
    "personal_accuracy_gap_ring_full": _ring_to_full,
    "personal_accuracy_margin_min": lambda recipe, runs, *_: [min(x, default=None) for x in _margins(recipe, runs)],
    "personal_accuracy_margin_max": lambda recipe, runs, *_: [max(x, default=None) for x in _margins(recipe, runs)],
}


def across_runs(metric: str) -> AcrossRuns | None:
    """Return the function that computes a number of several runs; None for a number of a single run."""
    return _speedup if metric.startswith("speedup_to_") else _ACROSS_RUNS.get(metric)
