"""A comparison of methods, computed once: columns, best cells, protocol and verdict. Terminal and page render it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...core.schema_several import ComparedMethod
from .answer import Leads, answer, details, leads, ranked
from .columns import Cell, Column, MethodRuns, RunData, check_target, columns
from .gains import ALONE, GAINS, Gain, Gains, gains
from .meanings import POINTS, TARGET
from .sentences import NEWCOMERS, newcomer_sentences, protocol, unequal
from .sites import Pairs, decided, site_pairs, site_tests

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
        return [decided(found, self.methods, self._pairs) for found in gains(self.methods)]

    @cached_property
    def answer(self) -> list[str]:
        """What stands above the table: who gains or who is best, then whether the lead over the next is chance."""
        return answer(self.methods, self.gains, self._leads)

    @cached_property
    def details(self) -> list[str]:
        """What stands below the table: the other tests, the price, and for whom every method is better."""
        return [*details(self.methods, self.gains, self._leads), *newcomer_sentences(self.methods)]

    @property
    def verdict(self) -> list[str]:
        """All sentences on what came out, the answer first."""
        return [*self.answer, *self.unequal, *self.details]

    @property
    def _best(self) -> MethodRuns | None:
        """The method that is ahead, where several were measured."""
        order = ranked(self.methods)
        return order[0] if len(order) > 1 else None

    @cached_property
    def _pairs(self) -> Pairs:
        return site_pairs(self.methods)

    @cached_property
    def _leads(self) -> Leads | None:
        best = self._best
        return None if best is None else leads(self.methods, self._pairs, list(self.methods).index(best))

    @cached_property
    def unequal(self) -> list[str]:
        """One line on what differs in work and in tuning; nothing where both are equal."""
        return unequal(self.methods)

    @property
    def saved(self) -> list[ComparedMethod]:
        """What compare.json says: the summaries of all runs, and of few clients how each fares."""
        every: list[ComparedMethod] = [{"method": m.label, "runs": [r.summary for r in m.runs]} for m in self.methods]
        if self._best is not None and self._pairs:
            best = list(self.methods).index(self._best)
            every[best]["sites"] = [one for tests in site_tests(self.methods, self._pairs, best) for one in tests.saved]
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
