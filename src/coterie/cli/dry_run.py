"""``--dry-run``: what runs would cost, counted without training anything or writing a file."""

from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import UserError
from ..core.spec import counted, scaled
from ..study.comparison import checked_runs
from ..study.methods import check_different
from ..training.schedule import Forecast, forecast
from .common.console import table, wide_console
from .common.options import RunOptions
from .common.rows_format import for_programs, print_rows
from .common.typed_plan import typed_plan
from .training.saved import saved_config

COUNTED = (
    "FLOPs: forward and backward passes of all clients; sent: over all links, both directions; memory: what all "
    "clients hold between two rounds, and the samples; all rounds of one run each. Nothing was trained or written."
)


class RunCost(NamedTuple):
    """What one run of a method comes to."""

    method: str
    forecast: Forecast


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
    costs = [RunCost(method, forecast(run.experiment)) for method, run in runs.items()]
    if for_programs(format):
        print_rows(format, [_row(cost) for cost in costs])
    else:
        print_costs(costs, remark, seeds)


def print_costs(costs: Sequence[RunCost], remark: str, seeds: int) -> None:
    """Print one row per method below a remark, and what all runs come to."""
    console = wide_console()
    rows = table("method", ">FLOPs", ">sent", ">memory")
    for cost in costs:
        rows.add_row(cost.method, *_cells(cost.forecast))
    console.print(f"{remark}\n", soft_wrap=True)
    console.print(rows)
    console.print(COUNTED, soft_wrap=True, style="dim")
    if len(costs) * seeds > 1:
        flops, sent = (seeds * sum(getattr(cost.forecast, key) for cost in costs) for key in ("flops", "bytes"))
        runs = counted(len(costs) * seeds, "run")
        console.print(f"{runs} in all: {scaled(flops, 'FLOP')}, {scaled(sent, 'B')} sent")


def _row(cost: RunCost) -> dict[str, float | str | None]:
    count = cost.forecast
    return {"method": cost.method, "flops": count.flops, "bytes_sent": count.bytes, "memory_bytes": count.memory}


def _cells(cost: Forecast) -> tuple[str, str, str]:
    return scaled(cost.flops, "FLOP"), scaled(cost.bytes, "B"), scaled(cost.memory, "B")
