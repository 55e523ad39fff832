"""What all sides share: the work as files, the clock and the report.

Peers run where Coterie is not installed, so this file needs numpy and the standard library only.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ARRAYS = ("x", "y", "test_x", "test_y", "cohorts")
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


class Clock:
    """The seconds of rounds that follow each other, bookkeeping between them included."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.first_round_ended = 0.0  # seconds since the epoch, as only those mean something to another process

    def start(self) -> None:
        """The first round begins."""
        self.stamps = [time.perf_counter()]

    def tick(self) -> None:
        """A round is over and the next one begins."""
        self.stamps.append(time.perf_counter())
        if len(self.stamps) == 2:
            self.first_round_ended = time.time()

    @property
    def seconds(self) -> list[float]:
        """Of each round."""
        return [after - before for before, after in zip(self.stamps, self.stamps[1:], strict=False)]


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
        "first_round_ended": clock.first_round_ended,
        "first_loss": first_loss,
        "test_loss": test_loss,
        "versions": {name: version(name) for name in packages},
        "engine": engine,
    }
    Path(path).write_text(json.dumps(facts))
