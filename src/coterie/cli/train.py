"""``coterie run``, and what it shares with commands that train several methods."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..algorithms import Algorithm
from ..core.arguments import accept
from ..core.custom import folder_name
from ..core.errors import UserError
from ..core.schema import MetricInfo, Select
from ..data.validation import with_validation
from ..engines import Serial
from ..measure import metrics_for
from ..measure.compare import Comparison, MethodRuns, RunData
from ..measure.selection import chooses
from ..models.model import Model
from ..track import Tracker
from ..training.chosen import check_selection
from ..training.evaluation import evaluation_interval
from ..training.experiment import Experiment
from ..training.fit import fit
from ..training.model_check import check_model
from ..training.newcomers import hold_out
from ..training.run import Run
from .chosen_engine import ChosenEngine
from .interrupted import interruptible
from .options import Output, RunOptions
from .request import RunPlan, check_settings, cluster
from .results import TableStyle, show_comparison
from .saved_run import run_again, saved_config
from .several import fresh_folder
from .variations import variation


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
    algorithm = plan.algorithm(method, [method])
    trackers = [*output.trackers(), ChosenEngine()]
    seed = options.given("seed")
    trained, _ = hold_out(plan.federation(seed), plan.holdout, seed)
    remarks = [plan.remark([method], trained), f"  {plan.preset_text(algorithm)}"]
    output.say("\n".join([*remarks, *plan.file_text([method]), *plan.notes(seed)]))
    with interruptible(folder, options, output):
        return train_seed(plan, method, [method], seed, folder, not output.quiet, trackers), folder


def train_seed(
    plan: RunPlan,
    method: str,
    among: Sequence[str],
    seed: int,
    folder: Path | None,
    progress: bool | str,
    trackers: Sequence[Tracker],
) -> Run:
    """Train one method with one seed; ``among``: all methods of this command."""
    federation = plan.federation(seed)
    module, algorithm = plan.module(federation, seed, among), plan.algorithm(method, among)
    missing = plan.missing(module, federation, algorithm, among)
    return fit(
        plan.trained(module),
        federation,
        algorithm,
        rounds=plan.rounds,
        loss=plan.loss,
        metric=tuple(plan.options.metric),
        seed=seed,
        engine=plan.options.given("engine"),
        device=plan.options.given("device"),
        out=folder,
        resume=plan.options.resume,
        evaluate_every=plan.options.evaluate_every or "auto",
        validation=plan.options.given("validation"),
        holdout_clients=plan.holdout,
        select=plan.options.given("select"),
        patience=plan.options.patience,
        init=plan.init(module, federation, algorithm, among),
        drop_messages=missing.drop_messages,
        offline=missing.offline,
        record=plan.options.record,
        precision=plan.options.given("precision"),
        cluster=cluster(plan.options),
        progress=progress,
        trackers=trackers,
        time_limit=plan.options.for_,
    )


def checked_plan(
    plan: RunPlan, methods: Sequence[str], chosen: Sequence[Algorithm]
) -> tuple[RunPlan, str, MetricInfo | None]:
    """Find every mistake before the first run; return the plan, what to say of it, and the metric that decides.

    ``chosen``: what is going to be trained, methods with their settings.
    """
    options, seed = plan.options, plan.options.given("seed")
    federation, _ = hold_out(plan.federation(seed), plan.holdout, seed)
    federation = with_validation(federation, options.given("validation"), seed)
    model = Model(plan.module(federation, 0, methods), plan.loss)
    check_model(model, federation)
    plan.check_missing(methods, [plan.missing(model.module, federation, a, methods) for a in chosen])
    experiments = experiments_of(plan, methods, chosen, seed)
    rule = accept("the command", "select", options.given("select"), Select)
    for experiment in experiments:
        check_selection(experiment, rule, options.patience)
        experiment.check()
    plan.check_init(model.module, federation, chosen)
    # All in the same rounds: the best of many rounds is more than the best of few.
    every = options.evaluate_every or max(evaluation_interval(e, chooses(rule, options.patience)) for e in experiments)
    remark = plan.remark(methods, federation) + (f", evaluated every {every} rounds" if every > 1 else "")
    metric = next(iter(experiments[0].metrics.infos), None)
    return replace(plan, options=replace(options, evaluate_every=every)), remark, metric


def experiments_of(plan: RunPlan, methods: Sequence[str], chosen: Sequence[Algorithm], seed: int) -> list[Experiment]:
    """Return what would be trained with one seed, bound and not yet checked."""
    options = plan.options
    federation, _ = hold_out(plan.federation(seed), plan.holdout, seed)
    federation = with_validation(federation, options.given("validation"), seed)
    model = Model(plan.module(federation, seed, methods), plan.loss)
    metrics = metrics_for(model, federation.sample(2), federation.y, options.metric)
    missing = [plan.missing(model.module, federation, a, methods) for a in chosen]
    return [
        replace(
            Experiment.of(model, federation, a, Serial(), seed, plan.rounds, some.drop_messages, options.record),
            offline=some.offline,
            metrics=metrics,
            evaluate_every=options.evaluate_every or 1,
        )
        for a, some in zip(chosen, missing, strict=True)
    ]


def without_models(run: Run) -> RunData:
    """Return a run without its models: those of all runs would fill the memory."""
    return RunData(run.config, run.history, run.summary, run.client_summary)
