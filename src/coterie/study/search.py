"""Which settings to try next: all of a grid, some of it at random, or where Optuna's estimator expects the best.

A search is asked for settings, told of scores while a trial runs, and told of its end. What it asks for depends on its
seed and on what it was told, and on nothing else: told once more of finished trials, it goes on where it was.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, Protocol

from ..core import rng
from ..core.errors import UserError
from ..core.extras import import_extra

Grid = Mapping[str, Sequence[str]]
"""The values of every setting, as they are typed."""
Texts = dict[str, str]
"""One value of every setting."""
SamplerName = Literal["grid", "random", "tpe"]
MOST_AGAIN = 20  # times that an estimator may ask for what it knows
STARTUP = 5  # trials before which nothing is ended early: there is nothing to compare with


class Search(Protocol):
    """Chooses settings, trial after trial. Higher scores are better."""

    def ask(self) -> Texts | None:
        """Return the settings of the next trial; None where everything was tried."""

    def ends(self, step: int, score: float) -> bool:
        """Take a score of the trial that runs, and return whether to end it early."""

    def tell(self, score: float | None) -> None:
        """Take the score of the trial; None where it has none, because it diverged or was ended."""


class ListedSearch:
    """Settings in an order that is known from the beginning."""

    def __init__(self, order: Sequence[Texts]) -> None:
        self._order: Iterator[Texts] = iter(order)

    def ask(self) -> Texts | None:
        """Return the next of the list."""
        return next(self._order, None)

    def ends(self, step: int, score: float) -> bool:
        """End nothing: every listed trial is run to its end."""
        return False

    def tell(self, score: float | None) -> None:
        """Take the score, which changes nothing."""


class TreeParzenSearch:
    """Optuna's tree-structured Parzen estimator; a trial that is below the median of those before it ends early."""

    def __init__(self, grid: Grid, seed: int) -> None:
        optuna = import_extra("optuna", "tune", "the sampler tpe")
        optuna.logging.set_verbosity(logging.WARNING)
        self._grid = {key: tuple(values) for key, values in grid.items()}
        self._left = combinations(grid)
        self._known: dict[tuple[str, ...], float | None] = {}
        self._end: Any = {True: optuna.trial.TrialState.FAIL, False: optuna.trial.TrialState.PRUNED}
        sampler = optuna.samplers.TPESampler(seed=rng.key(seed, "tpe") % 2**32, n_startup_trials=STARTUP)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=1)
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)

    def ask(self) -> Texts | None:
        """Return what the estimator expects to be good. What was tried before costs no training: it is told again."""
        for again in range(MOST_AGAIN):
            if not self._left:
                return None
            if again == MOST_AGAIN - 1:  # it insists on what is known
                self._study.enqueue_trial(self._left[0])
            self._trial, self._ended = self._study.ask(), False
            asked = {key: self._trial.suggest_categorical(key, values) for key, values in self._grid.items()}
            if asked in self._left:
                break
            self._ended = self._known[tuple(asked.values())] is None
            self.tell(self._known[tuple(asked.values())])
        self._left.remove(asked)
        return asked

    def ends(self, step: int, score: float) -> bool:
        """Return whether the trial is below the median of the others at this step."""
        self._trial.report(score, step)
        self._ended = bool(self._trial.should_prune())
        return self._ended

    def tell(self, score: float | None) -> None:
        """Let the estimator know."""
        self._known[tuple(self._trial.params.values())] = score
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(self._trial, score, None if score is not None else self._end[not self._ended])


def search(sampler: SamplerName, grid: Grid, trials: int | None, seed: int) -> Search:
    """Return the search of that name for so many trials; None: as many as the grid has.

    >>> tried = search("grid", {"lr": ["0.1", "0.2"], "epochs": ["1"]}, None, seed=0)
    >>> tried.ask(), tried.ask(), tried.ask()
    ({'lr': '0.1', 'epochs': '1'}, {'lr': '0.2', 'epochs': '1'}, None)
    """
    every = combinations(grid)
    if sampler == "grid":
        if trials is not None and trials < len(every):
            raise UserError(
                f"the grid has {len(every)} settings and the budget is for {trials}: raise --budget, leave values out, "
                "or take --sampler random"
            )
        return ListedSearch(every)
    if trials is None:
        raise UserError(f"--sampler {sampler} tries a part of the grid: say how much with --budget, as in --budget 20")
    if sampler == "tpe":
        return TreeParzenSearch(grid, seed)
    order = rng.generator(seed, "search").permutation(len(every))[:trials]
    return ListedSearch([every[i] for i in order])


def combinations(grid: Grid) -> list[Texts]:
    """Return all settings of a grid, the last one changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
