"""What a comparison is made of: runs as plain data, the seeds of one method together."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.schema import ClientSummary, Config, Row, Summary, number


@dataclass(frozen=True, eq=False)
class RunData:
    """One run without its models."""

    config: Config
    history: Sequence[Row]
    summary: Summary
    client_summary: ClientSummary  # {} before the run is finished
    finished: bool = True

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    def last(self, name: str) -> float | None:
        """A number of the last round that has measured it."""
        return next((v for row in reversed(self.history) if (v := number(row, name)) is not None), None)

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
