"""The tracker of a trial: it keeps the scores, and lets a search end the trial early."""

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UserError
from ..core.schema import Config, Row, Summary, number
from ..core.schema_several import SavedTuning
from ..core.units import metrics_of, words
from ..measure.selection import LAST, goodness, rule_of, validation_column
from .search import Search


class EndedEarly(UserError):  # noqa: N818
    """A trial that is worse than others were at the same point."""


class Watcher:
    """Sees every round of a training: keeps its scores on validation samples, and lets a search end it early."""

    name = "tuning"

    def __init__(self, chooser: Search, step: int, found: SavedTuning) -> None:
        self.chooser, self.step, self.found = chooser, step, found
        self.curve: list[list[float]] = []  # [round, score on validation samples]

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> str:
        """Learn which metric decides, and what earlier processes have seen."""
        self.rule, self.column = rule_of(config), validation_column(config)
        metric = metrics_of(config)[0]
        self.found["metric"], self.found["higher_is_better"] = words(metric), metric["higher_is_better"]
        for row in history:
            self.round(row)
        return ""

    def round(self, row: Row) -> None:
        """Take the score of a round, if it was evaluated."""
        score = number(row, self.column)
        if score is None:
            return
        self.curve.append([row["round"], score])
        if self.chooser.ends(self.step + row["round"], goodness(score, self.found["higher_is_better"])):
            raise EndedEarly(f"ended early after round {row['round']}: others were better at this point")

    def end(self, summary: Summary | None) -> None:
        """Do nothing: the curve is known."""

    @property
    def score(self) -> float | None:
        """What the training comes to: its score in the round that would be reported."""
        scores = [score for _, score in self.curve]
        if not scores:
            return None
        return scores[-1] if self.rule == LAST else (max if self.found["higher_is_better"] else min)(scores)
