"""The options that several commands have. Each is typed once, as a field of the value that its commands get."""
# ruff: noqa: RUF009 (option makes a field)

import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..core.annotations import MOST
from ..core.errors import UserError
from ..core.settings_file import SettingsFile, read_settings
from ..training.time_limit import TimeLimit

if TYPE_CHECKING:
    from ..core.schema import Init, MeasureName, Precision, Select
    from ..recipes.reading import ReadingName
    from ..track import Tracker
else:  # Typer reads these types. What is no such name is refused later, in a sentence that lists the names.
    Init = MeasureName = Precision = ReadingName = Select = str

SEEDS, WORKERS = 10_000, 10_000  # the most of them, and of GPUs
DAY = 86_400.0  # seconds, the most that anything waits

DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of the data sets; by default COTERIE_DATA, else that of `coterie data dir`."),
]
TopologyText = Annotated[
    str | None, typer.Option(help="Who mixes with whom, where there is no server: ring, grid, random:5, ...")
]
Settings = Annotated[
    list[str], typer.Option(metavar="KEY=VALUE", help="A setting of the method, such as lr=0.05; repeat for more.")
]
TuneTexts = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE,VALUE",
        help="Choose a setting of every method first, on validation samples; repeat for more.",
    ),
]
Metrics = Annotated[
    list[MeasureName],
    typer.Option(
        help="Record further metrics: gradients, sharpness, singular-values, perplexity, train-accuracy, deltas, mass, "
        "constants; repeat for more."
    ),
]

MetricNames = Annotated[
    list[str],
    typer.Option(
        help="What is measured: accuracy, balanced-accuracy, macro-f1, auroc, average-precision, mse, mae, r2, "
        "perplexity, dice, iou, or module:function of your own; repeat for more, the first one decides. By default "
        "that of the task."
    ),
]


def option(help: str, *names: str, default: Any = None, read: Callable[[str], Any] | None = None, **more: Any) -> Any:
    """Return a field with its help; ``names``: how it is typed, where its own name and a value is not all.

    ``read`` makes the value of the text that was typed, as soon as the command begins.
    """
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **more), "read": read})


def flag(name: str) -> str:
    """Return the option of a field as it is typed.

    >>> flag("evaluate_every"), flag("for_")
    ('--evaluate-every', '--for')
    """
    return "--" + name.rstrip("_").replace("_", "-")


@dataclass(frozen=True)
class TrainingOptions:
    """The options of ``run``, ``compare`` and ``recipe run`` as typed; None where nothing was said."""

    data: str | None = option(
        "The data: digits, cifar10, npz:FILE, csv:FILE,target=COLUMN,client=COLUMN, ... (see `coterie list`)."
    )
    data_dir: DataDir = None
    model: str | None = option(
        "The model: logreg, small-cnn, resnet8-gn, ... (see `coterie list`), or module:function of your own."
    )
    partition: str | None = option(
        "Who gets which samples: iid, dirichlet:0.1, pathological:2, shards:2, natural, ... (see `coterie list`)."
    )
    clients: int | None = option(
        "How many clients; by default as many as suit the data, or are published.", min=1, max=MOST
    )
    rounds: int | None = option(
        "How many rounds; by default as many as suit the data, or are published.", min=1, max=MOST
    )
    set: Settings = field(default_factory=list)
    evaluate_every: int | None = option(
        "Rounds between two evaluations; by default as many as keep them under a tenth of the time, for a recipe 1.",
        min=1,
        max=MOST,
    )
    record: Metrics = field(default_factory=list)
    engine: str | None = option(
        "auto, serial, vectorized, vectorized:16 for 16 clients at once, graphed, or ray for a cluster."
    )
    device: str | None = option("auto, cpu or cuda.")
    precision: Precision | None = option("fp32, tf32 or bf16: how a GPU multiplies; weights stay in single precision.")
    out: Path | None = option("The folder for the results; by default a new one under runs/.")
    resume: bool = option("Continue what an interruption left in --out.", "--resume", default=False)
    for_: TimeLimit | None = option(
        "Stop in time, all runs together: 90s, 25m, 1.5h. Saves, prints the command that continues, exits with 75.",
        "--for",
        read=TimeLimit,
        metavar="TIME",
    )


