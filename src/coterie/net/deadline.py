"""How long a round waits for neighbors: as long as somebody says, or a few times as long as rounds take here."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

FACTOR = 3.0  # times as long as a round took lately
LEAST = 5.0  # seconds: links have hiccups, however short a round is
RECENT = 9  # rounds


@dataclass
class Deadline:
    """The deadline of a round."""

    fixed: float | None = None  # seconds; None: it adapts
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def note(self, seconds: float) -> None:
        """Learn how long a round took in which nobody was missing, or the training alone where somebody was."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """Seconds that an exchange waits for whoever is alive.

        The median, because one neighbor that is ten times slower must not make all others as slow.

        >>> deadline = Deadline()
        >>> for seconds in (2.0, 4.0, 90.0):
        ...     deadline.note(seconds)
        >>> deadline.seconds
        12.0
        """
        if self.fixed is not None:
            return self.fixed
        return max(LEAST, FACTOR * median(self._took)) if self._took else LEAST
