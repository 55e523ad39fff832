"""From what was typed to what is trained: presets filled in, settings checked, nothing started yet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Self

from .. import algorithms, data, models, topology
from ..algorithms import Algorithm
from ..algorithms.custom import suitable
from ..algorithms.method import facts
from ..algorithms.options import EXCLUSIVE
from ..algorithms.settings import parse_settings, settings_of
from ..algorithms.used import unused
from ..algorithms.variation import builder_of, check_different, variation
from ..core.annotations import MOST
from ..core.custom import display_name, is_own, own_name
from ..core.errors import UserError
from ..core.spec import counted, parse, spelled
from ..data import Federation
from ..data.partition import NATURAL
from ..local.parse import OPTIMIZERS
from ..models.model import Model
from ..recipes.changes import fit_topology
from ..study.presets import PRESETS, Preset, models_for
from ..training.cluster import Cluster
from ..training.prepare import AUTO, ModelLike, Prepared, as_begun, beside_others, model_of, prepare
from ..training.settings import RunSettings
from .common.fields import flag
from .common.options import RunOptions

FLAGS = ("topology", "capacities", "optimizer")  # settings with an option of their own
LOWERED = ("engine", "device", "precision", "select", "init", "loss")  # options of a few names in small letters


@dataclass(frozen=True)
class RunPlan:
    """What ``fit`` needs, for any method and seed."""

    options: RunOptions
    preset: Preset
    source: str
    latest: dict[int, Federation] = field(default_factory=dict)  # by seed, the one that was read last
    models: dict[int, Model] = field(default_factory=dict)  # by seed, the one that was made last

    @classmethod
    def of(cls, options: RunOptions) -> "RunPlan":
        """Fill the gaps of the options with the preset of the data."""
        options = spelled_options(options)
        source = options.given("data")
        name = parse(source).name
        own = name not in data.SOURCES and own_name(source) is not None
        if name not in data.SOURCES and not own:
            data.federate(source)  # says what is wrong with the name
        plan = cls(options, PRESETS["csv" if own else name], source)
        partition = options.partition or plan.preset.partition
        if partition is not None and (partition != NATURAL or options.clients is not None):
            return plan
        known = plan.federation(options.given("seed"))  # the data know how they are divided
        told = replace(options, clients=known.clients, partition=str(known.origin["partition"]))
        return replace(plan, options=told)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.options.rounds or self.preset.rounds

    def federation(self, seed: int) -> Federation:
        """Return the clients' data; a large file is not read anew for every method."""
        if seed not in self.latest:
            self.latest.clear()
            partition = self.options.partition or self.preset.partition
            clients = self.options.clients or (None if partition in (None, NATURAL) else self.preset.clients)
            self.latest[seed] = data.federate(self.source, clients, partition, seed, self.options.data_dir)
        return self.latest[seed]

    @property
    def first_seed(self) -> int:
        """The seed of the first run."""
        return int(self.options.given("seed"))

    def with_options(self, **changed: Any) -> Self:
        """Return the plan with other options."""
        return replace(self, options=replace(self.options, **changed))

    def with_settings(self, typed: Sequence[str]) -> Self:
        """Return the plan with further settings, as if somebody had typed them."""
        return self.with_options(set=[*self.options.set, *typed])

    def titled(self, method: str) -> str:
        """Return what the progress of a method is called."""
        return method

    def has(self, method: str, key: str) -> bool:
        """Return whether a method has a setting."""
        return key in settings_of(builder_of(method))

    @property
    def holdout(self) -> float | int:
        """The clients that come after training: a fraction of all, or their number."""
        asked: float = self.options.given("holdout_clients")
        if asked >= 1 and (asked > MOST or asked != int(asked)):  # infinity is no int
            raise UserError(f"--holdout-clients {asked:g} is no number of clients: give a whole one, or a fraction")
        return asked if asked < 1 else int(asked)

    def notes(self, seed: int) -> tuple[str, ...]:
        """Return what was done to the columns of a table, for the person to see."""
        columns = self.federation(seed).columns
        return () if columns is None else columns.notes

    def settings(self, seed: int, **chosen: Any) -> RunSettings:
        """Return the options of a run with this seed; ``chosen``: those that differ from what was typed."""
        typed = {**self.options.typed, "metric": tuple(self.options.metric), "holdout_clients": self.holdout}
        there: dict[str, Any] = {"cluster": cluster(self.options)}
        if chosen.get("out") is not None:  # what is only checked has no folder to go on in
            there |= {"resume": self.options.resume, "time_limit": self.options.for_}
        return RunSettings(**{"evaluate_every": AUTO, **typed, "rounds": self.rounds, "seed": seed, **there, **chosen})

    def prepared(self, method: str, among: Sequence[str], seed: int, **chosen: Any) -> Prepared:
        """Return a run of a method, checked and ready; ``among``: all methods of this command."""
        federation, algorithm = self.federation(seed), self.algorithm(method, among)
        settings = as_begun(self.settings(seed, **chosen))
        if len(among) > 1:
            settings = beside_others(self.given(federation, settings, among), federation, algorithm, settings)
        return prepare(self.model(federation, settings, among), federation, algorithm, settings)

    def model(self, federation: Federation, settings: RunSettings, among: Sequence[str]) -> ModelLike | Model:
        """Return the model as a run takes it."""
        return self.given(federation, settings, among)

    def given(self, federation: Federation, settings: RunSettings, among: Sequence[str]) -> Model:
        """Return the model that all clients of all methods begin with, in memory once."""
        seed = settings.seed
        if seed not in self.models:
            self.models.clear()
            self.models[seed] = model_of(self.module(federation, seed, among), settings)
        return self.models[seed]

    def module(self, federation: Federation, seed: int, among: Sequence[str]) -> ModelLike:
        """Return the module that a run starts from, one that all methods of this command can train."""
        return models.build(self.model_name(federation, among), federation, seed=seed)

    def model_name(self, federation: Federation, among: Sequence[str]) -> str:
        """Return the model as it would be typed."""
        staged = any(facts(builder_of(m)).staged for m in among)
        suited = models_for(self.preset, federation.input_shape)
        return self.options.model or (suited.staged if staged else suited.model)

    def algorithm(self, method: str, among: Sequence[str]) -> Algorithm:
        """Return the method with the preset's settings and the typed ones; ``among``: all methods of this command."""
        builder = builder_of(method)
        known = settings_of(builder)
        chosen = {k: v for k, v in self.preset.settings.items() if k in known and suitable(method, k)}
        chosen |= own_settings(self.preset, builder)
        if NoneType in known.get("topology", ()):  # with a server unless asked
            chosen.pop("topology", None)
        if "topology" in chosen:
            chosen["topology"] = fit_topology(chosen["topology"], self.options.clients or self.preset.clients)
        asked = self.asked(method, among)
        chosen = {k: v for k, v in chosen.items() if not displaced(k, asked)} | asked
        idle = unused(variation(method).method, builder(**chosen).settings).keys() - asked.keys()
        return builder(**{k: v for k, v in chosen.items() if k not in idle})

    def check_different(self, methods: Sequence[str], chosen: Sequence[Algorithm]) -> None:
        """Refuse a method that is named twice with the same settings."""
        check_different(methods, chosen)

    def asked(self, method: str, among: Sequence[str]) -> dict[str, Any]:
        """Return the settings that somebody chose for a method: in a file, and in the command, which wins over it."""
        name, builder = variation(method).method, builder_of(method)
        typed = parse_settings(self.options.set, {variation(m).method: builder_of(m) for m in among})[name]
        known = settings_of(builder)
        typed |= {k: v for k in FLAGS if k in known and (v := getattr(self.options, k)) is not None}
        own = parse_settings(variation(method).settings, {name: builder})[name]
        filed = settings_from_file(self.options, among)[method]
        first = {k: v for k, v in filed.items() if not displaced(k, typed)} | typed
        return {k: v for k, v in first.items() if not displaced(k, own)} | own

    def check_taken(self, runs: Sequence[Prepared]) -> None:
        """Refuse options between peers, and first models of their own, that no method of the command takes."""
        asked, names = self.settings(self.first_seed), ", ".join(run.experiment.algorithm.name for run in runs)
        for name, likely in asked.lost.items():
            if likely and not any(run.settings.lost[name] for run in runs):
                raise UserError(f"{names} have a server: lower participation instead of {flag(name)}")
        if asked.init not in [run.settings.init for run in runs]:
            raise UserError(f"with {names} all begin with the server's model: leave --init out")

    def remark(self, methods: Sequence[str], federation: Federation) -> str:
        """Return what is going to be trained on what, for the person to see before it begins."""
        what = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
        given = self.given(self.federation(self.first_seed), self.settings(self.first_seed), methods)
        size = sum(p.numel() for p in given.module.parameters())
        clients, rounds = counted(federation.clients, "client"), counted(self.rounds, "round")
        return (
            f"{what} on {self.source}: {clients}, {federation.origin.get('partition', 'as given')}, {rounds}, "
            f"{self.model_name(federation, methods)} with {size:,} parameters, engine {self.options.given('engine')}"
        )

    def file_text(self, methods: Sequence[str]) -> list[str]:
        """Return what to say of a file of settings: whose tables are used, and whose are not."""
        file = self.options.settings
        if file is None:
            return []
        used = [m for m, settings in settings_from_file(self.options, methods).items() if settings]
        idle = [name for name in file.tables if display_name(name) not in map(display_name, used)]
        rest = f"; its tables for {', '.join(idle)} are not used here" if idle else ""
        return [f"settings of {', '.join(used)} from {file.path}{rest}"]

    def preset_text(self, algorithm: Algorithm) -> str:
        """Return what the preset set, for the person to see."""
        return ", ".join(f"{k}={algorithm.settings[k]}" for k in self.preset.settings if k in algorithm.settings)


