"""What a side came to, and whether two of them may be compared."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

from measure import LOSS_TOLERANCE

WARM_UP = 1  # rounds that are played and not counted: compilation, Ray's actors, fresh memory
FIRST_LOSS_TOLERANCE = 1e-4  # of the larger one; the first weights are the same, frameworks round differently


class Ratio(NamedTuple):
    """How many times as long a round takes: of the medians, and of the repeats at least and at most."""

    value: float
    least: float
    most: float


@dataclass
class Side:
    """One side of a comparison on one workload."""

    rounds: list[list[float]] = field(default_factory=list)  # seconds of the counted rounds of every repeat
    cpu: list[list[float]] = field(default_factory=list)  # and their processor time, all processes together
    start_ups: list[float] = field(default_factory=list)  # seconds from the start of the process to the end of round 1
    first_losses: list[float] = field(default_factory=list)  # test loss of the initial weights
    test_losses: list[float] = field(default_factory=list)  # and of the server's model after the last round
    peak_memory: int | None = None  # bytes of all its processes together
    engine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    left_out: str | None = None  # why it could not be measured

    def add(self, facts: dict[str, Any]) -> None:
        """One more repeat, as it was reported."""
        self.rounds.append(facts["seconds"][WARM_UP:])
        self.cpu.append(facts["cpu_seconds"][WARM_UP:])
        self.start_ups.append(facts["start_up"])
        self.first_losses.append(facts["first_loss"])
        self.test_losses.append(facts["test_loss"])
        self.engine, self.versions = facts["engine"], facts["versions"]

    @property
    def seconds(self) -> float:
        """The median round of all repeats."""
        return median(s for repeat in self.rounds for s in repeat)

    @property
    def cpu_seconds(self) -> float:
        """The mean round's: systems count in steps that may be longer than a round."""
        return fmean(s for repeat in self.cpu for s in repeat)

    def ratio(self, other: "Side") -> Ratio | None:
        """How many times as long as the other's a round takes; None where they did not do the same."""
        same_start = close(self.first_losses, other.first_losses, FIRST_LOSS_TOLERANCE)
        if not same_start or not close(self.test_losses, other.test_losses, LOSS_TOLERANCE):
            return None
        by_repeat = [median(a) / median(b) for a, b in zip(self.rounds, other.rounds, strict=True)]
        return Ratio(self.seconds / other.seconds, min(by_repeat), max(by_repeat))

    def as_json(self, reference: "Side") -> dict[str, Any]:
        """Everything that was measured, and what follows from it."""
        if self.left_out is not None:
            return {"left_out": self.left_out}
        ratio = self.ratio(reference)
        return {
            **asdict(self),
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "ratio": None if ratio is None else ratio._asdict(),
        }


def close(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool:
    """Whether every pair differs by no more than a share of the larger one.

    >>> close([1.0, 1.1], [1.05], 0.1), close([1.0], [1.2], 0.1), close([float("nan")], [1.0], 0.1)
    (True, False, False)
    """
    return all(abs(p - q) <= tolerance * max(p, q) for p in a for q in b)
