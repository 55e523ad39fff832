"""``coterie recipe run``: a published experiment through the same loop as every other run, beside its numbers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.custom import folder_name, is_own, proper
from ..core.errors import UserError
from ..core.files import write_json
from ..core.spec import scaled
from ..engines import Serial
from ..measure import MeasureName
from ..models.model import Model, Precision, cross_entropy
from ..recipes import READINGS, Recipe, load
from ..recipes.changes import Changes, add_own_methods, apply_changes, shortenings
from ..recipes.costs import SPEED_OF, cost, duration
from ..recipes.results import Runs, recipe_results
from ..report.collect import RECIPE
from ..training.experiment import Experiment
from ..training.first import PER_CLIENT, first_models
from ..training.fit import fit
from .output import Output
from .recipe_still import run_still
from .recipe_table import saved, show
from .report import begin_several, leave_report
from .train import fresh_folder, interruptible, typed_command


@dataclass(frozen=True)
class RecipeOptions:
    """The options of ``recipe run`` as typed; None where nothing was said."""

    name: str
    methods: str | None
    case: str | None
    rounds: int | None
    seeds: int | None
    reading: str | None
    clients: int | None
    data: str | None
    model: str | None
    partition: str | None
    set: Sequence[str]
    record: Sequence[MeasureName]
    evaluate_every: int | None
    out: Path | None
    resume: bool
    engine: str
    device: str
    precision: Precision

    @property
    def named(self) -> list[str]:
        """The methods of ``--methods``."""
        return [proper(m.strip()) for m in (self.methods or "").split(",") if m.strip()]

    @property
    def changes(self) -> Changes:
        """What is other than published."""
        return Changes(self.rounds, self.clients, self.data, self.model, self.partition, self.set)


@dataclass(frozen=True)
class RecipePlan:
    """Which runs make up the answer."""

    published: Recipe
    options: RecipeOptions
    output: Output

    @cached_property
    def read(self) -> Recipe:
        """The recipe in the reading that was asked for."""
        return self.published.read(self.options.reading)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it will be run."""
        return apply_changes(self.read, self.options.changes, dict.fromkeys(m for _, m in self.cells))

    @property
    def record(self) -> list[MeasureName]:
        """What is measured besides: what the experiment needs, and what was asked for."""
        return list(dict.fromkeys([*self.recipe.record, *self.options.record]))

    @property
    def seeds(self) -> int:
        """How many runs a number is the mean of."""
        return self.options.seeds or self.published.seeds

    @cached_property
    def cells(self) -> list[tuple[int, str]]:
        """Cases, counted from 1, and methods."""
        recipe = self.published
        pairs = [(n, m) for n in recipe.find(self.options.case) for m in recipe.cases[n - 1].methods]
        if self.options.methods is None:
            return pairs
        typed = self.options.named
        if not typed:
            raise UserError(f"--methods names none: choose among {', '.join(recipe.methods)}, or leave it out")
        for method in typed:
            why = recipe.entry(method).differs or "it was not run there"
            if method not in (m for _, m in pairs):
                raise UserError(f"{method} cannot be run in this case ({why}): choose another --case or method")
        return [(n, m) for n, m in pairs if m in typed]

    def check(self) -> None:
        """Refuses whatever cannot be run before the first run begins."""
        for number in dict.fromkeys(n for n, _ in self.cells):
            federation = self.recipe.federation(number)
            module = self.recipe.model(number, federation)
            model, rounds = Model(module, cross_entropy), self.recipe.cases[number - 1].rounds
            for method in (m for n, m in self.cells if n == number):
                algorithm = self.recipe.algorithm(method, number)
                experiment = Experiment.of(model, federation, algorithm, Serial(), 0, rounds, 0.0, self.record)
                apart = self.recipe.init(method, number) == PER_CLIENT
                first = first_models(module, model, algorithm, 0) if apart else None
                replace(experiment, first=first).check()

    def train(self, number: int, method: str, seed: int, folder: Path, shown: str | bool) -> list[dict[str, Any]]:
        """The history of one run."""
        federation = self.recipe.federation(number, seed)
        return fit(
            self.recipe.model(number, federation, seed),
            federation,
            self.recipe.algorithm(method, number),
            rounds=self.recipe.cases[number - 1].rounds,
            seed=seed,
            engine=self.options.engine,
            device=self.options.device,
            out=folder,
            resume=self.options.resume,
            evaluate_every=self.options.evaluate_every or 1,
            init=self.recipe.init(method, number),
            record=self.record,
            precision=self.options.precision,
            progress=shown,
            trackers=self.output.trackers,
        ).history

    @cached_property
    def runs(self) -> list[str]:
        """The folders of all runs, in the order in which they are trained."""
        return [_name(n, m, seed) for n, m in self.cells for seed in range(self.seeds)]


