"""``--dry-run``: what runs would cost, counted without training anything or writing a file."""

from collections.abc import Sequence
from typing import NamedTuple

from .. import models
from ..core.errors import UserError
from ..core.spec import counted, parse, scaled
from ..recipes.costs import duration
from ..recipes.speeds import Platform, RunSize, RunTime, estimate_time, known_speeds
from ..study.comparison import checked_runs
from ..study.methods import check_different
from ..training.experiment import Experiment
from ..training.forecast import Forecast, forecast
from .common.console import table, wide_console
from .common.options import RunOptions
from .common.rows_format import for_programs, print_rows
from .common.typed_plan import typed_plan
from .recipe_plan import RecipePlan
from .recipe_time import platform_of
from .training.saved import saved_config

COUNTED = (
    "FLOPs: forward and backward passes of all clients; sent: over all links, both directions; memory: what all "
    "clients hold between two rounds, and the samples; all rounds of one run each. Nothing was trained or written."
)


class RunCost(NamedTuple):
    """What one run of a method comes to."""

    method: str
    forecast: Forecast
    time: RunTime | None  # None: nothing like it was measured here

    @property
    def seconds(self) -> float | None:
        """The whole time."""
        return None if self.time is None else sum(self.time)


def show_costs(
    typed: Sequence[str], options: RunOptions, format: str, seeds: int = 1, tune: Sequence[str] = ()
) -> None:
    """Print one row per method, and what all runs come to."""
    if saved_config(typed[0]) is not None:
        raise UserError(f"--dry-run is for methods, and {typed[0]} is a saved configuration: name its method")
    if tune:
        raise UserError("--dry-run does not count trials: leave --tune out")
    plan = typed_plan(typed, options)
    check_different(list(plan.methods.values()), plan.algorithms)
    runs, _ = checked_runs(plan, {})
    remark = plan.remark_on(next(iter(runs.values())))
    platform = platform_of(str(plan.settings.device), plan.settings.precision)
    model = parse(plan.model_name(plan.federation(plan.first_seed))).name
    counts = ((method, run.experiment, forecast(run.experiment)) for method, run in runs.items())
    costs = [RunCost(m, count, _time(e, count, model, platform)) for m, e, count in counts]
    if for_programs(format):
        print_rows(format, [_row(cost) for cost in costs])
    else:
        _print_table(costs, remark, platform, seeds)


def show_recipe_costs(plan: RecipePlan) -> None:
    """Print one row per cell of a recipe, and what all runs come to."""
    if plan.options.tune:
        raise UserError("--dry-run does not count trials: leave --tune out")
    platform = platform_of(plan.options.device, plan.options.precision)
    costs = []
    for number, method in plan.cells:
        e, model = plan.prepared(number, method, 0).experiment, parse(plan.recipe.cases[number - 1].model).name
        count = forecast(e)
        costs.append(RunCost(f"case {number}, {method}", count, _time(e, count, model, platform)))
    _print_table(costs, f"{plan.published.name}, {plan.published.where}", platform, plan.seeds)


def _print_table(costs: Sequence[RunCost], remark: str, platform: Platform, seeds: int) -> None:
    console = wide_console()
    rows = table("method", ">FLOPs", ">sent", ">memory", ">time")
    for cost in costs:
        rows.add_row(cost.method, *_cells(cost.forecast), "-" if cost.seconds is None else duration(cost.seconds))
    console.print(f"{remark}\n", soft_wrap=True)
    console.print(rows)
    times = [cost.seconds for cost in costs]
    console.print(f"{COUNTED} {_said_of_time(times, platform)}", soft_wrap=True, style="dim")
    if len(costs) * seeds > 1:
        flops, sent = (seeds * sum(getattr(cost.forecast, key) for cost in costs) for key in ("flops", "bytes"))
        known = "" if None in times else f", {duration(seeds * sum(filter(None, times)))}"
        runs = counted(len(costs) * seeds, "run")
        console.print(f"{runs} in all: {scaled(flops, 'FLOP')}, {scaled(sent, 'B')} sent{known}")


def _row(cost: RunCost) -> dict[str, float | str | None]:
    count = cost.forecast
    known = {"flops": count.flops, "bytes_sent": count.bytes, "memory_bytes": count.memory, "seconds": cost.seconds}
    return {"method": cost.method, **known}


def _cells(cost: Forecast) -> tuple[str, str, str]:
    return scaled(cost.flops, "FLOP"), scaled(cost.bytes, "B"), scaled(cost.memory, "B")


def _time(e: Experiment, cost: Forecast, model: str, platform: Platform) -> RunTime | None:
    """Return the time of a run like one that was measured on this machine; None where there is none."""
    if model not in models.BUILDERS or e.settings.record:
        return None
    batch = e.program.training.batch_size or float(e.train.sizes.mean())
    size = RunSize(model, e.algorithm.name, cost.cohort, batch, cost.forward, cost.flops, cost.evaluation, 0.0)
    return estimate_time(known_speeds(), size, platform)


def _said_of_time(times: Sequence[float | None], platform: Platform) -> str:
    known = f"Time: on {platform}, as measured with runs like these."
    unknown = f"No time (-): nothing like it was measured on {platform}; coterie recipe speed RUN learns from a run."
    return unknown if None in times else known
