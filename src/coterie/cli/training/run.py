"""``coterie run``, and what it shares with commands that train several methods."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...algorithms.variation import variation
from ...core.custom import folder_name
from ...core.errors import UserError
from ...measure.compare import Comparison, MethodRuns, RunData
from ...training.prepare import Prepared
from ...training.run import Run
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.results import TableStyle, show_comparison
from ..request import RunPlan, check_settings
from ..saved_run import run_again, saved_config
from ..several import fresh_folder
from ..trials import Tuning
from .chosen_engine import ChosenEngine


def run_method(method: str, options: RunOptions, style: TableStyle, output: Output) -> None:
    """Train one method, from its name or from a saved configuration."""
    saved = saved_config(method)
    if saved is not None:
        run, folder = run_again(saved, options, output)
    else:
        run, folder = _run_new(variation(method).typed, options, output)
    show_comparison(Comparison([MethodRuns(run.summary["method"], [without_models(run)])]), folder, style.format)
    output.say(f"to look at it: {shlex.join(['coterie', 'report', str(folder)])}")


def _run_new(method: str, options: RunOptions, output: Output) -> tuple[Run, Path]:
    check_settings([method], options)
    plan = RunPlan.of(options)
    if options.resume and options.out is None:
        raise UserError("--resume needs to know which run: add --out FOLDER, or type coterie run FOLDER --resume")
    folder = options.out or fresh_folder(f"{folder_name(method)}-{folder_name(plan.source.partition(':')[0])}")
    trackers = [*output.trackers(), ChosenEngine()]
    run = plan.prepared(method, [method], plan.first_seed, out=folder, progress=not output.quiet, trackers=trackers)
    remarks = [plan.remark([method], run.experiment.federation), f"  {plan.preset_text(run.experiment.algorithm)}"]
    output.say("\n".join([*remarks, *plan.file_text([method]), *plan.notes(plan.first_seed)]))
    with interruptible(folder, options, output):
        return run.run(), folder


def checked_runs(
    plan: RunPlan, methods: Sequence[str], folders: Mapping[str, Path], trials: Sequence[Tuning[RunPlan]] = ()
) -> tuple[dict[str, Prepared], list[Tuning[RunPlan]]]:
    """Find every mistake before the first run; return the runs of the first seed by method, and the trials, ready.

    ``folders``: of these runs, where they are written. All runs, those of trials included, are evaluated in the same
    rounds, because the best of many rounds is more than the best of few.
    """
    runs = {m: plan.prepared(m, methods, plan.first_seed, out=folders.get(m)) for m in methods}
    plan.check_taken(list(runs.values()))
    trials = [t.prepared() for t in trials]
    every = max(
        run.experiment.schedule.every for run in [*runs.values(), *(r for t in trials for r in t.ready.values())]
    )
    trials = [t.evaluated(every) for t in trials]
    for t in trials:
        t.check_begun()
    return {m: run.having(evaluate_every=every) for m, run in runs.items()}, trials


def said_before(plan: RunPlan, methods: Sequence[str], run: Prepared) -> str:
    """Return what is going to be trained on what, and how often it is evaluated."""
    every = run.experiment.schedule.every
    return plan.remark(methods, run.experiment.federation) + (f", evaluated every {every} rounds" if every > 1 else "")


def without_models(run: Run) -> RunData:
    """Return a run without its models: those of all runs would fill the memory."""
    return RunData(run.config, run.history, run.summary, run.client_summary)
