"""Settings of a recipe that trials choose on validation samples before it is run: ``coterie recipe run --tune``."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..algorithms import builder
from ..core.custom import folder_name
from ..study.grids import grids_of
from ..study.presets import VALIDATION
from ..study.trials import Tuning, by_validation, chosen_settings
from ..track import Tracker
from .common.options import Output
from .common.typed_plan import fixed_settings, tried
from .recipe_plan import CellPlan, RecipePlan, typed_settings


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
