"""A run before it begins: everything is checked and nothing is trained or written."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from torch import nn

from ..algorithms.base import Algorithm, Problem
from ..algorithms.bind import bind
from ..algorithms.used import check_used
from ..core import rng
from ..core.annotations import Example
from ..core.errors import UserError, noted
from ..core.openmp import spinning_threads
from ..core.schema import Config
from ..core.spec import parse
from ..core.units import metrics_of
from ..data import Federation
from ..data.batches import Integers
from ..data.validation import with_validation, without_validation
from ..engines import Serial
from ..engines.base import InMemory
from ..measure import Metrics, metrics_for
from ..models.accept import accepted
from ..models.losses import loss_of
from ..models.model import Model
from ..store import RunFolder
from ..track import Tracking
from ..track.progress import PendingMessages, Progress
from .backend import Backend, backend_of
from .checks import begins_apart, check_precision, find_device, idle_clients
from .chosen import check_selection
from .cluster import RAY, Cluster, check_cluster
from .config import describe
from .evaluation import interval
from .experiment import Experiment
from .first import COMMON, PER_CLIENT, drawn, first_models
from .freed_memory import retain_freed_memory
from .model_check import check_model
from .model_parts import model_parts
from .newcomers import hold_out
from .rounds import begin_rounds, read_again, run_rounds
from .run import Run
from .select_engine import Choice, select_engine
from .settings import RunSettings
from .time_limit import LimitedRun

AUTO = "auto"
TRIAL = "It happened in a trial before the first round."
EVERY_N_NOTE = "evaluated every {} rounds, to save time (--evaluate-every 1: all of them)"

ModelLike = Annotated[nn.Module | Callable[[], nn.Module], Example('coterie.models.build("mlp", federation)')]


@dataclass(frozen=True)
class Prepared:
    """A run that is checked and ready."""

    experiment: Experiment
    given: Model  # as it was before the method adapted it
    settings: RunSettings  # as they were given
    choice: Choice | None  # the engine of this process; None: the workers of a cluster have it
    cluster: Cluster | None

    @property
    def warnings(self) -> list[str]:
        """What the run warns of before its first round."""
        slow = None if self.choice is None else self.choice.warning
        spinning = spinning_threads(torch.get_num_threads())
        said = slow, idle_clients(self.experiment), without_validation(self.experiment.federation), spinning
        return list(filter(None, said))

    @property
    def config(self) -> Config:
        """The configuration that the run writes; on a cluster, the workers choose the engine when it begins."""
        if self.choice is None:
            return self._config_on(RAY, "as asked")
        return self._config_on(self.choice.engine.name, self.choice.reason)

    def having(self, **chosen: Any) -> Self:
        """Return the run with other folders, trackers or evaluated rounds."""
        every = {key: value for key, value in chosen.items() if key == "evaluate_every"}
        return replace(self, settings=self.settings.having(**chosen), experiment=self.experiment.having(**every))

    def run(self) -> Run:
        """Train, and return the models with everything that was measured."""
        s, messages = self.settings, PendingMessages()
        limited = None if s.time_limit is None else LimitedRun(s.time_limit)
        folder = folder_of(s)
        with backend_of(self.experiment, self.choice, s.engine, self.cluster, messages) as (backend, runs, reason):
            config = self._config_on(runs, reason)
            name = s.progress if isinstance(s.progress, str) else self.experiment.algorithm.name
            with (
                Progress(name, s.rounds, f"{runs} on {self._device}", bool(s.progress), metrics_of(config)) as bar,
                retain_freed_memory(),
                Tracking(s.trackers, bar) as tracking,
            ):
                messages.go_to(bar.warn)
                self._tell(bar)
                return self._run(backend, folder, config, bar, tracking, limited)

    def _tell(self, bar: Progress) -> None:
        for warning in self.warnings:
            bar.warn(warning)
        if not isinstance(self.settings.progress, str):  # a run among several is told of before the first of them
            bar.say(model_parts(self.experiment))
        if isinstance(self.experiment.engine, InMemory):
            self.experiment.engine.on_build = bar.building
        if self.settings.evaluate_every == AUTO and self.experiment.schedule.every > 1:
            bar.say(EVERY_N_NOTE.format(self.experiment.schedule.every))

    def _run(
        self,
        backend: Backend,
        folder: RunFolder | None,
        config: Config,
        bar: Progress,
        tracking: Tracking,
        limited: LimitedRun | None,
    ) -> Run:
        begun = begun_folder(self.settings)
        if begun is not None and begun.finished:
            begun.check_same(config)
            return read_again(self.experiment, begun, config, tracking)
        with nullcontext() if folder is None else folder.writing(config, bar.warn, begun is not None):
            now, history = begin_rounds(backend, begun, config, bar)
            tracking.begin(config, None if folder is None else folder.path, history)
            return run_rounds(self.experiment, backend, folder, config, now, history, bar, tracking, limited)

    @property
    def _device(self) -> str:
        on_gpus = self.cluster is not None and self.cluster.gpus_per_worker
        return "cuda" if on_gpus else self.experiment.federation.y.device.type

    def _config_on(self, engine: str, reason: str) -> Config:
        return describe(self.experiment, self.given, engine, reason, self._device)


def prepare(
    model: ModelLike | Model,
    federation: Federation,
    algorithm: Algorithm,
    settings: RunSettings,
    shard: Integers | None = None,
) -> Prepared:
    """Check everything of a run, and train nothing.

    model: as ``fit`` takes it, or what ``model_of`` made of it, which several runs then share. shard: the clients of
    this process, where others have the rest.
    """
    begun, settings = begun_folder(settings), as_begun(settings)
    cluster = check_cluster(settings.engine, settings.cluster)
    given = model if isinstance(model, Model) else model_of(model, settings)
    here, newcomers = hold_out(federation.to(_place(settings)), settings.holdout_clients, settings.seed)
    here = with_validation(here, settings.validation, settings.seed)
    with noted(TRIAL):
        given = check_model(given, here)
        metrics = metrics_for(given, here.sample(2), here.y, settings.metrics)
    check_used(algorithm)
    first = None
    if settings.init == PER_CLIENT:
        first = first_models(given.module if isinstance(model, Model) else model, given, algorithm, settings.seed)
    engine = Serial(here.y.device)
    fields = {"settings": settings, "shard": shard, "first": first, "newcomers": newcomers}
    experiment = Experiment.bound(algorithm.adapt(given), here, algorithm, engine, metrics, **fields)
    check_selection(experiment)
    with noted(TRIAL):
        experiment.check()
        choice = None if cluster else select_engine(settings.engine, experiment, len(experiment.local_clients))
    experiment = experiment if choice is None else replace(experiment, engine=choice.engine)
    every = interval(settings.evaluate_every, experiment, begun)
    return Prepared(experiment.having(evaluate_every=every), given, settings, choice, cluster)


def beside_others(given: Model, federation: Federation, algorithm: Algorithm, settings: RunSettings) -> RunSettings:
    """Return the options that a method takes beside others, which take more of them.

    Those for clients that mix with each other are not for a method with a server, and first models of their own are
    not for clients that have nothing of their own.
    """
    if not any(settings.lost.values()) and settings.init != PER_CLIENT:
        return settings
    experiment = Experiment.of(given, federation, algorithm, Serial(), settings.seed, settings.rounds)
    if experiment.program.topology is None:
        settings = settings.with_server()
    if settings.init == PER_CLIENT:
        first = first_models(given.module, given, algorithm, settings.seed)
        settings = settings if begins_apart(replace(experiment, first=first)) else settings.having(init=COMMON)
    return settings


def prepare_newcomers(
    adapted: Model,
    newcomers: Federation,
    algorithm: Algorithm,
    settings: RunSettings,
    clients: int,
    *,
    metrics: Metrics,
) -> Experiment:
    """Return the experiment of clients that come after a run of ``clients`` others, whose program it has."""
    problem = Problem(adapted, clients, settings.rounds, settings.seed)
    program = bind(algorithm, problem, settings.absences)
    return Experiment.bound(adapted, newcomers, algorithm, Serial(), metrics, settings=settings, program=program)


def prepared_elsewhere(
    adapted: Model, federation: Federation, algorithm: Algorithm, fields: Mapping[str, Any]
) -> Experiment:
    """Return an experiment that another process has prepared and checked; ``fields``: those that it sent."""
    return Experiment.bound(adapted, federation, algorithm, Serial(), **fields)


def model_of(model: ModelLike, settings: RunSettings) -> Model:
    """Return the model that all clients begin with, on the device of the run."""
    cluster, place = check_cluster(settings.engine, settings.cluster), _place(settings)
    check_precision(settings.precision, place, cluster)
    module = accepted(model) if isinstance(model, nn.Module) else drawn(model, rng.key(settings.seed, "init"))
    return Model(module.to(place), loss_of(settings.loss), precision=settings.precision)


def _place(settings: RunSettings) -> torch.device:
    """Return where the samples are: on a cluster in the memory of this machine, from where they go to the workers."""
    return find_device(settings.device if parse(settings.engine).name != RAY else "cpu")


def folder_of(settings: RunSettings) -> RunFolder | None:
    """Return the folder of a run, if it has one."""
    out = settings.out
    return out if out is None or isinstance(out, RunFolder) else RunFolder(Path(out))


def begun_folder(settings: RunSettings) -> RunFolder | None:
    """Return the folder of an interrupted or finished run that goes on; refuse what needs a folder and has none."""
    if settings.resume and settings.out is None:
        raise UserError("resume goes on with a run that was written: give out, the folder it is in")
    if settings.time_limit is not None and settings.out is None:
        raise UserError("a time limit is for a run that can go on later: give out, the folder to write it to")
    folder = folder_of(settings)
    return folder if folder is not None and settings.resume and folder.exists else None


def as_begun(settings: RunSettings) -> RunSettings:
    """Return the options of a run; one that goes on keeps its engine, chunk included, unless another one is named."""
    begun = begun_folder(settings)
    if begun is None:
        return settings
    before = begun.config().get("engine", settings.engine)
    return settings.having(engine=before) if settings.engine in (AUTO, parse(before).name) else settings
