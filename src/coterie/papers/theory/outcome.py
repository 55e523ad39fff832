"""What comes out when a theorem is compared with runs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, stack

from ...algorithms.options import Training

EXACT = "exact"  # in closed form, or from the matrices and samples themselves
SEEN = "seen"  # the largest (or smallest) at the points the run has passed


class Constant(NamedTuple):
    """A number that the bound is made of."""

    name: str
    value: float
    how: str  # EXACT or SEEN
    meaning: str


class Condition(NamedTuple):
    """Something the theorem assumes of the settings or of the run."""

    text: str
    holds: bool
    fix: str = ""  # what to change where it does not


class Outcome(NamedTuple):
    """A theorem beside the runs it is about; the lists have one number for every T, rounds or (FedLMT) local steps."""

    method: str
    theorem: str  # where it stands
    quantity: str  # what is measured and bounded
    settings: dict[str, Any]
    constants: tuple[Constant, ...]
    conditions: tuple[Condition, ...]
    measured: list[float]  # up to T = 1, 2, ...; mean over the seeds
    bound: list[float] | None  # as printed, or with the proof's constants; None where a condition fails
    completed: list[float] | None = None  # with the terms the proof loses, where it loses some
    notes: tuple[str, ...] = ()  # where the text is open or contradicts itself

    @property
    def void(self) -> tuple[Condition, ...]:
        """The conditions that fail, each of which takes the bound away."""
        return tuple(c for c in self.conditions if not c.holds)

    def constant(self, name: str) -> float:
        """Return the value of a constant."""
        return next(c.value for c in self.constants if c.name == name)

    def first_above(self, bound: Sequence[float]) -> int | None:
        """Return the first T, counted from 1, for which the measured lies above the bound; None: there is none."""
        above = (t for t, (m, b) in enumerate(zip(self.measured, bound, strict=True), start=1) if m > b)
        return next(above, None)

    @property
    def holds(self) -> bool | None:
        """Whether the bound lies above the measured for every T; None where there is no bound."""
        return None if self.bound is None else self.first_above(self.bound) is None


def bound_curve(conditions: Sequence[Condition], T: int, bound: Callable[[int], float]) -> list[float] | None:
    """Return the bound for 1 to T, unless a condition fails or it is no finite number."""
    values = [bound(t) for t in range(1, T + 1)]
    return values if all(c.holds for c in conditions) and all(map(math.isfinite, values)) else None


def running_means(runs: Sequence[Tensor]) -> list[float]:
    """Return the mean of the first T numbers for every T, mean over the runs."""
    sums = stack(list(runs)).mean(0).cumsum(0)
    return [float(total) / t for t, total in enumerate(sums, start=1)]


def plain_sgd(t: Training) -> Condition:
    """Return the condition of all theorems: plain SGD with constant rates."""
    changed = [k for k in ("momentum", "weight_decay", "clip", "quantize", "robust") if getattr(t, k)]
    changed += ["lr_decay"] if t.lr_decay != 1.0 else []
    changed += [k for k in ("lr_min", "lr_milestones", "lr_schedule") if getattr(t, k) is not None]
    changed += ["lr_warmup"] if t.lr_warmup else []
    changed += [k for k in ("optimizer", "server_optimizer") if getattr(t, k) != "sgd"]
    return Condition(
        "plain SGD at constant rates, all numbers sent and averaged", not changed, f"leave {', '.join(changed)} out"
    )
