"""How fast machines have trained, measured by runs, and the time that other runs would take there.

What a machine reaches depends on the model and on how much there is to do at once, by a factor of a hundred: so a speed
is kept with both, and where nothing alike was measured there is no time rather than a wrong one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ...core.errors import UserError
from ...core.files import config_folder, write_text
from ...core.spec import parse
from .sources import source

SHIPPED = files(__package__).joinpath("files", "speeds.json")
# How much smaller and larger a step and its batches may be than those that were measured. Small steps leave most of a
# machine idle; larger ones are at least as fast, but not four times. Small batches leave it with weights to move.
LEAST, MOST = 0.5, 4.0
# Forward passes of a training sample, by what is recorded beside accuracies; what else is recorded is not counted in
# passes, and takes an unknown time.
PASSES_TO_RECORD = {"train-accuracy": 1, "own-train": 2, "gradients": 3, "perplexity": 0, "mass": 0}


class Speed(NamedTuple):
    """What one run has measured; FLOPs are multiply-adds."""

    machine: str
    precision: str
    torch: str
    engine: str  # with the clients that it runs side by side, as in graphed:10
    model: str  # without its options
    method: str
    batch: float  # samples of a client's step
    step: float  # FLOPs, forward and backward, of one step of all clients that run side by side
    training: float  # FLOPs per second, forward and backward
    evaluation: float | None  # FLOPs per second, forward; None: not measured
    building: float | None  # seconds that the first round takes beyond those of any other; None: not measured
    source: str

    @property
    def platform(self) -> "Platform":
        """What this was measured on."""
        return Platform(self.machine, self.precision)


class Platform(NamedTuple):
    """What a time is for."""

    machine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.machine} in {self.precision}"


class RunSize(NamedTuple):
    """What one run has to do; FLOPs are multiply-adds."""

    model: str
    method: str
    cohort: int  # clients that train in a round
    batch: float  # samples of a step
    forward: float  # FLOPs of one sample, forward, through one client's own model
    training: float  # FLOPs of all rounds, forward and backward
    evaluation: float | None  # FLOPs of all evaluations, forward; None: it records what is not counted in passes
    tuning: float  # FLOPs, forward and backward, of fine-tuning for all evaluations

    def step(self, engine: str) -> float:
        """Return the FLOPs of one step of all clients that an engine runs side by side."""
        return 3 * self.forward * self.batch * min(self.cohort, side_by_side(engine))


class RunTime(NamedTuple):
    """The seconds that a run would take."""

    building: float
    training: float
    evaluation: float


def side_by_side(engine: str) -> int:
    """Return how many clients an engine runs at once.

    >>> side_by_side("serial"), side_by_side("graphed:10")
    (1, 10)
    """
    return int(next(iter(parse(engine).args), 1))


def estimate_time(speeds: Iterable[Speed], size: RunSize, platform: Platform) -> RunTime | None:
    """Return the time of a run from the measured one most like it; None: nothing alike was measured there.

    The same method comes first, then steps of about the same size, then what was measured last.
    """
    alike = [s for s in reversed(list(speeds)) if s.platform == platform and s.model == size.model]
    close = [s for s in alike if _like(size.step(s.engine), s.step) and _like(size.batch, s.batch)]
    close.sort(key=lambda s: (s.method != size.method, round(abs(log(size.step(s.engine) / s.step)), 1)))
    rate = next((s.evaluation for s in close if s.evaluation is not None), None)
    if rate is None or size.evaluation is None:
        return None
    nearest = close[0]
    building = next((s.building for s in close if s.building is not None), 0.0)
    return RunTime(building, size.training / nearest.training, size.evaluation / rate + size.tuning / nearest.training)


def participants(settings: Mapping[str, Any], clients: int) -> int:
    """Return how many clients train in a round; an integer of them is a count, as in every run."""
    wanted = settings.get("participation", 1.0)
    return wanted if isinstance(wanted, int) else max(1, round(wanted * clients))


def evaluated_samples(data: str, settings: Mapping[str, Any], clients: int, record: Sequence[str]) -> float | None:
    """Return the samples that go forward in one evaluation; None where more is recorded than passes.

    The clients' own go through everybody's model after aggregation and through those that were trained; all go
    through the one model that the clients agree on.
    """
    known = source(data)
    if not set(record) <= PASSES_TO_RECORD.keys():
        return None
    trained = participants(settings, clients) / clients
    return (2 + trained) * known.test + sum(PASSES_TO_RECORD[name] * known.train for name in record)


def measure_speed(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], told_by: str) -> Speed:
    """Return what the configuration and the rows of a run say about the speed of its machine."""
    if len(rows) < 3:
        raise UserError(f"{told_by} has fewer than three rounds, of which the first one builds: give a longer run")
    if "machine" not in config or "name" not in config["model"] or parse(config["engine"]).name == "ray":
        raise UserError(f"{told_by} names no machine or no built-in model, or has many machines: give another run")
    settings, data, later = config["settings"], config["data"], rows[1:]
    cohort = participants(settings, data["clients"])
    forward = median(row["forward_flops"] for row in later) / cohort
    batch = settings["batch_size"] or source(data["source"]).train / data["clients"]
    seconds = median(row["seconds"] for row in later)
    samples = evaluated_samples(data["source"], settings, data["clients"], config["record"])
    looks = [row["evaluation_seconds"] for row in later if row.get("global_accuracy") and "evaluation_seconds" in row]
    tuned = settings.get("finetune_epochs")  # then an evaluation also trains
    return Speed(
        machine=config["machine"],
        precision=config["precision"],
        torch=config["versions"]["torch"],
        engine=config["engine"],
        model=config["model"]["name"],
        method=config["method"],
        batch=batch,
        step=_rounded(3 * forward * batch * min(cohort, side_by_side(config["engine"]))),
        training=_rounded(median(row["flops"] / row["seconds"] for row in later)),
        evaluation=_rounded(samples * forward / median(looks)) if samples and looks and not tuned else None,
        building=_rounded(max(0.0, rows[0]["seconds"] - seconds)),
        source=told_by,
    )


def read_run(folder: Path) -> Speed:
    """Return what a run folder says about the speed of its machine."""
    from ...store import RunFolder  # which loads torch, and recipes are shown without it

    try:
        run = RunFolder(folder)
        config, rows = run.config(), run.rows()
        return measure_speed(config, rows, folder.name)
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise UserError(f"{folder} is no folder of a run that tells its times ({error}): give one") from error


def own_file() -> Path:
    """Return the file of the speeds that a user has measured."""
    return config_folder() / "speeds.json"


def read_speeds(path: Any) -> list[Speed]:
    """Return the speeds of a file, the oldest first; none where there is no file."""
    try:
        return [Speed(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no table of speeds ({error}): mend or remove it") from error


def known_speeds() -> list[Speed]:
    """Return the shipped speeds and the user's own."""
    return [*read_speeds(SHIPPED), *read_speeds(own_file())]


def add_speeds(path: Path, found: Iterable[Speed]) -> None:
    """Add speeds to a file; a new one replaces the one of the same method, model, steps and platform."""
    speeds = {(s.platform, s.model, s.method, s.step): s for s in read_speeds(path)}
    for s in found:
        speeds.pop((s.platform, s.model, s.method, s.step), None)
        speeds[s.platform, s.model, s.method, s.step] = s
    lines = ",\n".join(" " + json.dumps(s._asdict()) for s in speeds.values())
    write_text(path, f"[\n{lines}\n]\n", "--to", shared=True)


def _like(wanted: float, measured: float) -> bool:
    return LEAST <= wanted / measured <= MOST


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
