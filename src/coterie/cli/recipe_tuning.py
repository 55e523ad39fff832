"""Settings of a recipe that trials choose on validation samples before it is run: ``coterie recipe run --tune``."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..algorithms import builder
from ..core.custom import folder_name
from ..track import Tracker
from .common.options import VALIDATION, Output
from .recipe_plan import CellPlan, RecipePlan
from .training.grids import typed_grids
from .trials import Tuning, by_validation, chosen_settings


def recipe_trials(plan: RecipePlan, folder: Path) -> list[Tuning[CellPlan]]:
    """Return the trials of every method in every case: each cell of the table has settings of its own."""
    options, builders = plan.options, {m: builder(plan.published.entry(m).builder) for m in plan.methods}
    grids = typed_grids(options.tune, "--tune", builders, options.set)
    cells = [CellPlan(plan, n, m) for n, m in plan.cells if grids[m]]
    return [
        Tuning(
            cell.with_options(**by_validation(options, cell.validation or VALIDATION)),
            *(cell.method, plan.methods, grids[cell.method], 1, "grid", None),
            folder / f"tune-case{cell.number}-{folder_name(cell.method)}",
        )
        for cell in cells
    ]


def tuned_recipe(
    plan: RecipePlan, trials: Sequence[Tuning[CellPlan]], output: Output, trackers: Sequence[Tracker]
) -> tuple[RecipePlan, list[str]]:
    """Choose the settings of every cell; return the plan with them, and what to say of it."""
    chosen, notes = chosen_settings(trials, output, trackers)
    return replace(plan, tuned={t.plan.key: typed for t, typed in zip(trials, chosen, strict=True)}), notes
