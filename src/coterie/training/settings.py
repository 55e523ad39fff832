"""Every option of a run, declared once: its name, type, default and help.

The signature and the docstring of ``fit`` and ``compare``, the options of the commands, and what a saved configuration
keeps follow from this dataclass. It imports no torch, because the help of a command must not wait for it.
"""
# ruff: noqa: RUF009 (option makes a field)

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from ..core.annotations import Example, Fraction, NonNegative, PositiveInt, Range, in_words
from ..core.arguments import checked_class
from ..core.choices import ENGINES, INITS, LOSS_NAMES, METRICS, explained
from ..core.errors import UserError
from ..core.schema import Init, MeasureName, Precision, Repeatable, Select
from ..core.spec import parse

if TYPE_CHECKING:
    import torch

    from ..measure.metric import MetricLike
    from ..models.model import Loss
    from ..store import RunFolder
    from ..track import Tracker
    from .time_limit import TimeLimit

RAY = "ray"


@checked_class("class")
@dataclass(frozen=True)
class Cluster:
    """Where ``engine="ray"`` trains the clients.

    Args:
        workers: How many processes; as many as there are cores, or GPUs for, unless it is given.
        address: The cluster's address, "auto" for the one of this machine; a new one is started unless it is given.
        gpus_per_worker: How many GPUs each worker has; fractions share one.
    """

    workers: PositiveInt | None = None
    address: str | None = None
    gpus_per_worker: NonNegative = 0.0


def check_cluster(engine: str, given: Cluster | None) -> Cluster | None:
    """Return the cluster of a run, None if it trains in this process; refuse one that the engine has no use for."""
    if parse(engine).name == RAY:
        return given or Cluster()
    if given is not None:
        options = {
            "--workers": given.workers,
            "--ray-address": given.address,
            "--gpus-per-worker": given.gpus_per_worker or None,
        }
        option = next((name for name, value in options.items() if value is not None), "cluster")
        raise UserError(f"{option} is for a Ray cluster: add --engine ray, or leave it out")
    return None


Kept = Literal["always", "unusual"]
"""Whether a configuration has an option in any case, or only where it is not at its default."""


def option(
    help: str,
    default: Any = MISSING,
    *,
    typed: bool = True,
    shows: str | None = None,
    saved: Kept | None = None,
    changes: bool = False,
    peers: bool = False,
) -> Any:
    """Return the field of an option.

    typed: commands have it, under the same name. shows: the default in the words of the help, where it is not a single
    value. saved: the configuration keeps it under its name. changes: a saved configuration takes another value.
    peers: it is for clients that mix with each other, so a comparison leaves it out for methods with a server.
    """
    facts = {"help": help, "typed": typed, "shows": shows, "saved": saved, "changes": changes, "peers": peers}
    return field(default=default, metadata=facts)


def types_of_options() -> Mapping[str, Any]:
    """Return the types of torch and of the rooms that need it; options are checked when these are imported anyway.

    The last three are for modules of subclasses, which do not import what the annotations here name.
    """
    import torch

    from ..measure.metric import MetricLike
    from ..models.model import Loss
    from ..store import RunFolder
    from ..track import Tracker
    from .time_limit import TimeLimit

    return {"torch": torch, "MetricLike": MetricLike, "Loss": Loss, "RunFolder": RunFolder, "Tracker": Tracker,
            "Cluster": Cluster, "TimeLimit": TimeLimit,
            "Annotated": Annotated, "Example": Example, "Sequence": Sequence}  # fmt: skip


