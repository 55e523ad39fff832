"""``fit``, and a run before it begins: everything is checked and nothing is trained or written."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Concatenate, ParamSpec, Self, TypeVar, cast, get_type_hints

import torch
from torch import nn

from ..algorithms.base import Algorithm, Problem
from ..algorithms.bind import bind
from ..algorithms.used import check_used
from ..core import rng
from ..core.annotations import Example
from ..core.arguments import checked
from ..core.errors import UserError, noted
from ..core.openmp import spinning_threads
from ..core.schema import Config
from ..core.spec import parse
from ..core.tensors import Integers, entries, split
from ..core.units import metrics_of
from ..data import Federation
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
from .checks import check_model, check_precision, find_device, has_per_client_init, idle_clients
from .config import describe
from .experiment import Experiment
from .initial_models import COMMON, PER_CLIENT, drawn, first_models
from .newcomers import hold_out
from .results import check_selection
from .rounds import Backend, backend_of, begin_rounds, read_again, run_rounds
from .run import Run
from .schedule import interval
from .select_engine import Choice, select_engine
from .settings import RAY, Cluster, RunSettings, check_cluster, options, types_of_options
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
        settings = settings if has_per_client_init(replace(experiment, first=first)) else settings.having(init=COMMON)
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


def model_parts(e: Experiment) -> str:
    """Say how many of the model's numbers train, and whose they are."""
    start, constants = e.model.start, e.model.constants
    shared, personal = (entries(part.values()) for part in split(start, e.program.shared))
    trained = entries(split(start, e.model.parameters)[0].values())
    constant = entries(constants.values())
    numbers = shared + personal + constant
    whose = f"{shared:,} shared, {personal:,} personal, {constant:,} constant"
    return f"model: {numbers:,} numbers, {trained:,} train; {whose}"


P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 120


def takes_options(kind: type[RunSettings]) -> Callable[[F], F]:
    """Give a function of ``**options`` the signature of a kind of options, and their help in place of ``{options}``."""

    def decorate(function: F) -> F:
        named = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        types = get_type_hints(kind, None, dict(types_of_options()), include_extras=True)
        parameters = [*named, *(p.replace(annotation=types[p.name]) for p in signature(kind).parameters.values())]
        entries = (f"{f.name}: {f.metadata['help']}" for f in options(kind=kind))
        listed = "\n".join(fill(e, WIDTH, initial_indent=4 * " ", subsequent_indent=8 * " ") for e in entries)
        function.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__annotations__ |= types
        function.__doc__ = cleandoc(function.__doc__ or "").replace("    {options}", listed)
        return function

    return decorate


def _like_settings(
    kind: Callable[P, RunSettings],
) -> Callable[[Callable[..., Run]], Callable[Concatenate[ModelLike, Federation, Algorithm, P], Run]]:
    """Tell type checkers that a function of ``**options`` takes the options of a kind."""
    return lambda function: cast(Callable[Concatenate[ModelLike, Federation, Algorithm, P], Run], function)


@_like_settings(RunSettings)
@takes_options(RunSettings)
@checked("function")
def fit(
    model: ModelLike,
    federation: Annotated[Federation, Example('coterie.data.federate("digits")')],
    algorithm: Annotated[Algorithm, Example("coterie.algorithms.fedavg()")],
    **options: Any,
) -> Run:
    """Train one model per client and return them with everything that was measured.

    Args:
        model: A module, or a function without arguments that builds one.
        federation: The clients' data.
        algorithm: The method with its settings.
        {options}

    >>> import coterie as ct
    >>> fed = ct.data.federate("synthetic", clients=4, partition="iid", seed=0)
    >>> run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.dfedavg(topology="ring", epochs=1),
    ...              rounds=2, progress=False)
    >>> len(run.history), len(run.clients), sorted(run.clients[0].shared)
    (2, 4, ['1.bias', '1.weight'])
    """
    return prepare(model, federation, algorithm, RunSettings(**options)).run()
