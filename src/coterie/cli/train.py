"""``coterie run``, and what it shares with commands that train several methods."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import algorithms
from ..algorithms import Algorithm
from ..core.arguments import accept
from ..core.checked_json import read_json
from ..core.custom import folder_name, is_own
from ..core.errors import DivergedError, FolderError, UserError
from ..core.files import path_problem
from ..core.schema import Config, MetricInfo, Select
from ..data.validation import with_validation
from ..engines import Serial
from ..measure import metrics_for
from ..measure.compare import Comparison, MethodRuns, RunData
from ..measure.selection import LAST
from ..models.losses import loss_named
from ..models.model import Model
from ..store.folder import CONFIG
from ..track import Tracker
from ..training.checks import check_model
from ..training.chosen import check_selection
from ..training.cluster import Cluster
from ..training.config import rebuild
from ..training.evaluation import evaluation_interval
from ..training.experiment import Experiment
from ..training.fit import fit
from ..training.newcomers import hold_out
from ..training.run import Run
from .interrupted import interruptible
from .options import Output, RunOptions
from .request import RunPlan, check_settings, refuse_beside_config
from .results import TableStyle, show_comparison
from .several import fresh_folder
from .variations import variation

# The arguments of fit that a saved configuration decides alone.
SAVED = ("rounds", "seed", "device", "evaluate_every", "init", "drop_messages", "offline", "record", "precision")
# Those that it leaves out where they are as usual.
USUAL: dict[str, Any] = {"validation": 0.0, "holdout_clients": 0, "select": LAST, "patience": None}


def run_method(method: str, options: RunOptions, trusted: Sequence[str], style: TableStyle, output: Output) -> None:
    """Train one method, from its name or from a saved configuration; ``trusted``: the code that one may run."""
    saved = saved_config(method)
    if saved is not None:
        run, folder = _run_again(saved, options, trusted, output)
    elif trusted:
        raise UserError(f"--trust {trusted[0]} is for a saved configuration: {method} is typed already")
    else:
        run, folder = _run_new(variation(method).typed, options, output)
    show_comparison(Comparison([MethodRuns(run.summary["method"], [without_models(run)])]), folder, style.format)
    output.say(f"to look at it: {shlex.join(['coterie', 'report', str(folder)])}")


def saved_config(text: str) -> Path | None:
    """Return the configuration that a text points to, None where it is the name of a method."""
    path = Path(text)
    if algorithms.is_method(text) or is_own(text) or path_problem(text):
        return None
    if path.is_dir():
        return path / CONFIG
    return path if path.suffix == ".json" or path.is_file() else None


def _run_again(config_path: Path, options: RunOptions, trusted: Sequence[str], output: Output) -> tuple[Run, Path]:
    config = read_json(config_path, Config)
    refuse_beside_config(options, config)
    module, federation, algorithm = rebuild(config, trusted, options.data_dir, str(config_path))
    again = config_path.parent if options.resume else fresh_folder(f"{folder_name(algorithm.name)}-again")
    folder = options.out or again
    trackers = output.trackers()
    said = f"{config['rounds']} rounds, seed {config['seed']}, engine {config['engine']}"
    output.say(f"{algorithm.name} as saved: {said}")
    saved: Any = {**USUAL, **{key: value for key, value in config.items() if key in (*SAVED, *USUAL)}}
    with interruptible(folder, options, output), _named(config_path):
        run = fit(
            module,
            federation,
            algorithm,
            **saved,
            loss=loss_named(config["loss"]),
            metric=[m["name"] for m in config.get("metrics", [])],
            engine=options.engine or config["engine"],
            out=folder,
            resume=options.resume,
            cluster=cluster(options),
            progress=not output.quiet,
            trackers=trackers,
            time_limit=options.for_,
        )
    if config.get("fingerprints") != run.config["fingerprints"]:
        print("coterie: the data or the first model is not what this configuration was made with", file=sys.stderr)
    return run, folder


@contextmanager
def _named(config_path: Path) -> Iterator[None]:
    """Name the file in what is wrong with a configuration; what is wrong with a folder or a round names that."""
    try:
        yield
    except (DivergedError, FolderError):
        raise
    except UserError as error:
        raise UserError(f"{config_path}: {error}") from error


def _run_new(method: str, options: RunOptions, output: Output) -> tuple[Run, Path]:
    check_settings([method], options)
    plan = RunPlan.of(options)
    if options.resume and options.out is None:
        raise UserError("--resume needs to know which run: add --out FOLDER, or type coterie run FOLDER --resume")
    folder = options.out or fresh_folder(f"{folder_name(method)}-{plan.source.partition(':')[0]}")
    algorithm = plan.algorithm(method, [method])
    trackers = output.trackers()
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


def cluster(options: RunOptions) -> Cluster | None:
    """Return the cluster that was typed, if any."""
    typed = Cluster(options.workers, options.ray_address, options.given("gpus_per_worker"))
    return None if typed == Cluster() else typed


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
    for experiment in experiments:
        check_selection(experiment, accept("the command", "select", options.given("select"), Select), options.patience)
        experiment.check()
    plan.check_init(model.module, federation, chosen)
    # All in the same rounds: the best of many rounds is more than the best of few.
    every = options.evaluate_every or max(map(evaluation_interval, experiments))
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
