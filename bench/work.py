"""What all sides share: the work as files, the clock and the report.

Peers run where Coterie is not installed, so this file needs numpy and the standard library only.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ARRAYS = ("x", "y", "test_x", "test_y", "cohorts")
ROOT = "COTERIE_BENCH_ROOT"  # the variable that names the first process of a side, where it is not the reporting one
EVALUATED = 250  # test samples at a time, the same for everybody: more would show in the peak memory


@dataclass(frozen=True)
class Work:
    """One workload: who trains what on which samples, from which weights."""

    settings: dict[str, Any]  # of the workload: model, batch_size, epochs, lr and what describes it
    x: Array  # [clients, samples, 1, 28, 28]
    y: Array  # [clients, samples]
    test_x: Array
    test_y: Array
    cohorts: Array  # [rounds, members]
    weights: dict[str, Array]  # of the first model, by their names in PyTorch


def save(folder: Path, settings: Mapping[str, Any], arrays: Mapping[str, Array], weights: Mapping[str, Array]) -> None:
    """Writes a workload for all sides."""
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", arrays[name])
    with open(folder / "weights.npz", "wb") as file:
        np.savez(file, allow_pickle=False, **weights)


@cache
def load(folder: str) -> Work:
    """Reads a workload, once a process; samples are mapped, so that processes share them.

    Copy-on-write, because torch warns of arrays that cannot be written.
    """
    at = Path(folder)
    arrays = {name: np.load(at / f"{name}.npy", mmap_mode="c") for name in ARRAYS}
    with np.load(at / "weights.npz") as weights:
        return Work(json.loads((at / "settings.json").read_text()), weights=dict(weights), **arrays)


class Process(NamedTuple):
    """A running process."""

    parent: int
    cpu: float  # seconds of all its threads, and of its children that have ended


def running() -> dict[int, Process]:
    """All processes of this machine by number; none where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended meanwhile
            numbers = entry.read_text().rpartition(")")[2].split()
            cpu = sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
            found[int(entry.parent.name)] = Process(int(numbers[1]), cpu)
    return found


def family(pid: int, among: Mapping[int, Process]) -> list[int]:
    """A process and all that descend from it.

    >>> family(2, {pid: Process(parent, 0.0) for pid, parent in ((2, 1), (3, 1), (4, 2), (5, 4))})
    [2, 4, 5]
    """
    out = [pid]
    for member in out:  # grows while it is walked
        out.extend(child for child, process in among.items() if process.parent == member)
    return out


def cpu_seconds() -> float:
    """The processor time that all processes of this side have used so far; 0 where there is no /proc."""
    now = running()
    return sum(now[pid].cpu for pid in family(int(os.environ.get(ROOT, os.getpid())), now) if pid in now)


class Clock:
    """The seconds of rounds that follow each other, bookkeeping between them included.

    Beside them the processor time: on a busy machine it is what a side needs, and the other one what it gets.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.first_round_ended = 0.0  # seconds since the epoch, as only those mean something to another process

    def start(self) -> None:
        """A round begins."""
        self.used, self.began = cpu_seconds(), time.perf_counter()

    def tick(self) -> None:
        """A round is over and the next one begins."""
        self.seconds.append(time.perf_counter() - self.began)
        self.cpu_seconds.append(cpu_seconds() - self.used)
        self.first_round_ended = self.first_round_ended or time.time()
        self.start()


def arguments(*names: str) -> argparse.Namespace:
    """What the driver tells a side: ``names``, the folder of the work, where to report, and how many rounds."""
    parser = argparse.ArgumentParser()
    for name in (*names, "folder", "report"):
        parser.add_argument(name)
    parser.add_argument("rounds", type=int)
    return parser.parse_args()


def report(path: str, clock: Clock, first_loss: float, test_loss: float, packages: list[str], engine: str) -> None:
    """Tells the driver what a side came to; ``first_loss``: of the initial weights, to see that they are the same."""
    facts = {
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "first_round_ended": clock.first_round_ended,
        "first_loss": first_loss,
        "test_loss": test_loss,
        "versions": {name: version(name) for name in packages},
        "engine": engine,
    }
    Path(path).write_text(json.dumps(facts))
