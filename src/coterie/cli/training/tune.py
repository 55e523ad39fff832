"""``coterie tune``."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...algorithms.variation import variation
from ...core.arguments import accept
from ...core.custom import folder_name, trust_words
from ...core.errors import UserError
from ...core.settings_file import named_code
from ...study.presets import VALIDATION
from ...study.search import SamplerName
from ...study.tune import SETTINGS, TuneResult, metric_text, remark_on, run_trials, spread_text, tuning_of
from ..common.console import table, wide_console
from ..common.folders import folder_of_several, typed_command
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.typed_plan import check_not_in_file, typed_grids, typed_plan


def tune_method(
    text: str, items: Sequence[str], seeds: int, budget: int | None, sampler: str, options: RunOptions, output: Output
) -> None:
    """Try settings of one method, print a table of them, and leave the best ones in a file."""
    method, typed = variation(text)
    if typed:
        raise UserError(f"tune tries settings of {method}: type those that stay with --set, as in --set {typed[0]}")
    kept: Any = {"validation": VALIDATION if options.validation is None else options.validation}
    options = replace(options, **kept)
    plan = typed_plan([method], options)
    grids = typed_grids(items, "--grid", plan.methods, options)
    check_not_in_file(grids, "--grid", plan.methods, options)
    chosen = accept("the command", "sampler", sampler, SamplerName)
    name = f"tune-{folder_name(method)}-{folder_name(plan.source.partition(':')[0])}"
    folder = folder_of_several(options, name, "tuning")
    tuning = tuning_of(plan, grids[method], seeds, budget, chosen, folder)
    trackers = output.trackers()
    output.say(remark_on(tuning))
    with interruptible(folder, options, output):
        _show(run_trials(tuning, output, trackers, typed_command(), shlex.join(["coterie", *sys.argv[1:]])), output)


def _show(result: TuneResult, output: Output) -> None:
    """Print the table, and where the picture and the settings are."""
    _print_table(result)
    if result.page is not None:
        print(f"page: {result.page}")
    else:
        output.say(f"no page: {result.problem}")
    file = f"{result.folder}/{SETTINGS}"
    print(f"settings: {file}")
    trusting = trust_words([name for value in result.settings.values() for name in named_code(value)])
    words = ["coterie", "run", result.saved["method"], "--settings", file, *trusting]
    output.say(f"to use them: {shlex.join(words)}")


def _print_table(result: TuneResult) -> None:
    console, found = wide_console(), result.saved
    made = table("trial", *(f">{key}" for key in found["grid"]), ">score", "end")
    for row, trial in zip(result.rows(), found["trials"], strict=True):
        best = row["trial"] == result.place + 1
        cells = [*trial["settings"].values(), spread_text(row) + (" *" if best else "  "), trial["ended"]]
        made.add_row(str(row["trial"]), *cells, style="bold" if best else "")
    console.print(made)
    spread = f"mean of {found['seeds']} seeds, ±: their standard deviation; " if found["seeds"] > 1 else ""
    console.print(f"Score: {metric_text(found)}; {spread}* the best.", soft_wrap=True, style="dim")
