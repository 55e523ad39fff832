"""Both sides on the same work: seconds, test loss, memory.

The sides take turns in one process, so that whatever else the machine does meets both. Seconds are those of local work
and mixing, without evaluation. The memory of each side is measured in a fresh process, as a process never forgets its
peak.
"""

import math
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import plain
from coterie import __version__
from coterie.core.memory import retain_freed_memory
from coterie.core.tensors import Tensors, add
from coterie.data import Federation
from coterie.training.prepare import fit
from workloads import SEED, Workload, make_algorithm, make_cohorts, make_federation, make_model

Say = Callable[[str], None]

# Batch orders differ between the sides, and after a few rounds a loss still falls fast.
LOSS_TOLERANCE = 0.15  # of the larger one
EVALUATED = 250  # test samples at a time
MEMORY_ROUNDS = 2  # from the second one on, the state of the round before is held too


@dataclass
class Side:
    """The measurements of one side of the comparison."""

    rounds: list[list[float]] = field(default_factory=list)  # seconds of every round of every repeat
    test_loss: float = math.nan  # of the mean model after the last round
    engine: str = "plain loop"
    peak_memory: int | None = None  # bytes resident at most, data included

    @property
    def seconds(self) -> float:
        """The seconds of the median round of all repeats."""
        return median(s for repeat in self.rounds for s in repeat)


@dataclass
class Result:
    """The measurements of both sides on one workload."""

    workload: Workload
    plain: Side
    coterie: Side

    @property
    def sides(self) -> tuple[tuple[str, "Repeat", Side], ...]:
        """Both sides in the order they take turns: their names, their functions and their measurements."""
        return ("plain loop", repeat_plain, self.plain), ("coterie", repeat_coterie, self.coterie)

    @property
    def losses_agree(self) -> bool:
        """Whether both sides learned the same: only then a ratio of their seconds means anything."""
        a, b = self.plain.test_loss, self.coterie.test_loss
        return abs(a - b) <= LOSS_TOLERANCE * max(a, b)

    @property
    def ratio(self) -> float | None:
        """How many times faster Coterie is."""
        return self.plain.seconds / self.coterie.seconds if self.losses_agree else None

    @property
    def ratios(self) -> list[float]:
        """The same ratio repeat by repeat, which shows the noise of the machine."""
        pairs = zip(self.plain.rounds, self.coterie.rounds, strict=True)
        return [median(a) / median(b) for a, b in pairs]


Repeat = Callable[[Workload, Federation, Side], None]
"""Runs a workload once and adds its measurements to a side."""


def measure(w: Workload, repeats: int, say: Say) -> Result:
    """Measure the seconds and losses of both sides: plain, Coterie, plain, Coterie, ..."""
    federation = make_federation(w)
    result = Result(w, Side(), Side())
    for number in range(1, repeats + 1):
        for name, repeat, side in result.sides:
            repeat(w, federation, side)
            say(f"{w.name}  repeat {number}/{repeats}  {name:<10}  {median(side.rounds[-1]):.4f} s a round")
    return result


def measure_memory(result: Result, say: Say) -> None:
    """Measure the memory of both sides, each in a fresh process."""
    for name, repeat, side in result.sides:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            side.peak_memory = pool.submit(peak_memory, result.workload, repeat).result()
        known = "unknown" if side.peak_memory is None else f"{side.peak_memory / 1024**3:.2f} GiB"
        say(f"{result.workload.name}  memory      {name:<10}  {known}")


def repeat_plain(w: Workload, federation: Federation, side: Side) -> None:
    """Run the plain loop once."""
    model = make_model(w, federation)
    states, seconds = plain.run(w, federation, model, make_cohorts(w, federation))
    side.rounds.append(seconds)
    side.test_loss = mean_loss(model, states, federation)


def repeat_coterie(w: Workload, federation: Federation, side: Side) -> None:
    """Run ``fit`` once, evaluated after the last round only."""
    model = make_model(w, federation)
    asked: dict[str, Any] = {"rounds": w.rounds, "evaluate_every": w.rounds}
    with retain_freed_memory():  # as the commands do; in Python it is the caller's choice
        run = fit(model, federation, make_algorithm(w), seed=SEED, device="cpu", progress=False, **asked)
    side.rounds.append([row["seconds"] for row in run.history])
    side.engine = run.config["engine"]
    side.test_loss = mean_loss(model, [client.shared for client in run.clients], federation)


def mean_loss(model: nn.Module, states: Sequence[Tensors], federation: Federation) -> float:
    """Return the cross-entropy of the mean of some models on all test samples, a few at a time to spare memory."""
    mean = {k: torch.zeros_like(v) for k, v in states[0].items()}
    for state in states:
        mean = add(mean, state, 1 / len(states))
    parts = zip(*(torch.split(v, EVALUATED) for v in (federation.test_x, federation.test_y)), strict=True)
    with torch.no_grad():
        losses = [F.cross_entropy(functional_call(model.eval(), mean, x), y, reduction="none") for x, y in parts]
    return float(torch.cat(losses).mean())


def peak_memory(w: Workload, repeat: Repeat) -> int | None:
    """Return the bytes this process has held at most, after a few rounds of one side; None on Windows."""
    w = replace(w, rounds=min(MEMORY_ROUNDS, w.rounds))
    repeat(w, make_federation(w), Side())
    return resident_peak()


def resident_peak() -> int | None:
    """Return the peak resident memory of this process, in bytes; None on Windows.

    Linux hands ``ru_maxrss`` down from the parent to a new process; its status file does not have that flaw.
    """
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        if sys.platform == "win32":
            return None
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine() -> dict[str, Any]:
    """Describe what the numbers were measured with."""
    return {
        "coterie": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