def _name(number: int, method: str, seed: int) -> str:
    return f"case{number}-{folder_name(method)}-seed{seed}"


def run_recipe(options: RecipeOptions, output: Output) -> None:
    """Trains every method of every chosen case with every seed, and prints one table."""
    recipe = load(options.name)
    if not recipe.trains:
        run_still(recipe, options, output)
        return
    plan = RecipePlan(add_own_methods(recipe, [m for m in options.named if is_own(m)]), options, output)
    folder = _folder(plan)
    plan.check()
    output.check()
    _announce(plan)
    with interruptible(folder, options.out, options.resume, output):
        begin_several(folder, typed_command(), plan.runs)
        runs: Runs = {(n, m): _histories(plan, n, m, folder) for n, m in plan.cells}
        results, shortened = recipe_results(plan.read, runs), _shortened(plan)
        write_json(folder / RECIPE, saved(plan.read, results, options.reading, plan.seeds, shortened))
        show(plan.read, results, options.reading, plan.seeds, shortened)
        print(f"results: {folder}")
        leave_report(folder, sys.stdout, output)


def _histories(plan: RecipePlan, number: int, method: str, folder: Path) -> list[list[dict[str, Any]]]:
    """All seeds of one method in one case."""
    histories = []
    for seed in range(plan.seeds):
        name = _name(number, method, seed)
        title = f"case {number}, {method}, seed {seed}"
        shown = plan.output.titled(title, plan.runs.index(name) + 1, len(plan.runs))
        histories.append(plan.train(number, method, seed, folder / name, shown))
    return histories


def _folder(plan: RecipePlan) -> Path:
    options = plan.options
    if options.resume and options.out is None:
        raise UserError("--resume needs to know which run: add --out FOLDER")
    folder = options.out or fresh_folder(plan.published.name)
    if folder.exists() and not options.resume:
        raise UserError(f"{folder} already exists: choose another --out, or continue it with --resume")
    return folder


def _announce(plan: RecipePlan) -> None:
    """What will be run, and what the published size would take."""
    recipe = plan.published
    numbers, methods = (list(dict.fromkeys(column)) for column in zip(*plan.cells, strict=True))
    spent = cost(recipe, numbers, methods)
    reading = plan.options.reading or f"our choice between {' and '.join(READINGS)} (see coterie recipe show)"
    plan.output.say(
        f"{recipe.name}, {recipe.where}: cases {len(numbers)}, methods {len(methods)}, seeds {plan.seeds}; "
        f"reading: {reading}\nat its published size: {scaled(spent.flops, 'FLOP')}, {scaled(spent.bytes, 'B')} sent, "
        f"{duration(spent.seconds)} on {SPEED_OF}"
    )
    for number, method in plan.cells:
        if is_own(method):
            told = ", ".join(f"{k}={v}" for k, v in plan.recipe.settings(method, number).items() if v is not None)
            plan.output.say(f"{method} in case {number}, with what the published methods of the case agree on: {told}")


def _shortened(plan: RecipePlan) -> list[str]:
    """What makes this another experiment, each once."""
    every = plan.options.evaluate_every or 1
    seldom = [f"evaluated every {every} rounds"] if every > 1 else []
    return [*shortenings(plan.read, plan.recipe, plan.cells, plan.seeds), *seldom]
