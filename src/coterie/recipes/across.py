"""Numbers that papers print about several runs: speed-ups, leads of one method over others, differences of graphs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from ..core.custom import is_own
from .outcome import Rows, value
from .recipe import Recipe

Runs = Mapping[tuple[int, str], Sequence[Rows]]
"""The histories of a recipe's runs, one a seed, by case, counted from 1, and method."""

Number = float | None
"""None where it was not reached, or where runs it needs are not there."""

Across = Callable[[Recipe, Runs, int | None, str, str], list[Number]]
"""(recipe, runs, case, method, metric) -> one number a seed."""


def of_runs(recipe: Recipe, runs: Runs, case: int, method: str, metric: str) -> list[Number]:
    """A number of a method's own runs, one a seed; none where it was not run."""
    return [value(metric, recipe, recipe.entry(method), rows) for rows in runs.get((case, method), ())]


def seeds(runs: Runs) -> int:
    """How many runs a method has in a case."""
    return max((len(each) for each in runs.values()), default=0)


def _speedup(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """The rounds of the slowest method of the experiment that reaches the target, over its own."""
    assert case is not None
    counted = metric.replace("speedup_to", "rounds_to")
    own = of_runs(recipe, runs, case, method, counted)
    every = [of_runs(recipe, runs, n, m, counted) for n, m in runs if n == case and not is_own(m)] or [own]
    slowest = [max((t for t in seed if t is not None), default=None) for seed in zip(*every, strict=True)]
    return [a / b if a is not None and b is not None else None for a, b in zip(slowest, own, strict=True)]


def _mean_speedup(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """Over all cases; None unless the method reaches the target in every one."""
    each = [
        _speedup(recipe, runs, number, method, f"speedup_to_{recipe.cases[number - 1].target}")
        for number in recipe.find()
        if (number, method) in runs
    ]
    if len(each) < len(recipe.cases):
        return [None] * seeds(runs)
    return [fmean(s) if None not in s else None for s in zip(*each, strict=True)]


def _lead(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """How far a method is ahead of the one that the metric ends with, in the main number of the experiment."""
    assert case is not None
    rival = metric.rpartition("_over_")[2].lower()
    return _minus(*(of_runs(recipe, runs, case, m, recipe.protocol.metric) for m in (method, rival)))


def _ring_to_full(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    """How much better everybody with everybody is than a ring, where clients hold few classes."""
    full, ring = (_case(recipe, "pathological", graph) for graph in ("full", "ring"))
    return _minus(*(of_runs(recipe, runs, number, method, recipe.protocol.metric) for number in (full, ring)))


def _margins(recipe: Recipe, runs: Runs) -> list[list[float]]:
    """By seed: how far each of the paper's own methods is ahead of each other one, in all Dirichlet cases."""
    own = ("dfedalt", "dfedsalt")
    leads = [
        _minus(*(of_runs(recipe, runs, number, m, recipe.protocol.metric) for m in (method, rival)))
        for number, case in enumerate(recipe.cases, 1)
        if case.partition.startswith("dirichlet")
        for method in own
        for rival in case.methods
        if rival not in own and not is_own(rival)
    ]
    return [[lead for lead in seed if lead is not None] for seed in zip(*leads, strict=True)] if all(leads) else []


def _least_margin(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    return [min(leads, default=None) for leads in _margins(recipe, runs)]


def _largest_margin(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[Number]:
    return [max(leads, default=None) for leads in _margins(recipe, runs)]


def _minus(first: Sequence[Number], second: Sequence[Number]) -> list[Number]:
    """Seed by seed; nothing where one of them was not run."""
    both = zip(first, second, strict=True) if first and second else ()
    return [a - b if a is not None and b is not None else None for a, b in both]


def _case(recipe: Recipe, *words: str) -> int:
    """The number of the case whose label has all these words."""
    return next(n for n, case in enumerate(recipe.cases, 1) if all(word in case.label for word in words))


ACROSS: Mapping[str, Across] = {
    "speedup_to": _speedup,
    "speedup_mean": _mean_speedup,
    "accuracy_margin_over_DFedAvgM": _lead,
    "personal_accuracy_gap_ring_full": _ring_to_full,
    "personal_accuracy_margin_min": _least_margin,
    "personal_accuracy_margin_max": _largest_margin,
}
"""By metric, without the target it ends with."""


def across(metric: str) -> Across | None:
    """What makes a number of several runs; None for one of a single run."""
    return ACROSS.get(metric) or (_speedup if metric.startswith("speedup_to_") else None)
