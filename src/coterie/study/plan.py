"""The runs of a study, before any of them begins: presets filled in, settings checked, nothing trained."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from torch import nn

from .. import data, models
from ..algorithms import Algorithm
from ..core.custom import own_name
from ..core.errors import UserError
from ..core.spec import counted, parse, spelled
from ..data import Federation
from ..data.partition import NATURAL
from ..models.model import Model
from ..training.prepare import ModelLike, Prepared, as_begun, beside_others, model_of, prepare
from ..training.settings import RunSettings, options
from .methods import PlannedMethod
from .presets import PRESETS, Preset, models_for
from .settings import StudySettings

OWN = "data of your own"


@dataclass(frozen=True)
class StudyPlan:
    """Methods on one source of data, with options that are the same for all of them."""

    settings: StudySettings
    methods: Mapping[str, PlannedMethod]  # by what tables and folders call them
    source: str
    preset: Preset
    shared: Federation | None = None  # data that are handed over, the same for every seed
    latest: dict[int, Federation] = field(default_factory=dict)  # by seed, the one that was read last
    models: dict[int, Model] = field(default_factory=dict)  # by seed, the one that was made last

    @classmethod
    def of(cls, methods: Sequence[PlannedMethod], source: str | Federation, settings: StudySettings) -> Self:
        """Fill the gaps of the options with the preset of the data."""
        if settings.drop_messages and not any("topology" in m.known for m in methods):
            raise UserError(f"{', '.join(m.label for m in methods)} has no topology: leave --drop-messages out")
        settings, named = _spelled(settings), {m.label: m for m in methods}
        if isinstance(source, Federation):
            return cls._of_federation(named, source, settings)
        source = spelled(source, data.SOURCES)
        name = parse(source).name
        own = name not in data.SOURCES and own_name(source) is not None
        if name not in data.SOURCES and not own:
            data.federate(source)  # says what is wrong with the name
        plan = cls(settings, named, source, PRESETS["csv" if own else name])
        partition = settings.partition or plan.preset.partition
        if partition is not None and (partition != NATURAL or settings.clients is not None):
            return plan
        federation = plan.federation(settings.seed)  # the data know how they are divided
        return plan.with_options(clients=federation.clients, partition=str(federation.origin["partition"]))

    @classmethod
    def _of_federation(
        cls, methods: Mapping[str, PlannedMethod], federation: Federation, settings: StudySettings
    ) -> Self:
        for name in ("clients", "partition", "data_dir"):
            if getattr(settings, name) is not None:
                raise UserError(f"the data are handed over as a federation, which is divided already: leave {name} out")
        source = str(federation.origin.get("source", OWN))
        partition = str(federation.origin.get("partition", OWN))
        settings = settings.having(clients=federation.clients, partition=partition)
        return cls(settings, methods, source, PRESETS.get(source, PRESETS["csv"]), federation)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.settings.rounds or self.preset.rounds

    @property
    def clients(self) -> int:
        """The number of clients that graphs are fitted to."""
        return self.settings.clients or self.preset.clients

    @property
    def first_seed(self) -> int:
        """The seed of the first run."""
        return self.settings.seed

    @property
    def validation(self) -> float:
        """The part of every client's training samples that is kept out of training."""
        return self.settings.validation

    @property
    def limits(self) -> Mapping[str, Any]:
        """Whether runs go on, and until when."""
        return {"resume": self.settings.resume, "time_limit": self.settings.time_limit}

    @cached_property
    def algorithms(self) -> Mapping[str, Algorithm]:
        """The methods with all of their settings."""
        return {label: method.built(self.preset, self.clients) for label, method in self.methods.items()}

    @property
    def known_settings(self) -> Mapping[str, Collection[str]]:
        """The names of every method's settings."""
        return {label: method.known for label, method in self.methods.items()}

    def with_options(self, **changed: Any) -> Self:
        """Return the plan with other options."""
        return replace(self, settings=self.settings.having(**changed))

    def with_settings(self, label: str, values: Mapping[str, Any]) -> Self:
        """Return the plan with further settings of one method."""
        return replace(self, methods={**self.methods, label: self.methods[label].having(values)})

    def federation(self, seed: int) -> Federation:
        """Return the clients' data; a large file is not read anew for every method."""
        if self.shared is not None:
            return self.shared
        if seed not in self.latest:
            self.latest.clear()
            partition = self.settings.partition or self.preset.partition
            clients = self.settings.clients or (None if partition in (None, NATURAL) else self.preset.clients)
            self.latest[seed] = data.federate(self.source, clients, partition, seed, self.settings.data_dir)
        return self.latest[seed]

    def notes(self, seed: int) -> tuple[str, ...]:
        """Return what was done to the columns of a table, for the person to see."""
        columns = self.federation(seed).columns
        return () if columns is None else columns.notes

    def run_settings(self, seed: int, **chosen: Any) -> RunSettings:
        """Return the options of a run with this seed; ``chosen``: those that only this run has."""
        same = {f.name: getattr(self.settings, f.name) for f in options()}
        same |= {"rounds": self.rounds, "seed": seed, "out": None, "progress": True, "trackers": ()}
        if chosen.get("out") is None:  # what is only checked has no folder to go on in
            same |= {"resume": False, "time_limit": None}
        return RunSettings(**(same | chosen))

    def prepared(self, label: str, seed: int, **chosen: Any) -> Prepared:
        """Return a run of a method, checked and ready."""
        federation, algorithm = self.federation(seed), self.algorithms[label]
        settings = as_begun(self.run_settings(seed, **chosen))
        if len(self.methods) > 1:
            settings = beside_others(self.given(federation, settings), federation, algorithm, settings)
        return prepare(self._model(federation, settings), federation, algorithm, settings)

    def _model(self, federation: Federation, settings: RunSettings) -> ModelLike | Model:
        """Return the model as a run takes it: a function, where clients may draw their own."""
        model = self.settings.model
        if model is None or isinstance(model, str | nn.Module):
            return self.given(federation, settings)
        return model

    def given(self, federation: Federation, settings: RunSettings) -> Model:
        """Return the model that all clients of all methods begin with, in memory once."""
        seed = settings.seed
        if seed not in self.models:
            self.models.clear()
            self.models[seed] = model_of(self.module(federation, seed), settings)
        return self.models[seed]

    def module(self, federation: Federation, seed: int) -> ModelLike:
        """Return the module that a run starts from, or the function that builds it."""
        model = self.settings.model
        if model is None or isinstance(model, str):
            return models.build(self.model_name(federation), federation, seed=seed)
        return model

    def model_name(self, federation: Federation) -> str:
        """Return what the model is called; a preset's is one that all methods can train."""
        model = self.settings.model
        if isinstance(model, str):
            return model
        if model is not None:
            return getattr(model, "__name__", type(model).__name__)
        suited = models_for(self.preset, federation.input_shape)
        return suited.staged if any(method.staged for method in self.methods.values()) else suited.model

    def check_taken(self, runs: Sequence[Prepared]) -> None:
        """Refuse options between peers, and first models of their own, that no method of the study takes."""
        asked, names = self.settings, ", ".join(run.experiment.algorithm.name for run in runs)
        for name, likely in asked.lost.items():
            if likely and not any(run.settings.lost[name] for run in runs):
                option = name.replace("_", "-")
                raise UserError(f"{names} have a server: lower participation instead of --{option}")
        if asked.init not in [run.settings.init for run in runs]:
            raise UserError(f"with {names} all begin with the server's model: leave --init out")

    def remark(self, federation: Federation) -> str:
        """Return what is going to be trained on what, for the person to see before it begins."""
        labels = list(self.methods)
        what = labels[0] if len(labels) == 1 else f"{len(labels)} methods"
        given = self.given(self.federation(self.first_seed), self.run_settings(self.first_seed))
        size = sum(p.numel() for p in given.module.parameters())
        clients, rounds = counted(federation.clients, "client"), counted(self.rounds, "round")
        return (
            f"{what} on {self.source}: {clients}, {federation.origin.get('partition', 'as given')}, {rounds}, "
            f"{self.model_name(federation)} with {size:,} parameters, engine {self.settings.engine}"
        )

    def remark_on(self, run: Prepared) -> str:
        """Return the same of runs that are evaluated together, with how often they are."""
        every = run.experiment.schedule.every
        return self.remark(run.experiment.federation) + (f", evaluated every {every} rounds" if every > 1 else "")

    def preset_text(self, algorithm: Algorithm) -> str:
        """Return what the preset set, for the person to see."""
        return ", ".join(f"{k}={algorithm.settings[k]}" for k in self.preset.settings if k in algorithm.settings)


def _spelled(settings: StudySettings) -> StudySettings:
    """Return the options with the names of the tables, whatever their case was."""
    tables = {"model": models.BUILDERS, "partition": (*data.PARTITIONS, NATURAL)}
    typed = {k: v for k in tables if isinstance(v := getattr(settings, k), str)}
    return settings.having(**{k: spelled(text, tables[k]) for k, text in typed.items()})
