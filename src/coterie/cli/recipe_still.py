"""Recipes without training: a table of sizes that is counted, a drawing of who holds which classes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from ..core.files import write_json
from ..recipes import Recipe
from ..recipes.changes import Changes, apply_changes, case_shortenings
from ..recipes.results import recipe_results
from ..report.collect import RECIPE
from .output import Output
from .recipe_show import wide_console
from .recipe_table import saved, show
from .report import begin_several, leave_report
from .split import class_counts, draw_split, print_split
from .train import fresh_folder, typed_command

if TYPE_CHECKING:
    from .recipe_run import RecipeOptions

SPLITS = "splits"


def run_still(recipe: Recipe, options: "RecipeOptions", output: Output) -> None:
    """Counts or draws what the paper shows, beside its numbers where it has any."""
    _check(recipe, options)
    folder = options.out or fresh_folder(recipe.name)
    if folder.exists():
        raise UserError(f"{folder} already exists: choose another --out")
    if recipe.draws == SPLITS:
        results = _drawn(recipe, options, folder, output)
    else:
        numbers = recipe_results(recipe, {})
        show(recipe, numbers, None, 1, [])
        results = saved(recipe, numbers, None, 1, [])
    begin_several(folder, typed_command(), [])
    write_json(folder / RECIPE, results)
    print(f"results: {folder}")
    leave_report(folder, sys.stdout, output)


def _check(recipe: Recipe, options: "RecipeOptions") -> None:
    """Refuses what asks for training, and other data or models where the paper's own are counted."""
    asked = {name.replace("_", "-") for name, given in vars(options).items() if given}
    training = ["methods", "rounds", "seeds", "reading", "model", "set", "record", "evaluate-every", "resume"]
    if recipe.draws != SPLITS:
        training += ["case", "clients", "data", "partition"]
    for name in training:
        if name in asked:
            other = "" if recipe.draws == SPLITS else ", or count another model with coterie capacity --model"
            raise UserError(f"--{name} is of no use to {recipe.name}, which trains nothing: leave it out{other}")


def _drawn(recipe: Recipe, options: "RecipeOptions", folder: Path, output: Output) -> dict[str, Any]:
    """The splits of the chosen cases, in the terminal, as pictures and as data."""
    changes = Changes(clients=options.clients, data=options.data, partition=options.partition)
    small, numbers = apply_changes(recipe, changes), recipe.find(options.case)
    splits = {n: class_counts(small.federation(n)) for n in numbers}
    console = wide_console()
    for n, counts in splits.items():
        case = small.cases[n - 1]
        title = f"case {n}: {case.data}, divided by {case.partition} among {case.clients} clients"
        print_split(console, counts, title, drawn=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draw_split(counts, folder / f"case{n}.png", title)
        except UserError as error:  # the terminal has shown it
            output.say(f"no picture: {error}")
    shortened = case_shortenings(recipe, small, numbers, 1)
    titled = [{"case": small.cases[n - 1].label, "labels": counts} for n, counts in splits.items()]
    return saved(recipe, [], None, 1, shortened) | {SPLITS: titled}
