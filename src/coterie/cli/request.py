"""From what was typed to what is trained: presets filled in, settings checked, nothing started yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, NamedTuple

from torch import nn

from .. import algorithms, data, models
from ..algorithms import Algorithm
from ..algorithms.custom import suitable
from ..algorithms.method import facts
from ..algorithms.options import EXCLUSIVE
from ..algorithms.settings import Builder, meant, settings_of
from ..algorithms.used import unused
from ..core.errors import UserError
from ..core.spec import parse
from ..data import Federation
from ..data.partition import NATURAL
from ..engines import Serial
from ..measure import MeasureName
from ..models.model import Model, Precision, cross_entropy
from ..recipes.changes import fit_topology
from ..training.checks import begins_apart
from ..training.experiment import Experiment
from ..training.first import COMMON, PER_CLIENT, Init, check_init, first_models
from .presets import PRESETS, Preset

_FLAGS = ("topology", "capacities")  # settings with an option of their own


@dataclass(frozen=True)
class RunOptions:
    """The options of ``run`` and ``compare`` as typed; None where nothing was said."""

    data: str | None = None
    model: str | None = None
    partition: str | None = None
    clients: int | None = None
    rounds: int | None = None
    topology: str | None = None
    engine: str | None = None
    device: str | None = None
    seed: int | None = None
    set: Sequence[str] = field(default_factory=list)
    evaluate_every: int | None = None
    init: Init | None = None
    drop_messages: float | None = None
    offline: float | None = None
    capacities: str | None = None
    record: Sequence[MeasureName] = field(default_factory=list)
    precision: Precision | None = None
    ray_address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None

    def given(self) -> list[str]:
        """The options that were typed."""
        return [f"--{k.replace('_', '-')}" for k, v in vars(self).items() if v not in (None, [])]


class Missing(NamedTuple):
    """What is likely to be missing in a round."""

    drop_messages: float = 0.0  # a message
    offline: float = 0.0  # a client


@dataclass(frozen=True)
class RunPlan:
    """What ``fit`` needs, for any method and seed."""

    options: RunOptions
    preset: Preset
    source: str

    @classmethod
    def of(cls, options: RunOptions) -> "RunPlan":
        """The options with the gaps filled by the preset of the data."""
        source = options.data or "digits"
        name = parse(source).name
        if name not in data.SOURCES:
            data.federate(source)  # says what is wrong with the name
        if options.clients is None and options.partition == NATURAL:  # the data know how many
            options = replace(options, clients=data.federate(source, partition=NATURAL).clients)
        return cls(options, PRESETS[name], source)

    @property
    def rounds(self) -> int:
        """How many rounds."""
        return self.options.rounds or self.preset.rounds

    def federation(self, seed: int) -> Federation:
        """The clients' data."""
        clients = self.options.clients or self.preset.clients
        return data.federate(self.source, clients, self.options.partition or self.preset.partition, seed)

    def module(self, federation: Federation, seed: int, among: Sequence[str]) -> nn.Module:
        """The model everybody starts from, one that all methods of this command can train."""
        staged = any(facts(algorithms.builder(m)).staged for m in among)
        select_engine = self.preset.staged if staged else self.preset.model
        return models.build(self.options.model or select_engine, federation, seed=seed)

    def algorithm(self, method: str, among: Sequence[str]) -> Algorithm:
        """The method with the preset's settings and the typed ones; ``among``: all methods of this command."""
        builder = algorithms.builder(method)
        known = settings_of(builder)
        chosen = {k: v for k, v in self.preset.settings.items() if k in known and suitable(method, k)}
        chosen |= self.preset.own(builder)
        if NoneType in known.get("topology", ()):  # around a server unless asked
            chosen.pop("topology", None)
        if "topology" in chosen:
            chosen["topology"] = fit_topology(chosen["topology"], self.options.clients or self.preset.clients)
        asked = meant(self.options.set, _builders(among))[method]
        asked |= {k: v for k in _FLAGS if k in known and (v := getattr(self.options, k)) is not None}
        chosen = {k: v for k, v in chosen.items() if not _displaced(k, asked)} | asked
        idle = unused(method.replace("_", "-"), builder(**chosen).settings).keys() - asked.keys()
        return builder(**{k: v for k, v in chosen.items() if k not in idle})

    def init(self, module: nn.Module, federation: Federation, algorithm: Algorithm, among: Sequence[str]) -> Init:
        """What clients begin with; beside others, a method in which all begin with the server's model keeps to it."""
        wanted = self.options.init or COMMON
        if wanted != PER_CLIENT or len(among) == 1:
            return wanted
        first = first_models(module, Model(module, cross_entropy), algorithm, 0)
        experiment = replace(self._bound(module, federation, algorithm), first=first)
        return wanted if begins_apart(experiment) else COMMON

    def check_init(self, module: nn.Module, federation: Federation, chosen: Sequence[Algorithm]) -> None:
        """Refuses first models of their own where clients of no method have a use for them."""
        names = [a.name for a in chosen]
        check_init(wanted := self.options.init or COMMON)
        if wanted not in [self.init(module, federation, a, names) for a in chosen]:
            raise UserError(f"with {', '.join(names)} all begin with the server's model: leave --init out")

    def missing(
        self, module: nn.Module, federation: Federation, algorithm: Algorithm, among: Sequence[str]
    ) -> "Missing":
        """What is asked for between peers; beside others, a method with a server has none of it."""
        asked = Missing(self.options.drop_messages or 0.0, self.options.offline or 0.0)
        if len(among) == 1 or asked == Missing():
            return asked
        served = self._bound(module, federation, algorithm).program.topology is None
        return Missing() if served else asked

    def check_missing(self, among: Sequence[str], each: Sequence["Missing"]) -> None:
        """Refuses messages that are dropped and clients that are offline where all methods have a server."""
        for name in Missing._fields:
            if getattr(self.options, name) and not any(getattr(some, name) for some in each):
                raise UserError(f"{', '.join(among)} have a server: lower participation instead of --{name}")

    def _bound(self, module: nn.Module, federation: Federation, algorithm: Algorithm) -> Experiment:
        """The method, bound to the clients, to be asked what it does."""
        return Experiment.of(Model(module, cross_entropy), federation, algorithm, Serial(), 0, self.rounds)

    def preset_text(self, algorithm: Algorithm) -> str:
        """What the preset set, for the person to see."""
        return ", ".join(f"{k}={algorithm.settings[k]}" for k in self.preset.settings if k in algorithm.settings)


