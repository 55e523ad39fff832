"""``coterie.compare``: what the command of that name does, with values of Python in the place of typed texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn

from .. import algorithms
from ..algorithms import Algorithm
from ..core import rng
from ..core.annotations import Example, Fraction, PositiveInt, Range
from ..core.arguments import accept, checked
from ..core.clients import Clients
from ..core.errors import UserError
from ..core.frames import warn_without_frames
from ..core.schema import Init, MeasureName, Precision, Select
from ..data import Federation
from ..measure.metric import MetricLike
from ..models.accept import accepted
from ..models.model import Loss
from ..track import Tracker
from ..training.cluster import Cluster
from ..training.first import drawn
from ..training.fit import ModelLike
from ..training.run import Run
from ..training.time_limit import TimeLimit
from .compared import Compared
from .comparing import ComparisonPlan
from .grids import listed
from .options import Output, RunOptions
from .presets import DATA, PRESETS
from .request import RunPlan, check_settings, spelled_options
from .several import check_free
from .variations import variation

OWN = "data of your own"
Given = Annotated[str | Algorithm, Example('coterie.algorithms.fedavg() or "fedavg"')]


@checked("function")
def compare(
    methods: Sequence[Given] | Mapping[str, Given],
    data: Annotated[str | Federation, Example('"digits" or coterie.data.federate("digits")')] = DATA,
    *,
    model: str | ModelLike | None = None,
    partition: str | None = None,
    clients: PositiveInt | None = None,
    rounds: PositiveInt | None = None,
    seeds: PositiveInt = 1,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    target: float | None = None,
    loss: Annotated[Loss | str, Example("torch.nn.functional.cross_entropy")] | None = None,
    metric: Annotated[MetricLike | list[MetricLike] | tuple[MetricLike, ...], Example('"macro-f1"')] = (),
    engine: str = "auto",
    device: str | torch.device = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    evaluate_every: PositiveInt | Literal["auto"] = "auto",
    validation: Fraction = 0.0,
    holdout_clients: Annotated[float | int, Range()] = 0,
    select: Select = "last",
    patience: PositiveInt | None = None,
    init: Init = "common",
    drop_messages: Fraction = 0.0,
    offline: Fraction = 0.0,
    record: Sequence[MeasureName] = (),
    precision: Precision = "fp32",
    data_dir: str | Path | None = None,
    trackers: Sequence[Annotated[Tracker, Example("coterie.track.TensorBoard()")]] = (),
    cluster: Cluster | None = None,
    time_limit: Annotated[TimeLimit, Example('coterie.TimeLimit("25m")')] | None = None,
) -> Compared:
    """Train several methods on the same clients, seed by seed, and return table, tests and runs.

    It is what ``coterie compare`` does, to the last digit: what is not given is the preset of the data, and methods by
    name have its settings. A seed draws data, first model and batches anew; data that are handed over as a
    ``Federation`` are the same for all seeds, and so is a module.

    Args:
        methods: Names, algorithms with their settings, or a dict of either by what each is called.
        data: A source as it is typed (see ``coterie.data.federate``), or a federation.
        model: A name, a module, or a function that builds one; else that of the preset.
        partition: Who gets which samples of a source.
        clients: Among how many clients a source is divided.
        rounds: How many rounds.
        seeds: How many seeds, counted up from ``seed``.
        seed: The first one.
        settings: Of all methods by name that have them, as in ``{"lr": 0.1, "fedper.personal": "*head*"}``.
        tune: Values of settings that every method by name chooses among first, on validation samples; it needs ``out``.
        target: The mean personal metric that rounds are counted to, in its unit.
        out: The folder for the runs and ``compare.json``; without it nothing is written, and the models of all runs
            stay in memory.
        resume: Go on with the interrupted comparison in ``out``.
        evaluate_every: "auto" unless it is given, the same rounds for all methods.
        data_dir: The folder of the published data sets.

    All others are those of ``coterie.fit``.

    >>> import coterie as ct
    >>> found = ct.compare(["local", "fedavg"], "synthetic:size=200", clients=3, rounds=1, progress=False)
    >>> found
    Compared(local, fedavg: 1 seed)
    >>> found.frame()["sent"].tolist()[0], len(found.runs["fedavg"][0].clients)
    (0.0, 3)
    """
    options = _options(dict(locals()))  # all that has the name of an option of the command is one
    called = _called(methods)
    plan = _plan(options, data, None if isinstance(model, str) else model, called)
    if options.out is not None and not resume:
        check_free(options.out)
    if tune and not all(name == method for name, method in called.items()):
        raise UserError("tune chooses settings of methods by name, and some of these have their own: leave tune out")
    tried = {key: accept("function compare", f"tune[{key!r}]", v, list | tuple) for key, v in (tune or {}).items()}
    grid = [f"{key}={listed([str(value) for value in values])}" for key, values in tried.items()]
    asked = ComparisonPlan.of(plan, list(called), seeds, options.out, target, grid)
    output = Output(quiet=not progress)
    output.say(asked.remarks)
    warn_without_frames("found.rows() has what found.frame() would have")
    runs: dict[str, list[Run]] = {name: [] for name in called}
    comparison = asked.train(output, trackers, keep=lambda name, run: runs[name].append(_kept(run, out)))
    return Compared(comparison, runs, options.out)


def _options(given: dict[str, Any]) -> RunOptions:
    """Return what was given as the options of the command; values of Python that no text names stay what they are."""
    paths = {key: None if given[key] is None else Path(given[key]) for key in ("out", "data_dir")}
    metric, often, where = given["metric"], given["evaluate_every"], given["cluster"]
    given |= {"metric": list(metric) if isinstance(metric, list | tuple) else [metric], "record": list(given["record"])}
    given |= {"set": [f"{key}={value}" for key, value in (given.pop("settings") or {}).items()]}
    given |= {"evaluate_every": None if often == "auto" else often, "for_": given["time_limit"]}
    given |= {"model": given["model"] if isinstance(given["model"], str) else None, "device": str(given["device"])}
    if where is not None:
        given |= {"workers": where.workers, "ray_address": where.address, "gpus_per_worker": where.gpus_per_worker}
    given |= paths
    fields = RunOptions.__dataclass_fields__
    known = {key: value for key, value in given.items() if key in fields and key != "data"}
    usual = {key for key, value in known.items() if value == fields[key].metadata.get("usual")}  # as if nobody said it
    return RunOptions(**{key: value for key, value in known.items() if key not in usual})


def _kept(run: Run, out: str | Path | None) -> Run:
    """Return a run without its models where these are in a folder: those of all runs would fill the memory."""
    return run if out is None else replace(run, clients=Clients([]), final={})


def _called(methods: Sequence[str | Algorithm] | Mapping[str, str | Algorithm]) -> dict[str, str | Algorithm]:
    """Return the methods by what they are called; refuse two of one name."""
    if isinstance(methods, Mapping):
        return {str(name): accept("function compare", f"methods[{name!r}]", m, Given) for name, m in methods.items()}
    names = [variation(m).typed if isinstance(m, str) else m.name for m in methods]
    if not names:
        raise UserError("there are no methods to compare: name at least one")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice} is named twice: give both a name of their own, as in {{'{twice} lr=0.1': algorithm, ...}}"
        )
    return dict(zip(names, methods, strict=True))


def _plan(
    options: RunOptions, data: str | Federation, model: ModelLike | None, called: Mapping[str, str | Algorithm]
) -> "HandedPlan":
    """Return the plan with what was handed over."""
    handed: dict[str, Any] = {"model": model, "called": called}
    named = [variation(m).typed for m in called.values() if isinstance(m, str)]
    if options.set and not named:
        raise UserError("settings are for methods by name, and all of these have their own: leave settings out")
    check_settings(named, options)
    if isinstance(data, str):
        plan = RunPlan.of(replace(options, data=data))
        return HandedPlan(plan.options, plan.preset, plan.source, plan.latest, **handed)
    for name in ("clients", "partition", "data_dir"):
        if getattr(options, name) is not None:
            raise UserError(f"the data are handed over as a federation, which is divided already: leave {name} out")
    source = str(data.origin.get("source", OWN))
    told = replace(spelled_options(options), clients=data.clients, partition=str(data.origin.get("partition", OWN)))
    return HandedPlan(told, PRESETS.get(source, PRESETS["csv"]), source, handed_data=data, **handed)


@dataclass(frozen=True)
class HandedPlan(RunPlan):
    """A plan in which some things are values of Python."""

    model: ModelLike | None = None
    called: Mapping[str, str | Algorithm] = field(default_factory=dict)  # the methods by what they are called
    handed_data: Federation | None = None

    def federation(self, seed: int) -> Federation:
        """Return the clients' data, those that were handed over for every seed."""
        return super().federation(seed) if self.handed_data is None else self.handed_data

    def module(self, federation: Federation, seed: int, among: Sequence[str]) -> nn.Module:
        """Return the model everybody starts from."""
        if self.model is None:
            return super().module(federation, seed, among)
        if isinstance(self.model, nn.Module):
            return accepted(self.model)
        return drawn(self.model, rng.key(seed, "init"))

    def trained(self, module: nn.Module) -> ModelLike:
        """Return the model as ``fit`` takes it: a function, where clients may draw their own."""
        return module if self.model is None else self.model

    def model_name(self, federation: Federation, among: Sequence[str]) -> str:
        """Return what the model is called."""
        if self.model is not None:
            return getattr(self.model, "__name__", type(self.model).__name__)
        return super().model_name(federation, [name for m in among if (name := self._method(m)) is not None])

    def algorithm(self, method: str, among: Sequence[str]) -> Algorithm:
        """Return the method that goes by this name, with the settings of the preset where it was given by name."""
        found = self.called[method]
        if isinstance(found, Algorithm):
            return found
        named = [variation(m).typed for m in self.called.values() if isinstance(m, str)]
        return super().algorithm(variation(found).typed, named)

    def check_different(self, methods: Sequence[str], chosen: Sequence[Algorithm]) -> None:
        """Refuse what the command refuses, where the methods have no names but their own."""
        if all(isinstance(m, str) and variation(m).typed == name for name, m in self.called.items()):
            super().check_different(methods, chosen)

    def _method(self, called: str) -> str | None:
        """Return the method that goes by a name, if it is one that can be asked what models it needs."""
        found = self.called[called]
        name = found.name if isinstance(found, Algorithm) else variation(found).method
        return name if isinstance(found, str) or algorithms.is_method(name) else None
