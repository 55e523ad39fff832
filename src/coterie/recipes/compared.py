"""Our numbers beside the published ones: of one run, of several, or counted without any."""

from collections.abc import Iterator
from statistics import fmean, pstdev
from typing import NamedTuple

from .across import Runs, across, of_runs
from .outcome import measured
from .published import Published, published
from .recipe import Recipe
from .sizes import counted, size

Cell = tuple[int, str]
"""A case, counted from 1, and a method."""


class Compared(NamedTuple):
    """One number, ours for every seed and the published one."""

    case: int | None  # None: over several cases
    method: str  # empty: over several methods
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

    @property
    def who(self) -> str:
        """The method, or how the paper names several."""
        return self.method or ("" if self.published is None else self.published.printed)


def told(p: Published) -> bool:
    """Whether some run, several of them, or the models alone give the number."""
    return measured(p.metric) or counted(p.metric) or across(p.metric) is not None


def compared(recipe: Recipe, runs: Runs) -> list[Compared]:
    """What the runs gave, cell by cell, and then what several of them gave together."""
    cells = runs or {(n, m): [] for n in recipe.find() for m in recipe.cases[n - 1].methods}
    of_cells = [
        Compared(n, m, metric, p, _ours(recipe, runs, n, m, metric))
        for n, m in cells
        for metric, p in _wanted(recipe, (n, m))
    ]
    several = [p for p in published(recipe.name) if p.case is None and not p.reason]
    run = {m for _, m in cells}
    return of_cells + [
        Compared(None, p.method, p.metric, p, _ours(recipe, runs, None, p.method, p.metric))
        for p in several
        if not p.method or p.method in run
    ]


def _wanted(recipe: Recipe, cell: Cell) -> Iterator[tuple[str, Published | None]]:
    """The published numbers of a cell; without any, those of the experiment. Rounds to a target bring a speed-up."""
    theirs = [p for p in published(recipe.name) if ((p.case, p.method), p.reason) == (cell, "")]
    target = recipe.cases[cell[0] - 1].target
    if theirs:
        yield from ((p.metric, p) for p in theirs if told(p))
    else:
        yield from ((metric, None) for metric in recipe.protocol.metrics(target))
    speedup = f"speedup_to_{target}"
    if recipe.protocol.metric == "rounds_to" and speedup not in (p.metric for p in theirs):
        yield speedup, None


def _ours(recipe: Recipe, runs: Runs, case: int | None, method: str, metric: str) -> list[float | None]:
    several = across(metric)
    if several is not None:
        return several(recipe, runs, case, method, metric)
    assert case is not None
    if counted(metric):
        return [size(recipe, case, method, metric)]
    return of_runs(recipe, runs, case, method, metric)
