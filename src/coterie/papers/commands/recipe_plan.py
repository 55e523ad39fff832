"""From what was typed to the runs of a recipe: which cases and methods, changed how, and what is reported of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ...algorithms import builder
from ...cli.common.options import Output
from ...cli.common.typed_plan import fixed_settings, tried
from ...core.arguments import accept
from ...core.custom import folder_name
from ...core.errors import UserError
from ...core.schema import MeasureName, Select
from ...data import Federation
from ...measure.selection import LAST, PER_CLIENT
from ...study.grids import grids_of
from ...study.presets import VALIDATION
from ...study.trials import Tuning, by_validation, chosen_settings
from ...track import Tracker
from ...training.prepare import Prepared, prepare
from ...training.settings import RunSettings
from ..recipes import Recipe
from ..recipes.changes import Changes, apply_changes, shortenings
from ..recipes.metrics import WHEN
from .recipe import RecipeOptions

Cell = tuple[int, str]
"""A case, counted from 1, and a method."""


@dataclass(frozen=True)
class RecipePlan:
    """Which runs make up the answer."""

    published: Recipe
    named: Sequence[str]  # the methods of --methods
    options: RecipeOptions
    tuned: Mapping[Cell, Sequence[str]] = field(default_factory=dict)  # settings that trials chose, as they are typed
    latest: dict[tuple[int, int], Federation] = field(default_factory=dict)  # by case and seed, what was read last

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
        changes = Changes(**{f.name: getattr(o, f.name) for f in fields(Changes)})
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
    def warnings(self) -> list[str]:
        """What is known of the reading, for the methods of all cells whose settings are still the reading's."""
        return self.published.warnings(self.options.reading, self.methods, self.recipe)

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

    def check(
        self, folder: Path, trials: "Sequence[Tuning[CellPlan]]" = ()
    ) -> "tuple[dict[Cell, Prepared], list[Tuning[CellPlan]]]":
        """Find every mistake before the first run; return what the first case needs, ready to run.

        Of the other cases nothing is kept, because the data of all cases together may not fit into memory.
        """
        ready, tried = {}, []
        for cell in self.cells:
            ready[cell] = self.prepared(*cell, 0, out=folder / run_folder(*cell, 0))
            cells = [t.prepared() for t in trials if t.plan.key == cell]
            for t in cells:
                t.check_begun()
            if cell[0] != self.cells[0][0]:
                del ready[cell]
                cells = [replace(t, ready={}) for t in cells]
            tried += cells
        return ready, tried

    def prepared(self, number: int, method: str, seed: int, **chosen: Any) -> Prepared:
        """Return one run, checked and ready."""
        case, o = self.recipe.cases[number - 1], self.options
        federation = self.federation(number, seed)
        typed = {**o.typed, "select": self.rule, "record": self.record}
        if chosen.get("out") is not None:  # what is only checked has no folder to go on in
            typed |= {"resume": o.resume, "time_limit": o.for_}
        of_case: dict[str, Any] = {"rounds": case.rounds, "validation": case.validation, "seed": seed}
        settings = RunSettings(**{**typed, **of_case, "init": self.recipe.init(method, number), **chosen})
        model, algorithm = self.recipe.model(number, federation, seed), self.recipe.algorithm(method, number)
        return prepare(model, federation, algorithm, settings)

    def federation(self, number: int, seed: int) -> Federation:
        """Return the data of a case; those that were read last are not read again."""
        key = number, seed
        if key not in self.latest:
            self.latest.clear()
            self.latest[key] = self.recipe.federation(number, seed, self.options.data_dir)
        return self.latest[key]


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

    def with_options(self, **changed: Any) -> Self:
        """Return the cell with other options."""
        return replace(self, plan=replace(self.plan, options=replace(self.options, **changed)))

    def with_settings(self, label: str, values: Mapping[str, Any]) -> Self:
        """Return the cell with settings that a trial has."""
        tuned = {**self.plan.tuned, self.key: typed_settings(label, values)}
        return replace(self, plan=replace(self.plan, tuned=tuned))

    @property
    def title(self) -> str:
        """What remarks call the cell."""
        return f"case {self.number}, {self.method}"

    @property
    def limits(self) -> Mapping[str, Any]:
        """Whether runs go on, and until when."""
        return {"resume": self.plan.options.resume, "time_limit": self.plan.options.for_}

    @property
    def known_settings(self) -> Mapping[str, Collection[str]]:
        """The names of every method's settings."""
        return {m: self.plan.published.entry(m).settings for m in self.plan.methods}

    def prepared(self, label: str, seed: int, **chosen: Any) -> Prepared:
        """Return a run of the cell with this seed, checked and ready."""
        return self.plan.prepared(self.number, label, seed, **chosen)


def run_folder(number: int, method: str, seed: int) -> str:
    """Return the folder of one run."""
    return f"case{number}-{folder_name(method)}-seed{seed}"


def typed_settings(method: str, values: Mapping[str, Any]) -> list[str]:
    """Return settings of a trial as a recipe takes changes of settings."""
    return [f"{method}.{key}={text}" for key, text in values.items()]


def recipe_trials(plan: RecipePlan, folder: Path) -> list[Tuning[CellPlan]]:
    """Return the trials of every method in every case: each cell of the table has settings of its own."""
    options, builders = plan.options, {m: builder(plan.published.entry(m).builder) for m in plan.methods}
    items = [tried(item, "--tune") for item in options.tune]
    grids = grids_of(items, builders, "--tune", fixed_settings(options.set))
    cells = [CellPlan(plan, n, m) for n, m in plan.cells if grids[m]]
    return [
        Tuning(
            cell.with_options(**by_validation(options.select, cell.validation or VALIDATION)),
            cell.method,
            cell.title,
            {key: {text: text for text in values} for key, values in grids[cell.method].items()},  # as recipes take it
            seeds=1,
            sampler="grid",
            trials=None,
            folder=folder / f"tune-case{cell.number}-{folder_name(cell.method)}",
        )
        for cell in cells
    ]


def tuned_recipe(
    plan: RecipePlan, trials: Sequence[Tuning[CellPlan]], output: Output, trackers: Sequence[Tracker]
) -> tuple[RecipePlan, list[str]]:
    """Choose the settings of every cell; return the plan with them, and what to say of it."""
    chosen, notes = chosen_settings(trials, output, trackers)
    tuned = {t.plan.key: typed_settings(t.method, values) for t, values in zip(trials, chosen, strict=True)}
    return replace(plan, tuned=tuned), notes
