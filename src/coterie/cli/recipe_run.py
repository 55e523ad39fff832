"""``coterie recipe run``: a published experiment through the same loop as every other run, beside its numbers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.custom import display_name, folder_name, is_own
from ..core.errors import UserError
from ..core.files import write_json
from ..core.schema import MeasureName, Row
from ..core.spec import scaled
from ..engines import Serial
from ..models.model import Model, cross_entropy
from ..recipes import READINGS, Recipe, load
from ..recipes.changes import Changes, add_own_methods, apply_changes, case_shortenings, shortenings
from ..recipes.costs import Extent, cost
from ..recipes.results import Runs, recipe_results
from ..report.collect import RECIPE
from ..track import Tracker
from ..training.checks import check_model
from ..training.experiment import Experiment
from ..training.first import PER_CLIENT, first_models
from ..training.fit import fit
from .console import wide_console
from .data import draw_split, print_split, split_counts
from .fields import flag
from .interrupted import interruptible
from .options import Output, RecipeOptions
from .recipe_show import results_as_json, show_results
from .recipe_time import platform_of, tell_time
from .report import leave_report
from .several import folder_of_several, fresh_folder, plan_of, several_runs, typed_command

SPLITS = "splits"


def run_recipe(name: str, options: RecipeOptions, output: Output) -> None:
    """Train every method of every chosen case with every seed, and print one table."""
    recipe = load(name)
    if not recipe.trains:
        _show_untrained(recipe, options, output)
        return
    named = [display_name(m.strip()) for m in (options.methods or "").split(",") if m.strip()]
    plan = RecipePlan(add_own_methods(recipe, [m for m in named if is_own(m)]), named, options)
    folder = folder_of_several(options, recipe.name, "run")
    plan.check()
    trackers = output.trackers()
    _announce(plan, output)
    command = typed_command()
    with interruptible(folder, options, output), several_runs(folder, plan_of(plan.runs), options.resume, command):
        runs: Runs = {(n, m): _histories(plan, n, m, folder, output, trackers) for n, m in plan.cells}
        every = options.evaluate_every or 1
        shortened = shortenings(plan.read, plan.recipe, plan.cells, plan.seeds)
        shortened += [f"evaluated every {every} rounds"] if every > 1 else []
        results = recipe_results(plan.read, runs)
        write_json(folder / RECIPE, results_as_json(plan.read, results, options.reading, plan.seeds, shortened))
        show_results(plan.read, results, options.reading, plan.seeds, shortened)
        print(f"results: {folder}")
        leave_report(folder, sys.stdout, output, options.data_dir)


@dataclass(frozen=True)
class RecipePlan:
    """Which runs make up the answer."""

    published: Recipe
    named: Sequence[str]  # the methods of --methods
    options: RecipeOptions

    @cached_property
    def read(self) -> Recipe:
        """The recipe in the reading that was asked for."""
        return self.published.read(self.options.reading)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as it will be run."""
        options = self.options
        changes = Changes(options.rounds, options.clients, options.data, options.model, options.partition, options.set)
        return apply_changes(self.read, changes, list(dict.fromkeys(m for _, m in self.cells)))

    @property
    def record(self) -> list[MeasureName]:
        """The further metrics: what the experiment needs, and what was asked for."""
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
        if not self.named:
            raise UserError(f"--methods names none: choose among {', '.join(recipe.methods)}, or leave it out")
        for method in self.named:
            why = recipe.entry(method).differs or "it was not run there"
            if method not in (m for _, m in pairs):
                raise UserError(f"{method} cannot be run in this case ({why}): choose another --case or method")
        return [(n, m) for n, m in pairs if m in self.named]

    @cached_property
    def runs(self) -> list[str]:
        """The folders of all runs, in the order in which they are trained."""
        return [_name(n, m, seed) for n, m in self.cells for seed in range(self.seeds)]

    def check(self) -> None:
        """Refuse whatever cannot be run before the first run begins."""
        for number in dict.fromkeys(n for n, _ in self.cells):
            federation = self.recipe.federation(number, data_dir=self.options.data_dir)
            module = self.recipe.model(number, federation)
            model, rounds = Model(module, cross_entropy), self.recipe.cases[number - 1].rounds
            check_model(model, federation)
            for method in (m for n, m in self.cells if n == number):
                algorithm = self.recipe.algorithm(method, number)
                experiment = Experiment.of(model, federation, algorithm, Serial(), 0, rounds, 0.0, self.record)
                apart = self.recipe.init(method, number) == PER_CLIENT
                first = first_models(module, model, algorithm, 0) if apart else None
                replace(experiment, first=first).check()

    def train(
        self, number: int, method: str, seed: int, folder: Path, shown: str | bool, trackers: Sequence[Tracker]
    ) -> list[Row]:
        """Train one run and return its history."""
        federation = self.recipe.federation(number, seed, self.options.data_dir)
        return fit(
            self.recipe.model(number, federation, seed),
            federation,
            self.recipe.algorithm(method, number),
            rounds=self.recipe.cases[number - 1].rounds,
            seed=seed,
            engine=self.options.given("engine"),
            device=self.options.given("device"),
            out=folder,
            resume=self.options.resume,
            evaluate_every=self.options.evaluate_every or 1,
            init=self.recipe.init(method, number),
            record=self.record,
            precision=self.options.given("precision"),
            progress=shown,
            trackers=trackers,
            time_limit=self.options.for_,
        ).history