def _displaced(suggested: str, asked: Mapping[str, Any]) -> bool:
    """Whether a typed setting takes the place of one that the preset suggests."""
    others = [set(pair) - {suggested} for pair in EXCLUSIVE if suggested in pair]
    return any(asked.get(k) is not None for other in others for k in other)


def check_settings(methods: Sequence[str], options: RunOptions) -> None:
    """Refuses settings that no method of the command has, and a graph where everybody talks to a server."""
    known = {m: settings_of(algorithms.builder(m)) for m in methods}
    meant(options.set, _builders(methods))
    for flag, value in (*((k, getattr(options, k)) for k in _FLAGS), ("drop_messages", options.drop_messages)):
        needed = "topology" if flag == "drop_messages" else flag
        if value is not None and not any(needed in k for k in known.values()):
            raise UserError(f"{', '.join(methods)} has no {needed}: leave --{flag} out")


def _builders(methods: Sequence[str]) -> dict[str, Builder]:
    return {m: algorithms.builder(m) for m in methods}


def known_options(config: dict[str, Any], options: RunOptions, resume: bool) -> None:
    """Refuses options beside a saved configuration, which already says everything.

    But for where it is played: on which cluster, and, for a run that goes on, on which engine.
    """
    there = replace(options, ray_address=None, workers=None, gpus_per_worker=None)
    other = (replace(there, engine=None) if resume else there).given()
    if other:
        raise UserError(
            f"{' '.join(other)} cannot be combined with a saved configuration of {config.get('method')}: "
            "leave it out, or name the method instead of the folder"
        )
