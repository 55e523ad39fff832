"""What a comparison is made of: runs as plain data, the seeds of one method together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..rows import Row


@dataclass(frozen=True, eq=False)
class RunData:
    """One run without its models."""

    config: dict[str, Any]
    history: Sequence[Row]
    summary: dict[str, Any]
    client_summary: dict[str, Any]  # {} before the run is finished
    finished: bool = True

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    def last(self, name: str) -> float | None:
        """A number of the last round that has measured it."""
        return next((v for row in reversed(self.history) if (v := row.get(name)) is not None), None)

    @property
    def evaluated(self) -> int:
        """The last round whose models were evaluated; without classes to get right, the last one."""
        known = (row["round"] for row in reversed(self.history) if row.get("global_accuracy") is not None)
        return next(known, len(self.history))


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """One method: one run per seed."""

    label: str
    runs: Sequence[RunData]

    def finals(self, point: str) -> list[float]:
        """The mean personal accuracy of the last evaluated round in %, per seed; empty unless every seed has it."""
        known = [100 * a["final"] for run in self.runs if (a := run.summary["personal_accuracy"].get(point))]
        return known if len(known) == len(self.runs) else []
