"""The loop: run a round, measure it, save it, until all are done."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn

from ..algorithms.base import Algorithm, Problem
from ..algorithms.bind import bind
from ..algorithms.used import check_used
from ..core import rng
from ..core.annotations import Example, Fraction, PositiveInt, Range
from ..core.arguments import checked
from ..core.errors import UserError, noted
from ..core.openmp import spinning_threads
from ..core.schema import Config, Init, MeasureName, Precision, Select
from ..core.spec import parse
from ..core.units import metrics_of
from ..data import Federation
from ..data.validation import with_validation, without_validation
from ..engines import Serial
from ..engines.base import InMemory
from ..measure import metrics_for
from ..measure.metric import MetricLike
from ..measure.selection import chooses
from ..models.accept import accepted
from ..models.losses import loss_of
from ..models.model import Loss, Model
from ..store import RunFolder
from ..track import Tracker, Tracking
from ..track.progress import PendingMessages, Progress
from .backend import backend_of
from .checks import check_precision, find_device, idle_clients
from .chosen import check_selection, chosen_by
from .cluster import Cluster, check_cluster
from .config import describe
from .evaluation import interval
from .experiment import Experiment
from .first import COMMON, PER_CLIENT, drawn, first_models
from .freed_memory import retain_freed_memory
from .model_check import check_model
from .newcomers import hold_out
from .rounds import begin_rounds, read_again, run_rounds
from .run import Run
from .select_engine import select_engine
from .time_limit import LimitedRun, TimeLimit

AUTO = "auto"
TRIAL = "It happened in a trial before the first round."
EVERY_N_NOTE = "evaluated every {} rounds, to save time (--evaluate-every 1: all of them)"


ModelLike = Annotated[nn.Module | Callable[[], nn.Module], Example('coterie.models.build("mlp", federation)')]


@checked("function")
def fit(
    model: ModelLike,
    federation: Annotated[Federation, Example('coterie.data.federate("digits")')],
    algorithm: Annotated[Algorithm, Example("coterie.algorithms.fedavg()")],
    *,
    rounds: PositiveInt,
    seed: int = 0,
    engine: str = "auto",
    device: str | torch.device = "auto",
    loss: Annotated[Loss | str, Example("torch.nn.functional.cross_entropy")] | None = None,
    metric: Annotated[MetricLike | list[MetricLike] | tuple[MetricLike, ...], Example('"macro-f1"')] = (),
    out: str | Path | RunFolder | None = None,
    resume: bool = False,
    progress: bool | str = True,
    evaluate_every: PositiveInt | Literal["auto"] = 1,
    validation: Fraction = 0.0,
    holdout_clients: Annotated[float | int, Range()] = 0,
    select: Select = "last",
    patience: PositiveInt | None = None,
    init: Init = COMMON,
    drop_messages: Fraction = 0.0,
    offline: Fraction = 0.0,
    record: Sequence[MeasureName] = (),
    precision: Precision = "fp32",
    trackers: Sequence[Annotated[Tracker, Example("coterie.track.TensorBoard()")]] = (),
    cluster: Cluster | None = None,
    time_limit: Annotated[TimeLimit, Example('coterie.TimeLimit("25m")')] | None = None,
) -> Run:
    """Train one model per client and return them with everything that was measured.

    Args:
        model: A module, or a function without arguments that builds one.
        federation: The clients' data.
        algorithm: The method with its settings.
        rounds: How many rounds.
        seed: Decides everything that is drawn.
        engine: "auto", "serial", "vectorized", "graphed" or "ray".
        device: "auto", "cpu" or "cuda".
        loss: loss(outputs, targets), the mean over the batch, or a name: "cross-entropy" unless it is given, "bce" for
            several labels, "mse", "mae", "huber", "dice".
        metric: What is measured: the name of a built-in metric, a function of (outputs, targets) or a
            ``coterie.measure.metric`` made of one, or several, of which the first one decides. Unless it is given,
            that of the task: accuracy of classes, mean squared error of numbers.
        out: A folder that is written round by round.
        resume: Go on with the interrupted run in ``out``, if there is one.
        progress: False shows none; a text is the name of the run there.
        evaluate_every: Rounds between two evaluations; the last one is always evaluated. "auto", as the commands have
            it: 1, unless all evaluations would take more than two seconds and more than a tenth of the training; then
            as many as save that time, but ten evaluations are left. With ``select`` or ``patience`` it is 1.
        validation: The part of every client's training samples that is kept out of training, to choose by: drawn by
            the seed, stratified by class. Test samples stay what they are.
        holdout_clients: How many clients are kept out of training and come afterwards, a fraction or a number, drawn by
            the seed; ``run.newcomers`` tells what they get.
        select: Whose models the run ends with, and reports: those of the "last" round, of the round that is best on
            validation samples, for all clients together ("best-validation") or for each client by itself
            ("best-validation-per-client"), or on the test samples themselves ("best-test"), which is optimistic.
        patience: Stop after so many evaluations in a row that were no better on validation samples.
        init: "common", one model for all, or "per-client", where each draws its own (with a server its personal part).
        drop_messages: How likely a message between peers is dropped.
        offline: How likely a client between peers is absent for a whole round, and keeps what it has.
        record: Further columns of evaluated rounds: "gradients" (G_u and G_v over all data), "sharpness",
            "singular-values", "perplexity", "train-accuracy" (of the one model that all agree on), "own-train" (of
            every client's own model on its own training samples), "deltas" (Delta_u at (u^t, V^(t+1)), Delta_v at
            (u^t, V^t)), "mass" (of push-sum), "constants" (of theorems, estimated),
            "clients" (the metrics of every single client, for ``run.client_history()``).
        precision: "fp32", "tf32" (a GPU rounds products to 10 bits) or "bf16" (products in bfloat16; weights stay).
        trackers: Who else is told of every round, such as ``coterie.track.TensorBoard()``.
        cluster: Where engine="ray" trains; a cluster on this machine is started unless it has an address.
        time_limit: Such as ``coterie.TimeLimit("25m")``, for all runs that get it: raise ``coterie.OutOfTime`` in time,
            when the rounds so far are saved in ``out`` and the next one would not end within it.

    >>> import coterie as ct
    >>> fed = ct.data.federate("synthetic", clients=4, partition="iid", seed=0)
    >>> run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.dfedavg(topology="ring", epochs=1),
    ...              rounds=2, progress=False)
    >>> len(run.history), len(run.clients), sorted(run.clients[0].shared)
    (2, 4, ['1.bias', '1.weight'])
    """
    if resume and out is None:
        raise UserError("resume goes on with a run that was written: give out, the folder it is in")
    if time_limit is not None and out is None:
        raise UserError("a time limit is for a run that can go on later: give out, the folder to write it to")
    limited = None if time_limit is None else LimitedRun(time_limit)
    folder = out if out is None or isinstance(out, RunFolder) else RunFolder(Path(out))
    continued = folder is not None and resume and folder.exists
    if continued and folder is not None:
        engine = _same_engine(engine, folder.config().get("engine", engine))
    there = check_cluster(engine, cluster)
    place = find_device(device if there is None else "cpu")
    check_precision(precision, place, there)
    module = accepted(model) if isinstance(model, nn.Module) else drawn(model, rng.key(seed, "init"))
    given = Model(module.to(place), loss_of(loss), precision=precision)
    federation, newcomers = hold_out(federation.to(place), holdout_clients, seed)
    federation = with_validation(federation, validation, seed)
    asked = metric if isinstance(metric, list | tuple) else [metric]
    with noted(TRIAL):
        check_model(given, federation)
        metrics = metrics_for(given, federation.sample(2), federation.y, asked)
    check_used(algorithm)
    adapted = algorithm.adapt(given)
    program = bind(algorithm, Problem(adapted, federation.clients, rounds, seed), offline > 0)
    first = first_models(model, given, algorithm, seed) if init == PER_CLIENT else None
    plan = metrics, seed, rounds, drop_messages, record
    experiment = Experiment(adapted, federation, algorithm, program, Serial(), *plan, offline=offline, first=first)
    experiment = replace(experiment, newcomers=newcomers)
    check_selection(experiment, select, patience)
    with noted(TRIAL):
        experiment.check()
        chosen = None if there else select_engine(engine, experiment, federation.clients)
    runs_on = experiment.engine if chosen is None else chosen.engine
    experiment = replace(experiment, engine=runs_on)
    every = interval(evaluate_every, experiment, folder if continued else None, chooses(select, patience))
    experiment = replace(experiment, evaluate_every=every)
    messages = PendingMessages()
    with backend_of(experiment, chosen, engine, there, messages) as (backend, runs, reason):
        on = "cuda" if there is not None and there.gpus_per_worker else place.type
        config: Config = {**describe(experiment, given, runs, reason, on), **chosen_by(validation, select, patience)}
        name = progress if isinstance(progress, str) else algorithm.name
        with (
            Progress(name, rounds, f"{runs} on {on}", bool(progress), metrics_of(config)) as bar,
            retain_freed_memory(),
            Tracking(trackers, bar) as tracking,
        ):
            messages.go_to(bar.warn)
            if chosen is not None and chosen.warning is not None:
                bar.warn(chosen.warning)
            for told in filter(None, (idle_clients(experiment), without_validation(federation), spinning_threads())):
                bar.warn(told)
            if isinstance(runs_on, InMemory):
                runs_on.on_build = bar.building
            if evaluate_every == AUTO and experiment.evaluate_every > 1:
                bar.say(EVERY_N_NOTE.format(experiment.evaluate_every))
            if continued and folder is not None and folder.finished:
                folder.check_same(config)
                return read_again(experiment, folder, config, tracking)
            with nullcontext() if folder is None else folder.writing(config, bar.warn, continued):
                now, history = begin_rounds(backend, folder if continued else None, config, bar)
                tracking.begin(config, None if folder is None else folder.path, history)
                return run_rounds(experiment, backend, folder, config, now, history, bar, tracking, limited)


def _same_engine(asked: str, begun: str) -> str:
    """Return the engine of a continued run, chunk included, unless another one is asked for."""
    return begun if asked in ("auto", parse(begun).name) else asked
