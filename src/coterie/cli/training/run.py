"""``coterie run``."""

import shlex
from pathlib import Path

from ...core.custom import folder_name
from ...core.errors import UserError
from ...measure.compare import Comparison, MethodRuns
from ...study.comparison import without_models
from ...study.folders import fresh_folder
from ...training.run import Run
from ..common.interrupted import interruptible
from ..common.options import Output, RunOptions
from ..common.results import TableStyle, show_comparison
from ..common.typed_plan import file_text, typed_plan
from .chosen_engine import ChosenEngine
from .saved import run_again, saved_config


def run_method(text: str, options: RunOptions, style: TableStyle, output: Output) -> None:
    """Train one method, from its name or from a saved configuration."""
    saved = saved_config(text)
    run, folder = _run_new(text, options, output) if saved is None else run_again(saved, options, output)
    show_comparison(Comparison([MethodRuns(run.summary["method"], [without_models(run)])]), folder, style.format)
    output.say(f"to look at it: {shlex.join(['coterie', 'report', str(folder)])}")


def _run_new(text: str, options: RunOptions, output: Output) -> tuple[Run, Path]:
    plan = typed_plan([text], options)
    (label,) = plan.methods
    if options.resume and options.out is None:
        raise UserError("--resume needs to know which run: add --out FOLDER, or type coterie run FOLDER --resume")
    folder = options.out or fresh_folder(f"{folder_name(label)}-{folder_name(plan.source.partition(':')[0])}")
    trackers = [*output.trackers(), ChosenEngine()]
    run = plan.prepared(label, plan.first_seed, out=folder, progress=not output.quiet, trackers=trackers)
    remarks = [plan.remark(run.experiment.federation), f"  {plan.preset_text(run.experiment.algorithm)}"]
    output.say("\n".join([*remarks, *file_text(plan.methods, options), *plan.notes(plan.first_seed)]))
    with interruptible(folder, options, output):
        return run.run(), folder
