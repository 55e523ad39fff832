"""What ``coterie tune`` does: settings chosen on validation samples, and written into a file for ``--settings``."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

from ...algorithms.variation import builder_of, variation
from ...core.arguments import accept
from ...core.custom import display_name, folder_name, trust_words
from ...core.errors import UserError
from ...core.schema_several import SavedTuning
from ...core.settings_file import TUNED, named_code, write_settings
from ...measure.selection import BEST_VALIDATION, LAST
from ...report.library import compressed_library
from ...report.tuning import write_tuning
from ...study.search import SamplerName
from ..common.console import table, wide_console
from ..common.interrupted import interruptible
from ..common.options import VALIDATION, Output, RunOptions
from ..request import RunPlan, check_settings
from ..several import folder_of_several, plan_of, several_runs, typed_command
from ..trials import Tuning, best_trial, run_name, trial_score
from .grids import check_not_in_file, typed_grids
from .run import said_before

SETTINGS, PAGE = "settings.toml", "tune.html"


def tune_method(
    method: str, items: Sequence[str], seeds: int, budget: int | None, sampler: str, options: RunOptions, output: Output
) -> None:
    """Try settings of one method, print a table of them, and leave the best ones in a file."""
    method, typed = variation(method)
    if typed:
        raise UserError(f"tune tries settings of {method}: type those that stay with --set, as in --set {typed[0]}")
    kept: Any = {"validation": VALIDATION if options.validation is None else options.validation}
    options = replace(options, **kept)
    if not options.validation:
        raise UserError("tune chooses on validation samples, and --validation 0 keeps none: leave it out")
    if options.select not in (None, LAST, BEST_VALIDATION):
        raise UserError(f"tune chooses one round for all by validation samples: leave --select {options.select} out")
    check_settings([method], options)
    grids = typed_grids(items, "--grid", {method: builder_of(method)}, options.set)
    check_not_in_file(grids, "--grid", [method], options)
    grid = grids[method]
    if not grid:
        raise UserError("there is nothing to try: add --grid KEY=VALUE,VALUE, as in --grid lr=0.01,0.03,0.1")
    chosen = accept("the command", "sampler", sampler, SamplerName)
    plan = RunPlan.of(options)
    name = f"tune-{folder_name(method)}-{folder_name(plan.source.partition(':')[0])}"
    folder = folder_of_several(options, name, "tuning")
    tuning = Tuning(plan, method, [method], grid, seeds, chosen, trials_of(budget, seeds), folder)
    tuning.search()  # refuses a budget that does not fit
    tuning = _checked(tuning)
    trackers, settings = output.trackers(), len(tuning.ready)
    remark = said_before(plan, [method], next(iter(tuning.ready.values())))
    output.say(f"{method}, {settings} settings, at most {tuning.trainings} trainings, {said_how(tuning)}\n{remark}")
    names = [run_name(k + 1, tuning.first_seed + s) for k in range(tuning.trainings // seeds) for s in range(seeds)]
    with interruptible(folder, options, output), several_runs(folder, plan_of(names), options.resume, typed_command()):
        found = tuning.run(output, trackers)
        _leave(tuning, found, output)


def _checked(tuning: Tuning[RunPlan]) -> Tuning[RunPlan]:
    """Find every mistake before the first trial, and evaluate all trials in the same rounds."""
    tuning = tuning.prepared()
    tuning.plan.check_taken(list(tuning.ready.values()))
    tuning = tuning.evaluated(max(run.experiment.schedule.every for run in tuning.ready.values()))
    tuning.check_begun()
    return tuning


def trials_of(budget: int | None, seeds: int) -> int | None:
    """Return how many trials a budget of trainings is for."""
    if budget is not None and budget < seeds:
        raise UserError(f"--budget {budget} is less than one trial of {seeds} seeds: raise it to {seeds} or more")
    return None if budget is None else budget // seeds


def said_how(tuning: Tuning[RunPlan]) -> str:
    """Say what decides."""
    seeds = f"the mean of {tuning.seeds} seeds" if tuning.seeds > 1 else f"seed {tuning.first_seed}"
    kept = tuning.plan.options.given("validation")
    return f"chosen on validation samples ({kept:g} of every client's training samples, {seeds}), never on test samples"


def _leave(tuning: Tuning[RunPlan], found: SavedTuning, output: Output) -> None:
    """Print the table, and write the picture and the settings."""
    best = best_trial(found)
    _print_table(found, best)
    texts = found["trials"][best]["settings"]
    asked = tuning.with_settings(texts).asked(tuning.method, tuning.among)
    remarks = [f"{TUNED} {len(found['trials'])} trials: {_score(found, best)} {said_metric(found)}",
               said_how(tuning), shlex.join(["coterie", *sys.argv[1:]])]  # fmt: skip
    file = tuning.folder / SETTINGS
    write_settings(file, {display_name(tuning.method): asked}, remarks)
    try:
        compressed_library()
        print(f"page: {write_tuning(found, best, tuning.folder / PAGE)}")
    except UserError as error:
        output.say(f"no page: {error}")
    print(f"settings: {file}")
    trusting = trust_words([name for value in asked.values() for name in named_code(value)])
    words = ["coterie", "run", tuning.method, "--settings", str(file), *trusting]
    output.say(f"to use them: {shlex.join(words)}")


def said_metric(found: SavedTuning) -> str:
    """Say what the scores are."""
    better = "higher" if found["higher_is_better"] else "lower"
    return f"{found['metric']} on validation samples, mean over the clients ({better} is better)"


def _print_table(found: SavedTuning, best: int) -> None:
    console = wide_console()
    made = table("trial", *(f">{key}" for key in found["grid"]), ">score", "end")
    for i, trial in enumerate(found["trials"]):
        cells = [*trial["settings"].values(), _score(found, i) + (" *" if i == best else "  "), trial["ended"]]
        made.add_row(str(i + 1), *cells, style="bold" if i == best else "")
    console.print(made)
    console.print(f"Score: {said_metric(found)}; {_spread(found)}* the best.", soft_wrap=True, style="dim")


def _spread(found: SavedTuning) -> str:
    return f"mean of {found['seeds']} seeds, ±: their standard deviation; " if found["seeds"] > 1 else ""


def _score(found: SavedTuning, i: int) -> str:
    trial = found["trials"][i]
    score = trial_score(trial)
    if score is None:
        return "-"
    known = [s for s in trial["scores"] if s is not None]
    return f"{score:.4g}" + (f" ±{stdev(known):.2g}" if len(known) > 1 else "")