def spelled_options(options: RunOptions) -> RunOptions:
    """Return the options with all names as the tables spell them, whatever their case was."""
    known: dict[str, Iterable[str]] = {
        "data": data.SOURCES,
        "model": models.BUILDERS,
        "partition": (*data.PARTITIONS, NATURAL),
        "topology": topology.BUILDERS,
        "optimizer": OPTIMIZERS,
    }
    texts: dict[str, Any] = {k: spelled(v, n) for k, n in known.items() if (v := getattr(options, k)) is not None}
    texts |= {k: v.lower() for k in LOWERED if (v := getattr(options, k)) is not None}
    texts["record"] = [name.lower() for name in options.record]
    return replace(options, **texts)


def own_settings(preset: Preset, builder: Callable[..., Any]) -> dict[str, Any]:
    """Return what a method itself asks for in such a set-up."""
    asked = facts(builder).presets
    return {name: value for kind in preset.kinds for name, value in asked.get(kind, {}).items()}


def displaced(suggested: str, asked: Mapping[str, Any]) -> bool:
    """Whether a typed setting takes the place of one that the preset suggests."""
    others = [set(pair) - {suggested} for pair in EXCLUSIVE if suggested in pair]
    return any(asked.get(k) is not None for other in others for k in other)


def check_settings(methods: Sequence[str], options: RunOptions) -> None:
    """Refuse settings that no method of the command has, and a graph where everybody talks to a server."""
    builders = {variation(m).method: builder_of(m) for m in methods}
    known = [settings_of(builder) for builder in builders.values()]
    parse_settings(options.set, builders)
    if options.settings is None and options.trust:
        raise UserError(
            f"--trust {options.trust[0]} is for code that a saved configuration or a file of settings names, and "
            f"{', '.join(methods)} is typed already: leave it out"
        )
    if options.settings is not None and not any(settings_from_file(options, methods).values()):
        tables = ", ".join(options.settings.tables)
        raise UserError(
            f"{options.settings.path} has settings for {tables} and none for {', '.join(methods)}: add them"
        )
    for name in (*FLAGS, "drop_messages"):
        needed = "topology" if name == "drop_messages" else name
        if getattr(options, name) is not None and not any(needed in settings for settings in known):
            raise UserError(f"{', '.join(methods)} has no {needed}: leave {flag(name)} out")


def settings_from_file(options: RunOptions, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a file sets for each method of the command; all its tables are checked, whoever they are for."""
    if options.settings is None:
        return {m: {} for m in methods}
    names = {m: variation(m).method for m in methods}
    own = [name for name in names.values() if is_own(name)]
    found = algorithms.settings_in(options.settings, own, options.trust)
    return {m: found.get(name, {}) for m, name in names.items()}


def cluster(options: RunOptions) -> Cluster | None:
    """Return the cluster that was typed, if any."""
    typed = Cluster(options.workers, options.ray_address, options.given("gpus_per_worker"))
    return None if typed == Cluster() else typed
