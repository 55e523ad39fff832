"""A comparison of methods, computed once: columns, best cells, protocol and verdict. Terminal and page render it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...core.schema_several import ComparedMethod
from .columns import Cell, Column, MethodRuns, RunData, check_target, columns
from .gains import ALONE, GAINS, Gain, Gains, gain_sentences, gains
from .meanings import POINTS, TARGET
from .newcomers import NEWCOMERS, newcomer_sentences
from .sentences import paired_test, protocol, verdict
from .sites import site_tests
from .work import unequal

__all__ = [
    "ALONE",
    "POINTS",
    "TARGET",
    "Cell",
    "Column",
    "Comparison",
    "Gain",
    "Gains",
    "MethodRuns",
    "RunData",
    "check_target",
    "gains",
    "paired_test",
]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods side by side, in the order in which they are shown."""

    methods: Sequence[MethodRuns]
    target: float | None = None  # of the mean personal metric after aggregation, in its unit, for the column of rounds
    notes: Sequence[str] = ()  # what else the numbers rest on

    @cached_property
    def columns(self) -> list[Column]:
        """All numbers, one cell per method."""
        return columns(self.methods, self.target)

    @cached_property
    def gains(self) -> list[Gains]:
        """What each client has of every method against training alone and one model for all, if these were run."""
        return gains(self.methods)

    @cached_property
    def verdict(self) -> list[str]:
        """Sentences: who won, what a paired test makes of it, for whom, and at what cost."""
        return [*verdict(self.methods), *gain_sentences(self.gains), *newcomer_sentences(self.methods)]

    @cached_property
    def unequal(self) -> list[str]:
        """One line on what differs in work and in tuning; nothing where both are equal."""
        return unequal(self.methods)

    @property
    def saved(self) -> list[ComparedMethod]:
        """What compare.json says: the summaries of all runs, and of few clients how each fares."""
        every: list[ComparedMethod] = [{"method": m.label, "runs": [r.summary for r in m.runs]} for m in self.methods]
        for tests in site_tests(self.methods):
            best = next(method for method in every if method["method"] == tests.label)
            best["sites"] = [*best.get("sites", []), *tests.saved]
        return every

    @cached_property
    def rows(self) -> list[tuple[str, list[Cell]]]:
        """The same by method, for writers of lines."""
        return [(m.label, [c.cells[i] for c in self.columns]) for i, m in enumerate(self.methods)]

    @property
    def _goal(self) -> float | None:
        """What rounds are counted to; None where they are not counted."""
        return check_target(self.target, self.methods[0].metric)

    def legend(self, mark: str) -> list[str]:
        """Return what must be known to read the table, without what every column is; ``mark``: that of the best."""
        came_later = [NEWCOMERS] if newcomer_sentences(self.methods) else []
        return [*self.notes, " ".join(protocol(self.methods, self._goal, [], mark)), *came_later]

    def protocol(self, shown: Sequence[Column], mark: str) -> list[str]:
        """Return sentences on what the numbers of the shown columns are; ``mark``: how a renderer marks the best."""
        further = [(GAINS, self.gains), (NEWCOMERS, newcomer_sentences(self.methods))]
        numbers = protocol(self.methods, self._goal, shown, mark)
        return [*self.notes, *numbers, *(means for means, said in further if said)]
