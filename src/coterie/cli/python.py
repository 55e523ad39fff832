"""``coterie.compare``: what the command of that name does, with values of Python in the place of typed texts."""
# ruff: noqa: RUF009 (option makes a field)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import nn

from .. import algorithms
from ..algorithms import Algorithm
from ..core.annotations import Example, PositiveInt
from ..core.arguments import accept, checked, checked_class
from ..core.clients import Clients
from ..core.errors import UserError
from ..core.extras import warn_without_frames
from ..data import Federation
from ..models.model import Model
from ..training.fit import takes_options
from ..training.prepare import AUTO, ModelLike, begun_folder
from ..training.run import Run
from ..training.settings import RunSettings, option, types_of_options
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


@checked_class("class", subject="function compare", types=types_of_options)
@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(RunSettings):
    """The options of a comparison: those of its runs, and what is compared on which data."""

    rounds: PositiveInt | None = option("How many rounds; unless it is given, as many as the preset has.", None)  # type: ignore[assignment]
    evaluate_every: PositiveInt | Literal["auto"] = option(
        '"auto" unless it is given, the same rounds for all methods.', "auto"
    )
    model: str | ModelLike | None = option(
        "A name, a module, or a function that builds one; else that of the preset.", None
    )
    partition: str | None = option("Who gets which samples of a source.", None)
    clients: PositiveInt | None = option("Among how many clients a source is divided.", None)
    seeds: PositiveInt = option("How many seeds, counted up from ``seed``.", 1)
    settings: Mapping[str, Any] | None = option(
        'Of all methods by name that have them, as in ``{"lr": 0.1, "fedper.personal": "*head*"}``.', None
    )
    tune: Mapping[str, Sequence[Any]] | None = option(
        "Values of settings that every method by name chooses among first, on validation samples; it needs ``out``.",
        None,
    )
    target: float | None = option("The mean personal metric that rounds are counted to, in its unit.", None)
    data_dir: str | Path | None = option("The folder of the published data sets.", None)


@takes_options(ComparisonSettings)
@checked("function")
def compare(
    methods: Sequence[Given] | Mapping[str, Given],
    data: Annotated[str | Federation, Example('"digits" or coterie.data.federate("digits")')] = DATA,
    **options: Any,
) -> Compared:
    """Train several methods on the same clients, seed by seed, and return table, tests and runs.

    It is what ``coterie compare`` does, to the last digit: what is not given is the preset of the data, and methods by
    name have its settings. A seed draws data, first model and batches anew; data that are handed over as a
    ``Federation`` are the same for all seeds, and so is a module. Without ``out`` nothing is written, and the models of
    all runs stay in memory.

    Args:
        methods: Names, algorithms with their settings, or a dict of either by what each is called.
        data: A source as it is typed (see ``coterie.data.federate``), or a federation.
        {options}

    >>> import coterie as ct
    >>> found = ct.compare(["local", "fedavg"], "synthetic:size=200", clients=3, rounds=1, progress=False)
    >>> found
    Compared(local, fedavg: 1 seed)
    >>> found.frame()["sent"].tolist()[0], len(found.runs["fedavg"][0].clients)
    (0.0, 3)
    """
    given = ComparisonSettings(**options)
    begun_folder(given)  # refuses what needs a folder
    typed, called = _typed(given), _called(methods)
    plan = _plan(typed, data, None if isinstance(given.model, str) else given.model, called)
    if typed.out is not None and not given.resume:
        check_free(typed.out)
    if given.tune and not all(name == method for name, method in called.items()):
        raise UserError("tune chooses settings of methods by name, and some of these have their own: leave tune out")
    tried = {k: accept("function compare", f"tune[{k!r}]", v, list | tuple) for k, v in (given.tune or {}).items()}
    grid = [f"{key}={listed([str(value) for value in values])}" for key, values in tried.items()]
    asked = ComparisonPlan.of(plan, list(called), given.seeds, typed.out, given.target, grid)
    output = Output(quiet=not given.progress)
    output.say(asked.remarks)
    warn_without_frames("found.rows() has what found.frame() would have")
    runs: dict[str, list[Run]] = {name: [] for name in called}
    trained = asked.train(output, given.trackers, keep=lambda name, run: runs[name].append(_kept(run, typed.out)))
    return Compared(trained, runs, typed.out)


def _typed(given: ComparisonSettings) -> RunOptions:
    """Return the options as the command has them; values of Python that no text names stay what they are."""
    fields = RunOptions.__dataclass_fields__
    known = {
        k: getattr(given, k)
        for k in vars(given)
        if k in fields and getattr(given, k) != fields[k].metadata.get("usual")
    }
    known |= {"metric": list(given.metrics), "record": list(given.record), "device": str(given.device)}
    known |= {"set": [f"{key}={value}" for key, value in (given.settings or {}).items()], "settings": None}
    known |= {"evaluate_every": None if given.evaluate_every == AUTO else given.evaluate_every}
    known |= {"model": given.model if isinstance(given.model, str) else None}
    known |= {key: Path(where) for key in ("out", "data_dir") if (where := getattr(given, key)) is not None}
    known |= {"for_": given.time_limit}
    if (there := given.cluster) is not None:
        known |= {"workers": there.workers, "ray_address": there.address, "gpus_per_worker": there.gpus_per_worker}
    return RunOptions(**known)


def _kept(run: Run, out: str | Path | None) -> Run:
    """Return a run without its models where these are in a folder: those of all runs would fill the memory."""
    return run if out is None else replace(run, clients=Clients([]), final={}, constants={})


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
    handed: dict[str, Any] = {"handed_model": model, "called": called}
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

    handed_model: ModelLike | None = None
    called: Mapping[str, str | Algorithm] = field(default_factory=dict)  # the methods by what they are called
    handed_data: Federation | None = None

    def federation(self, seed: int) -> Federation:
        """Return the clients' data, those that were handed over for every seed."""
        return super().federation(seed) if self.handed_data is None else self.handed_data

    def module(self, federation: Federation, seed: int, among: Sequence[str]) -> ModelLike:
        """Return the module that a run starts from, or the function that builds it."""
        return super().module(federation, seed, among) if self.handed_model is None else self.handed_model

    def model(self, federation: Federation, settings: RunSettings, among: Sequence[str]) -> ModelLike | Model:
        """Return the model as a run takes it: a function, where clients may draw their own."""
        if self.handed_model is None or isinstance(self.handed_model, nn.Module):
            return self.given(federation, settings, among)
        return self.handed_model

    def model_name(self, federation: Federation, among: Sequence[str]) -> str:
        """Return what the model is called."""
        if self.handed_model is not None:
            return getattr(self.handed_model, "__name__", type(self.handed_model).__name__)
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
