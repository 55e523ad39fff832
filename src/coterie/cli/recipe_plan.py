"""From what was typed to the runs of a recipe: which cases and methods, changed how, and what is reported of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ..algorithms import Algorithm
from ..core.arguments import accept
from ..core.custom import folder_name
from ..core.errors import UserError
from ..core.schema import MeasureName, Select
from ..data.validation import with_validation
from ..engines import Serial
from ..measure.selection import LAST, PER_CLIENT
from ..models.model import Model, cross_entropy
from ..recipes import Recipe
from ..recipes.changes import Changes, apply_changes, shortenings
from ..recipes.metrics import WHEN
from ..track import Tracker
from ..training.chosen import check_selection
from ..training.experiment import Experiment
from ..training.first import PER_CLIENT as OWN_DRAWS
from ..training.first import first_models
from ..training.fit import fit
from ..training.model_check import check_model
from ..training.run import Run
from ..training.search import combinations
from .options import RecipeOptions
from .trials import Tuning

Cell = tuple[int, str]
"""A case, counted from 1, and a method."""


@dataclass(frozen=True)
class RecipePlan:
    """Which runs make up the answer."""

    published: Recipe
    named: Sequence[str]  # the methods of --methods
    options: RecipeOptions
    tuned: Mapping[Cell, Sequence[str]] = field(default_factory=dict)  # settings that trials chose, as they are typed

    @cached_property
    def read(self) -> Recipe:
        """The recipe in the reading that was asked for."""
        return self.published.read(self.options.reading)

    @cached_property
    def reported(self) -> Recipe:
        """The recipe in that reading, with the numbers of the round that --select chooses."""
        if self.options.select is None:
            return self.read
        over = "final" if self.rule == LAST else self.rule
        return replace(self.read, protocol=self.read.protocol._replace(over_rounds=over))

    @cached_property
    def rule(self) -> Select:
        """How the round is chosen whose models are deployed."""
        rule: Select = accept("the command", "select", self.options.given("select").lower(), Select)
        if rule == PER_CLIENT:
            raise UserError(f"a recipe reports one round for all clients: leave --select {rule} out")
        return rule

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it will be run."""
        o = self.options
        changes = Changes(o.rounds, o.clients, o.data, o.model, o.partition, o.validation, o.set)
        changed = apply_changes(self.read, changes, self.methods)
        cases = list(changed.cases)
        for (number, method), typed in self.tuned.items():
            chosen = apply_changes(replace(changed, cases=cases), Changes(set=typed), [method])
            cases[number - 1] = chosen.cases[number - 1]
        return replace(changed, cases=tuple(cases))

    @property
    def record(self) -> list[MeasureName]:
        """The further metrics: what the experiment needs, and what was asked for."""
        return list(dict.fromkeys([*self.recipe.record, *self.options.record]))

    @property
    def seeds(self) -> int:
        """How many runs a number is the mean of."""
        return self.options.seeds or self.published.seeds

    @cached_property
    def cells(self) -> list[Cell]:
        """Cases, counted from 1, and methods."""
        recipe = self.published
        pairs = [(n, m) for n in recipe.find(self.options.case) for m in recipe.cases[n - 1].methods]
        if self.options.methods is None:
            return pairs
        if not self.named:
            raise UserError(f"--methods names none: choose among {', '.join(recipe.methods)}, or leave it out")
        for method in self.named:
            why = recipe.entry(method).differs or "it was not run there"
            if method not in (m for _, m in pairs):
                raise UserError(f"{method} cannot be run in this case ({why}): choose another --case or method")
        return [(n, m) for n, m in pairs if m in self.named]

    @property
    def methods(self) -> list[str]:
        """The methods of all cells."""
        return list(dict.fromkeys(m for _, m in self.cells))

    @cached_property
    def runs(self) -> list[str]:
        """The folders of all runs, in the order in which they are trained."""
        return [run_folder(n, m, seed) for n, m in self.cells for seed in range(self.seeds)]

    @property
    def shortened(self) -> list[str]:
        """What is smaller or other than published."""
        words = shortenings(self.read, self.recipe, self.cells, self.seeds)
        every, over, usual = (
            self.options.evaluate_every or 1,
            *(r.protocol.over_rounds for r in (self.reported, self.read)),
        )
        words += [f"evaluated every {every} rounds"] if every > 1 else []
        return words + ([f"{WHEN[over]} instead of {WHEN[usual]}"] if over != usual else [])

    def experiments(self, trials: "Sequence[Tuning[CellPlan]]" = ()) -> Iterator[tuple[Cell, Experiment]]:
        """Yield what would be trained with the first seed: every cell, and every trial of its settings."""
        for number in dict.fromkeys(n for n, _ in self.cells):
            case, options = self.recipe.cases[number - 1], self.options
            federation = self.recipe.federation(number, data_dir=options.data_dir)
            module = self.recipe.model(number, federation)
            model = Model(module, cross_entropy)
            check_model(model, federation)
            tried = [t.with_settings(texts) for t in trials for texts in combinations(t.grid)]
            plans = [CellPlan(self, *cell) for cell in self.cells] + tried
            for cell in (cell for cell in plans if cell.number == number):
                kept = with_validation(federation, cell.validation, 0)
                init, algorithm = cell.plan.recipe.init(cell.method, number), cell.algorithm
                experiment = Experiment.of(model, kept, algorithm, Serial(), 0, case.rounds, 0.0, self.record)
                first = first_models(module, model, algorithm, 0) if init == OWN_DRAWS else None
                yield cell.key, replace(experiment, first=first, evaluate_every=options.evaluate_every or 1)

    def check(self, trials: "Sequence[Tuning[CellPlan]]" = ()) -> None:
        """Refuse whatever cannot be run before the first run begins."""
        for _, experiment in self.experiments(trials):
            check_selection(experiment, self.rule, None)
            experiment.check()
        for t in trials:
            t.check_begun()

    def train(
        self,
        number: int,
        method: str,
        seed: int,
        folder: Path | None,
        shown: str | bool,
        trackers: Sequence[Tracker],
    ) -> Run:
        """Train one run."""
        case = self.recipe.cases[number - 1]
        federation = self.recipe.federation(number, seed, self.options.data_dir)
        return fit(
            self.recipe.model(number, federation, seed),
            federation,
            self.recipe.algorithm(method, number),
            rounds=case.rounds,
            seed=seed,
            engine=self.options.given("engine"),
            device=self.options.given("device"),
            out=folder,
            resume=self.options.resume,
            evaluate_every=self.options.evaluate_every or 1,
            validation=case.validation,
            select=self.rule,
            init=self.recipe.init(method, number),
            record=self.record,
            precision=self.options.given("precision"),
            progress=shown,
            trackers=trackers,
            time_limit=self.options.for_,
        )