@dataclass(frozen=True)
class RunOptions(TrainingOptions):
    """The options of ``run`` and ``compare``."""

    settings: SettingsFile | None = option(
        "A TOML file with one table of settings per method, as `coterie tune` writes it; --set wins over it.",
        "--settings",
        read=read_settings,
        metavar="FILE",
    )
    holdout_clients: float | None = option(
        "How many clients come only after training, such as 0.2 or 3: what they get is measured then.",
        min=0,
    )
    loss: str | None = option(
        "What is minimized: cross-entropy (classes, tokens, pixels; the default), bce (several labels, masks), mse, "
        "mae or huber (numbers), dice (pixels, masks)."
    )
    metric: MetricNames = field(default_factory=list)
    validation: float | None = option(
        "Keep this part of every client's training samples out of training, to choose by, such as 0.2; by default none."
    )
    select: Select | None = option(
        "Which round is reported and deployed: last, best-validation, best-validation-per-client, or best-test, which "
        "is optimistic."
    )
    patience: int | None = option(
        "Stop after so many evaluations in a row that were no better on validation samples.", min=1, max=MOST
    )
    topology: TopologyText = None
    seed: int | None = option("Of everything random: data, first model, batches, graphs.")
    init: Init | None = option("What clients begin with: common for one model, per-client for draws of their own.")
    drop_messages: float | None = option("How likely a message between clients is dropped, such as 0.2.")
    offline: float | None = option("How likely a client is not there for a whole round, such as 0.2.")
    capacities: str | None = option(
        "What clients can carry, in equal shares: b4-b3-b2, 1-0.5, or b4x15-b2x5; "
        "or all of them one after the other: b1@250-b4 (rounds), b1@0.25-b4 (shares of all rounds)."
    )
    ray_address: str | None = option(
        "Of the Ray cluster, auto for this machine's; by default one is started for the run."
    )
    workers: int | None = option("Of --engine ray; by default as many as there are cores.", min=1, max=WORKERS)
    gpus_per_worker: float | None = option("Of --engine ray, such as 1 or 0.5; by default none.", min=0, max=WORKERS)


@dataclass(frozen=True)
class RecipeOptions(TrainingOptions):
    """The options of ``recipe run``."""

    methods: str | None = option("Only these methods, with commas: dfedalt,fedavg,mine:fedfoo.")
    case: str | None = option("Only this case: its number, or a part of its label.")
    seeds: int | None = option("Other than the published number of seeds.", min=1, max=SEEDS)
    reading: ReadingName | None = option("paper or code, where they differ; by default our choice (see show).")


@dataclass(frozen=True)
class Output:
    """What is seen of runs while they train: progress or quiet, and who else is told of every round."""

    quiet: bool = option("No progress and no remarks: errors and results only.", "--quiet", "-q", default=False)
    tensorboard: bool = option(
        "Write every round into RUN/tensorboard too; pip install 'coterie\\[tensorboard]'.",
        "--tensorboard",
        default=False,
    )
    mlflow: bool = option(
        "Log every round to MLFLOW_TRACKING_URI, by default ./mlflow.db; pip install 'coterie\\[mlflow]'.",
        "--mlflow",
        default=False,
    )
    wandb: bool = option(
        "Log every round to Weights & Biases (WANDB_MODE=offline works); pip install 'coterie\\[wandb]'.",
        "--wandb",
        default=False,
    )

    def trackers(self) -> "list[Tracker]":
        """Make the trackers, once for all runs of a command; refuse those whose package or server is missing."""
        from ..track import MLflow, TensorBoard, WandB

        kinds = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
        return [kind() for name, kind in kinds.items() if getattr(self, name)]

    @property
    def flags(self) -> list[str]:
        """The options as they were typed."""
        return [f"--{f.name}" for f in fields(self) if getattr(self, f.name)]

    def say(self, text: str) -> None:
        """Print a remark that is no result."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def titled(self, name: str, number: int, of: int) -> str | bool:
        """Return the title of the progress of one of several runs; False where no progress is shown."""
        return not self.quiet and f"{name} ({number} of {of})"


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of each dataclass among its parameters, and hand it those dataclasses."""
    parameters = signature(command).parameters
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters.values() if is_dataclass(p.annotation)}

    @wraps(command)
    def called(**typed: Any) -> None:
        values = {n: kind(**{f.name: _value(f, typed.pop(f.name)) for f in fields(kind)}) for n, kind in groups.items()}
        command(**typed, **values)

    each = ([_parameter(f) for f in fields(groups[n])] if n in groups else [p] for n, p in parameters.items())
    named = [p.replace(kind=Parameter.KEYWORD_ONLY) for some in each for p in some]
    called.__signature__ = Signature(named)  # type: ignore[attr-defined]  # which Typer reads
    return called


def _value(f: "Field[Any]", typed: Any) -> Any:
    read = f.metadata.get("read")
    return typed if read is None or typed is None else read(typed)


def _parameter(f: "Field[Any]") -> Parameter:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    typed = str | None if f.metadata.get("read") else f.type
    kind = Annotated[typed, f.metadata["option"]] if "option" in f.metadata else typed
    return Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


class TrainingCommand(TyperCommand):
    """A command that trains. It knows what those may mean who type an option as other programs have it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse ``--silent``, whose nearest names would mislead, then parse."""
        if any(word.partition("=")[0] == "--silent" for word in args):
            raise UserError(
                "there is no --silent: messages are dropped by --drop-messages 0.2, and --quiet prints no progress"
            )
        return super().parse_args(ctx, args)
