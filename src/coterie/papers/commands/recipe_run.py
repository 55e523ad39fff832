"""``coterie recipe run``: a published experiment through the same loop as every other run, beside its numbers."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cli.common.console import wide_console
from ...cli.common.fields import flag
from ...cli.common.folders import folder_of_several, typed_command
from ...cli.common.interrupted import interruptible
from ...cli.common.options import Output
from ...cli.data.show import draw_split, print_split, split_counts
from ...cli.dry_run import RunCost, print_costs
from ...cli.results.report import leave_report
from ...core.custom import display_name, is_own
from ...core.errors import UserError
from ...core.files import write_json
from ...core.schema import Row
from ...core.spec import counted, scaled
from ...report.collect import RECIPE
from ...study.folders import fresh_folder, plan_of, several_runs, write_notes
from ...study.trials import Tuning
from ...track import Tracker
from ...training.prepare import Prepared
from ...training.schedule import forecast
from ..recipes import READINGS, Recipe, load
from ..recipes.changes import Changes, add_own_methods, apply_changes, case_shortenings
from ..recipes.costs import cost
from ..recipes.results import Runs, recipe_results
from .recipe import RecipeOptions
from .recipe_plan import Cell, CellPlan, RecipePlan, recipe_trials, run_folder, tuned_recipe
from .recipe_show import Circumstances, results_as_json, show_results

SPLITS = "splits"


def run_recipe(name: str, options: RecipeOptions, output: Output) -> None:
    """Train every method of every chosen case with every seed, and print one table."""
    recipe = load(name)
    if not recipe.trains:
        _show_untrained(recipe, options, output)
        return
    named = [display_name(m.strip()) for m in (options.methods or "").split(",") if m.strip()]
    plan = RecipePlan(add_own_methods(recipe, [m for m in named if is_own(m)]), named, options)
    if options.dry_run:
        _announce(plan, output)
        _show_costs(plan)
    else:
        _train(plan, output)


def _show_costs(plan: RecipePlan) -> None:
    """Print one row per cell of a recipe, and what all runs come to."""
    if plan.options.tune:
        raise UserError("--dry-run does not count trials: leave --tune out")
    costs = [RunCost(f"case {n}, {m}", forecast(plan.prepared(n, m, 0).experiment)) for n, m in plan.cells]
    print_costs(costs, f"{plan.published.name}, {plan.published.where}", plan.seeds)


def _train(plan: RecipePlan, output: Output) -> None:
    """Choose settings where trials are asked for, train all runs, and print one table."""
    options = plan.options
    folder = folder_of_several(options, plan.published.name, "run")
    trials = recipe_trials(plan, folder)
    ready, trials = plan.check(folder, trials)
    trackers = output.trackers()
    _announce(plan, output, trials)
    command = typed_command()
    with interruptible(folder, options, output), several_runs(folder, plan_of(plan.runs), options.resume, command):
        plan, notes = tuned_recipe(plan, trials, output, trackers)
        write_notes(folder, notes)
        ready = {} if trials else ready  # their settings are chosen by now
        runs: Runs = {
            cell: _histories(plan, cell, ready.pop(cell, None), folder, output, trackers) for cell in plan.cells
        }
        results = recipe_results(plan.reported, runs)
        told = Circumstances(options.reading, plan.seeds, plan.shortened, plan.warnings)
        write_json(folder / RECIPE, results_as_json(plan.reported, results, told))
        show_results(plan.reported, results, told)
        for note in notes:
            print(note)
        print(f"results: {folder}")
        leave_report(folder, sys.stdout, output, options.data_dir)


def _histories(
    plan: RecipePlan,
    cell: Cell,
    ready: Prepared | None,
    folder: Path,
    output: Output,
    trackers: Sequence[Tracker],
) -> list[list[Row]]:
    """Train all seeds of one method in one case; ``ready``: the run of the first one."""
    number, method = cell
    histories: list[list[Row]] = []
    for seed in range(plan.seeds):
        name = run_folder(number, method, seed)
        title = f"case {number}, {method}, seed {seed}"
        shown = output.titled(title, plan.runs.index(name) + 1, len(plan.runs))
        told: dict[str, Any] = {"out": folder / name, "progress": shown, "trackers": trackers}
        if ready is None or seed:
            ready = plan.prepared(*cell, seed, **told)
        histories.append(ready.having(**told).run().history)
    return histories


def _announce(plan: RecipePlan, output: Output, trials: Sequence[Tuning[CellPlan]] = ()) -> None:
    """Say what will be run, and what that takes; with other data, models or clients, what the published size takes."""
    recipe = plan.published
    numbers, methods = (list(dict.fromkeys(column)) for column in zip(*plan.cells, strict=True))
    options = plan.options
    other = options.data or options.model or options.clients or options.partition or options.set or options.validation
    spent = cost(recipe, numbers, methods, *(() if other else (plan.seeds, options.rounds)))
    reading = options.reading or f"our choice between {' and '.join(READINGS)} (see coterie recipe show)"
    output.say(
        f"{recipe.name}, {recipe.where}: cases {len(numbers)}, methods {len(methods)}, seeds {plan.seeds}; "
        f"reading: {reading}\n{'at its published size' if other else 'all of it'}"
        f"{', in our choice' if options.reading else ''}: {scaled(spent.flops, 'FLOP')}, "
        f"{scaled(spent.bytes, 'B')} sent"
    )
    for warning in plan.warnings:
        output.say(f"warning: {warning}")
    if trials:
        output.say(f"before that, {counted(sum(t.trainings for t in trials), 'training')} to choose settings")
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
            show_results(recipe, numbers, Circumstances())
            results = results_as_json(recipe, numbers, Circumstances())
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
    """Print the facts of the chosen cases' splits, draw them as pictures, and return them as data."""
    changes = Changes(clients=options.clients, data=options.data, partition=options.partition)
    small, numbers = apply_changes(recipe, changes), recipe.find(options.case)
    splits = {n: split_counts(small.federation(n, data_dir=options.data_dir)) for n in numbers}
    console = wide_console()
    for n, counts in splits.items():
        case = small.cases[n - 1]
        title = f"case {n}: {case.data}, partitioned with {case.partition} among {case.clients} clients"
        print_split(console, counts, title)
        try:
            draw_split(counts, folder / f"case{n}.png", title)
        except UserError as error:  # the page draws it as well
            output.say(f"no figure: {error}")
    shortened = case_shortenings(recipe, small, numbers, 1)
    titled = [{"case": small.cases[n - 1].label, "labels": counts} for n, counts in splits.items()]
    return results_as_json(recipe, [], Circumstances(shortened=shortened)) | {SPLITS: titled}
