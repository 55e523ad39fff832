"""The options that several commands have. Each is typed once, as a field of the value that its commands get."""
# ruff: noqa: RUF009 (option makes a field)

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.annotations import MOST
from ...core.settings_file import SettingsFile, read_settings
from ...study.presets import DATA, PRESETS
from ...study.remarks import Remarks
from ...training.settings import options
from ...training.time_limit import TimeLimit
from .fields import option, typed_options

if TYPE_CHECKING:
    from ...track import Tracker

SEEDS, WORKERS = 10_000, 10_000  # the most of them, and of GPUs
DAY = 86_400.0  # seconds, the most that anything waits
TOPOLOGY = f"that of the method; for {DATA}, {PRESETS[DATA].settings['topology']} unless it has another kind of graph"

DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of the data sets.", show_default="COTERIE_DATA, else that of `coterie data dir`"),
]
TopologyText = Annotated[
    str | None,
    typer.Option(
        help="The communication graph, where there is no server: ring, grid, random:5, ...", show_default=TOPOLOGY
    ),
]
Settings = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting of the method, such as lr=0.05; repeat for more.",
        show_default="those of the preset, see coterie list METHOD",
    ),
]
Trust = Annotated[
    list[str],
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Code of your own that a saved config.json or a file of --settings names and may run; repeat for more.",
        show_default="none",
    ),
]
RowsFormat = Annotated[str, typer.Option(help="table, or json or csv, which stand alone on the standard output.")]
ResultFormat = Annotated[
    str, typer.Option(help="table, markdown, latex, json or csv, on the standard output; progress goes elsewhere.")
]
TuneTexts = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE,VALUE",
        help="Choose a setting of every method first, on validation samples, as `coterie tune --grid` does, with ; "
        "between values that have commas; METHOD.KEY is for one of them; repeat for more.",
        show_default="none",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Tell FLOPs, bytes and memory; train nothing and write nothing."),
]


def of_preset(name: str) -> str:
    """Say what the help shows of something that depends on the data."""
    return f"{getattr(PRESETS[DATA], name)} for {DATA}; for other data see coterie list presets"


OF_ALL = ("rounds", "evaluate_every", "record", "validation", "select", "engine", "device", "precision")
OF_RUNS = tuple(f.name for f in options("typed") if f.name not in OF_ALL)
USUAL = {f.name: f.default for f in options("typed")}
OfAll: Any = typed_options("OfAll", OF_ALL, rounds=of_preset("rounds"))
OfRuns: Any = typed_options("OfRuns", OF_RUNS)


@dataclass(frozen=True)
class TrainingOptions(OfAll):  # type: ignore[misc]  # its fields are the options of a run, declared where they are used
    """The options of every command that trains as typed; None where nothing was said."""

    data: str | None = option(
        "The data: digits, cifar10, npz:FILE, csv:FILE,target=COLUMN,client=COLUMN, ... (see `coterie list`), or "
        "module:function of your own.",
        usual=DATA,
    )
    data_dir: DataDir = None
    model: str | None = option(
        "The model: logreg, small-cnn, resnet8-gn, ... (see `coterie list`), or module:function of your own.",
        shows=of_preset("model"),
    )
    partition: str | None = option(
        "Who gets which samples: iid, dirichlet:0.1, pathological:2, shards:2, natural, ... (see `coterie list`), or "
        "module:function of your own.",
        shows=of_preset("partition"),
    )
    clients: int | None = option("How many clients.", min=1, max=MOST, shows=of_preset("clients"))
    set: Settings = field(default_factory=list)
    out: Path | None = option("The folder for the results.", shows="a new one under runs/")
    resume: bool = option("Continue what an interruption left in --out.", "--resume", default=False)
    for_: TimeLimit | None = option(
        "Stop in time, all runs together: 90s, 25m, 1.5h. Saves, prints the command that continues, exits with 75.",
        "--for",
        read=TimeLimit,
        metavar="TIME",
        shows="no limit",
    )

    def given(self, name: str) -> Any:
        """Return what was typed, or what holds where nothing was."""
        typed = getattr(self, name)
        if typed is None and name in USUAL:
            return USUAL[name]
        return self.__dataclass_fields__[name].metadata["usual"] if typed is None else typed

    @property
    def typed(self) -> dict[str, Any]:
        """The options of a run that were typed, by name."""
        return {f.name: v for f in options("typed") if (v := getattr(self, f.name, None)) not in (None, [])}


@dataclass(frozen=True)
class RunOptions(TrainingOptions, OfRuns):  # type: ignore[misc]
    """The options of ``run`` and ``compare``."""

    settings: SettingsFile | None = option(
        "A TOML file with one table of settings per method, as `coterie tune` writes it; --set wins over it.",
        "--settings",
        read=read_settings,
        metavar="FILE",
        shows="none",
    )
    trust: Trust = field(default_factory=list)
    topology: TopologyText = None
    capacities: str | None = option(
        "How large a model clients carry: b4 is the whole one, b3, b2 and b1 are ever smaller, down to a quarter of "
        "all widths, one of four stages or the lowest rank (`coterie capacity` counts them). b4-b3-b2 are equal "
        "shares of the clients, b4x15-b2x5 groups of 15 and 5, 1-0.5 ratios; b1@250-b4 (rounds) and b1@0.25-b4 (shares "
        "of all rounds) are for all clients, one after the other.",
        shows="that of the method",
    )
    optimizer: str | None = option(
        "What clients step with: sgd, adam or adamw, or module:function of your own.", shows="that of the method, sgd"
    )
    ray_address: str | None = option("Of the Ray cluster, auto for this machine's.", shows="one is started for the run")
    workers: int | None = option("Of --engine ray.", min=1, max=WORKERS, shows="as many as there are cores")
    gpus_per_worker: float | None = option("Of --engine ray, such as 1 or 0.5.", min=0, max=WORKERS, usual=0.0)


@dataclass(frozen=True)
class Output(Remarks):
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
        from ...track import MLflow, TensorBoard, WandB

        kinds = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
        return [kind() for name, kind in kinds.items() if getattr(self, name)]

    @property
    def flags(self) -> list[str]:
        """The options as they were typed."""
        return [f"--{f.name}" for f in fields(self) if getattr(self, f.name)]