def _name(number: int, method: str, seed: int) -> str:
    return f"case{number}-{folder_name(method)}-seed{seed}"


def _histories(
    plan: RecipePlan, number: int, method: str, folder: Path, output: Output, trackers: Sequence[Tracker]
) -> list[list[Row]]:
    """Train all seeds of one method in one case."""
    histories = []
    for seed in range(plan.seeds):
        name = _name(number, method, seed)
        title = f"case {number}, {method}, seed {seed}"
        shown = output.titled(title, plan.runs.index(name) + 1, len(plan.runs))
        histories.append(plan.train(number, method, seed, folder / name, shown, trackers))
    return histories


def _announce(plan: RecipePlan, output: Output) -> None:
    """Say what will be run, and what that takes; with other data, models or clients, what the published size takes."""
    recipe = plan.published
    numbers, methods = (list(dict.fromkeys(column)) for column in zip(*plan.cells, strict=True))
    options, platform = plan.options, platform_of(plan.options.device, plan.options.precision)
    other = options.data or options.model or options.clients or options.partition or options.set
    extent = Extent(plan.seeds, options.rounds, options.evaluate_every or 1, options.engine)
    spent = cost(recipe, numbers, methods, platform, Extent(engine=options.engine) if other else extent)
    reading = plan.options.reading or f"our choice between {' and '.join(READINGS)} (see coterie recipe show)"
    output.say(
        f"{recipe.name}, {recipe.where}: cases {len(numbers)}, methods {len(methods)}, seeds {plan.seeds}; "
        f"reading: {reading}\n{'at its published size' if other else 'all of it'}"
        f"{', in our choice' if options.reading else ''}: {scaled(spent.flops, 'FLOP')}, "
        f"{scaled(spent.bytes, 'B')} sent; {tell_time(spent, platform)}"
    )
    for warning in recipe.warnings(options.reading, methods):
        output.say(f"warning: {warning}")
    for number, method in plan.cells:
        if is_own(method):
            told = ", ".join(f"{k}={v}" for k, v in plan.recipe.settings(method, number).items() if v is not None)
            output.say(f"{method} in case {number}, with what the published methods of the case agree on: {told}")


def _show_untrained(recipe: Recipe, options: RecipeOptions, output: Output) -> None:
    """Count or draw what a paper shows without training, beside its numbers where it has any."""
    _refuse_training(recipe, options, output)
    folder = options.out or fresh_folder(recipe.name)
    if folder.exists():
        raise UserError(f"{folder} already exists: choose another --out")
    with several_runs(folder, plan_of([]), resume=False, command=typed_command()):
        if recipe.draws == SPLITS:
            results = _drawn(recipe, options, folder, output)
        else:
            numbers = recipe_results(recipe, {})
            show_results(recipe, numbers, None, 1, [])
            results = results_as_json(recipe, numbers, None, 1, [])
        write_json(folder / RECIPE, results)
        print(f"results: {folder}")
        leave_report(folder, sys.stdout, output, options.data_dir)


def _refuse_training(recipe: Recipe, options: RecipeOptions, output: Output) -> None:
    """Refuse what asks for training, and other data or models where the paper's own are counted."""
    of_use = {"out", "quiet"} | (
        {"case", "clients", "data", "data_dir", "partition"} if recipe.draws == SPLITS else set()
    )
    for name, given in {**vars(options), **vars(output)}.items():
        if given and name not in of_use:
            other = "" if recipe.draws == SPLITS else ", or count another model with coterie capacity --model"
            raise UserError(f"{flag(name)} is of no use to {recipe.name}, which trains nothing: leave it out{other}")


def _drawn(recipe: Recipe, options: RecipeOptions, folder: Path, output: Output) -> dict[str, Any]:
    """Draw the splits of the chosen cases in the terminal and as pictures, and return them as data."""
    changes = Changes(clients=options.clients, data=options.data, partition=options.partition)
    small, numbers = apply_changes(recipe, changes), recipe.find(options.case)
    splits = {n: split_counts(small.federation(n, data_dir=options.data_dir)) for n in numbers}
    console = wide_console()
    for n, counts in splits.items():
        case = small.cases[n - 1]
        title = f"case {n}: {case.data}, partitioned with {case.partition} among {case.clients} clients"
        print_split(console, counts, title, drawn=True)
        try:
            draw_split(counts, folder / f"case{n}.png", title)
        except UserError as error:  # the terminal has shown it
            output.say(f"no figure: {error}")
    shortened = case_shortenings(recipe, small, numbers, 1)
    titled = [{"case": small.cases[n - 1].label, "labels": counts} for n, counts in splits.items()]
    return results_as_json(recipe, [], None, 1, shortened) | {SPLITS: titled}