@checked_class("class", subject="function fit", types=types_of_options)
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The options of a run."""

    rounds: PositiveInt = option("How many rounds.", saved="always", changes=True)
    evaluate_every: PositiveInt | Literal["auto"] = option(
        "Rounds between two evaluations; the last round is always evaluated.",
        1,
        shows="as many as save time, for ten evaluations at least; 1 with --select or --patience",
        saved="always",
        changes=True,
    )
    record: Sequence[MeasureName] = option(
        f"Record further metrics: {', '.join(get_args(MeasureName))}; clients records every client's own. Repeat for "
        "more.",
        (),
        shows="none",
        saved="always",
    )
    validation: Fraction = option(
        "Keep this part of every client's training samples out of training, to choose by, such as 0.2.",
        0.0,
        shows="0; to tune, 0.2",
        saved="unusual",
    )
    select: Select = option(
        f"Which round is reported and deployed: {', '.join(get_args(Select))}; best-test is optimistic.",
        "last",
        saved="unusual",
    )
    engine: str = option(f"Where clients run: {explained(ENGINES)}.", "auto")
    device: "str | torch.device" = option("auto, cpu or cuda.", "auto", saved="always", changes=True)
    precision: Precision = option(
        f"How a GPU multiplies: {in_words(Precision)}; weights stay in single precision.",
        "fp32",
        saved="always",
        changes=True,
    )
    holdout_clients: Annotated[float | int, Range()] = option(
        "How many clients come only after training, such as 0.2 or 3: what they get is measured then.",
        0,
        saved="unusual",
    )
    loss: 'Annotated[Loss | str, Example("torch.nn.functional.cross_entropy")] | None' = option(
        f"What is minimized: {explained(LOSS_NAMES)}.", "cross-entropy"
    )
    metric: "Annotated[MetricLike | list[MetricLike] | tuple[MetricLike, ...], Example('\"macro-f1\"')]" = option(
        f"What is measured: {', '.join(METRICS)}, or module:function of your own; repeat for more, the first one "
        "decides.",
        (),
        shows="that of the task",
    )
    patience: PositiveInt | None = option(
        "Stop after so many evaluations in a row that were no better on validation samples.",
        None,
        shows="run all rounds",
        saved="unusual",
    )
    stop_at: float | None = option(
        "Stop as soon as the models are this good on validation samples, such as 80 for 80 %.",
        None,
        shows="run all rounds",
        saved="unusual",
    )
    seed: int = option("Of everything random: data, first model, batches, graphs.", 0, saved="always", changes=True)
    init: Init = option(f"What clients begin with: {explained(INITS)}.", "common", saved="always")
    drop_messages: Fraction = option(
        "How likely a message between clients is dropped, such as 0.2.", 0.0, saved="always", peers=True
    )
    offline: Fraction = option(
        "How likely a client is not there for a whole round, such as 0.2.", 0.0, saved="always", peers=True
    )
    out: "str | Path | RunFolder | None" = option("A folder that is written round by round.", None, typed=False)
    resume: bool = option("Go on with the interrupted run in ``out``, if there is one.", False, typed=False)
    progress: bool | str = option("False shows none; a text is the name of the run there.", True, typed=False)
    trackers: 'Sequence[Annotated[Tracker, Example("coterie.track.TensorBoard()")]]' = option(
        "Who else is told of every round, such as ``coterie.track.TensorBoard()``.", (), typed=False
    )
    cluster: "Cluster | None" = option(
        'Where engine="ray" trains; a cluster on this machine is started unless it has an address.', None, typed=False
    )
    time_limit: "Annotated[TimeLimit, Example('coterie.TimeLimit(\"25m\")')] | None" = option(
        'Such as ``coterie.TimeLimit("25m")``, for all runs that get it: raise ``coterie.OutOfTime`` in time, when the '
        "rounds so far are saved in ``out`` and the next one would not end within it.",
        None,
        typed=False,
    )

    @classmethod
    def of(cls, config: Repeatable, **more: Any) -> Self:
        """Return the options that a configuration keeps, with ``more`` beside them."""
        return cls(**{f.name: config[f.name] for f in options("saved") if f.name in config}, **more)  # type: ignore[literal-required]

    @property
    def saved(self) -> dict[str, Any]:
        """What a configuration keeps of the options."""
        kept = ((f, getattr(self, f.name)) for f in options("saved"))
        found = {f.name: value for f, value in kept if f.metadata["saved"] == "always" or value != f.default}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    @property
    def metrics(self) -> "Sequence[MetricLike]":
        """The metrics, the first of which decides; none: that of the task."""
        return self.metric if isinstance(self.metric, list | tuple) else [self.metric]

    @property
    def absences(self) -> bool:
        """Whether a client between peers may be absent for a whole round."""
        return self.offline > 0

    @property
    def lost(self) -> dict[str, float]:
        """How likely a part of a round between peers is missing, by the name of the option."""
        return {f.name: getattr(self, f.name) for f in options("peers")}

    def having(self, **changed: Any) -> Self:
        """Return the options with others in their place."""
        return replace(self, **changed)

    def with_server(self) -> Self:
        """Return the options that a method with a server takes beside methods between peers."""
        usual: dict[str, Any] = {f.name: f.default for f in options("peers")}
        return replace(self, **usual)

    def computing(self) -> "RunSettings":
        """Return the options that decide numbers: a cluster's workers have no folder, no tracker and no loss."""
        return RunSettings(**{f.name: getattr(self, f.name) for f in options("saved")})


def options(fact: str | None = None, kind: type[RunSettings] = RunSettings) -> "Iterator[Field[Any]]":
    """Yield the options, or those for which a fact of ``option`` holds."""
    return (f for f in fields(kind) if fact is None or f.metadata[fact])
