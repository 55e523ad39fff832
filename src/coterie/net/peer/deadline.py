"""How long a round waits for neighbors: as long as somebody says, or a few times as long as rounds take here."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

FACTOR = 3.0  # times as long as a round took lately
LEAST = 5.0  # seconds: links have hiccups, however short a round is
RECENT = 9  # rounds
SLOWEST = 20.0  # seconds, or FACTOR times one's own training: no more is learned from rounds that others made slow


@dataclass
class Deadline:
    """The deadline of a round."""

    fixed: float | None = None  # seconds; None: it adapts
    _slowest: float = SLOWEST
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _together: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def note(self, seconds: float, trained: float, together: bool) -> None:
        """Learn how long a round took in which nobody was missing, or the training alone where somebody was.

        A member that always comes shortly before the deadline would otherwise raise it without end.
        """
        self._slowest = max(SLOWEST, FACTOR * trained)
        self._took.append(min(seconds, self._slowest) if together else trained)
        if together:
            self._together.append(min(seconds, max(LEAST, FACTOR * trained)))

    @property
    def pace(self) -> float:
        """Seconds that a round takes while nobody is missing; 0 as long as there was none."""
        return median(self._together) if self._together else 0.0

    @property
    def longest(self) -> float:
        """Seconds that an exchange waits for a message of which a part is there: over a slow link it takes a while."""
        return FACTOR * self._slowest if self.fixed is None else self.fixed

    @property
    def seconds(self) -> float:
        """Seconds that an exchange waits for whoever is alive.

        The median, because one neighbor that is ten times slower must not make all others as slow.

        >>> deadline = Deadline()
        >>> for seconds in (2.0, 4.0, 90.0):
        ...     deadline.note(seconds, 1.0, together=True)
        >>> deadline.seconds
        12.0
        """
        if self.fixed is not None:
            return self.fixed
        return max(LEAST, FACTOR * median(self._took)) if self._took else LEAST
