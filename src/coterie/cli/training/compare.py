"""``coterie compare``."""

import sys
from collections.abc import Sequence

from ...core.custom import folder_name
from ...core.errors import UserError
from ...study.comparison import ComparisonPlan
from ...study.methods import check_different
from ..common.folders import folder_of_several, typed_command
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.results import TABLE, TableStyle, show_comparison
from ..common.typed_plan import check_not_in_file, file_text, typed_grids, typed_plan
from ..results.report import leave_report


def compare_methods(
    texts: Sequence[str],
    options: RunOptions,
    seeds: int,
    style: TableStyle,
    output: Output,
    tune: Sequence[str] = (),
) -> None:
    """Train all methods on the same clients, seed by seed, and print one table; ``tune``: what is chosen before."""
    plan = typed_plan(texts, options)
    folder = folder_of_several(options, "compare-" + folder_name(plan.source.partition(":")[0]), "comparison")
    for method in plan.methods.values() if tune else ():
        if method.label != method.name:
            raise UserError(
                f"--tune chooses settings of {method.name}, and {method.label} has its own: leave one of them out"
            )
    grids = typed_grids(tune, "--tune", plan.methods, options)
    check_not_in_file(grids, "--tune", plan.methods, options)
    check_different(list(plan.methods.values()), plan.algorithms)
    comparison = ComparisonPlan.of(plan, seeds, folder, style.target, grids, file_text(plan.methods, options))
    trackers = output.trackers()
    output.say(comparison.remarks)
    with interruptible(folder, options, output):
        show_comparison(comparison.train(output, trackers, typed_command()), folder, style.format)
        leave_report(folder, sys.stdout if style.format == TABLE else sys.stderr, output, options.data_dir)