@dataclass(frozen=True)
class CellPlan:
    """One method in one case of a recipe, as trials of its settings see it."""

    plan: RecipePlan
    number: int
    method: str

    @property
    def key(self) -> Cell:
        """The case and the method."""
        return self.number, self.method

    @property
    def options(self) -> RecipeOptions:
        """The options of the command."""
        return self.plan.options

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.plan.recipe.cases[self.number - 1].rounds

    @property
    def validation(self) -> float:
        """The part of every client's training samples that is kept out of training."""
        return self.plan.recipe.cases[self.number - 1].validation

    @property
    def first_seed(self) -> int:
        """The seed of the first run; the seeds of a recipe count from it."""
        return 0

    @property
    def algorithm(self) -> Algorithm:
        """The method with its settings."""
        return self.plan.recipe.algorithm(self.method, self.number)

    def with_options(self, **changed: Any) -> Self:
        """Return the cell with other options."""
        return replace(self, plan=replace(self.plan, options=replace(self.options, **changed)))

    def with_settings(self, typed: Sequence[str]) -> Self:
        """Return the cell with settings that a trial has."""
        return replace(self, plan=replace(self.plan, tuned={**self.plan.tuned, self.key: typed}))

    def titled(self, method: str) -> str:
        """Return what the progress of a method is called."""
        return f"case {self.number}, {method}"

    def has(self, method: str, key: str) -> bool:
        """Return whether a method has a setting."""
        return key in self.plan.published.entry(method).settings


def run_folder(number: int, method: str, seed: int) -> str:
    """Return the folder of one run."""
    return f"case{number}-{folder_name(method)}-seed{seed}"
