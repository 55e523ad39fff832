"""One run and all who track it. Tracking may fail; training goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from ..core.errors import UserError
from ..core.schema import Config, Row, Summary, TrackedRow
from .base import Tracker, reason
from .progress import Progress


class Tracking:
    """Tells trackers of a run, from its begin to its end; use it in a ``with`` statement."""

    def __init__(self, trackers: Sequence[Tracker], bar: Progress) -> None:
        self.given, self.bar = trackers, bar
        self.told: list[Tracker] = []  # those who know of the run and have not failed
        self.sent = 0
        self.summary: Summary | None = None  # until the run is finished

    def __enter__(self) -> "Tracking":
        return self

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> None:
        """The run begins or goes on; what is wrong with the request is refused, it is not too late."""
        rows = [self._with_total(row) for row in history]

        def begin(tracker: Tracker) -> None:
            self.bar.say(f"{tracker.name}: {tracker.begin(config, folder, rows)}")

        for tracker in self.given:
            self.told.append(tracker)
            self._tell(tracker, begin)

    def round(self, row: Row) -> None:
        """One more round."""
        tracked = self._with_total(row)
        for tracker in tuple(self.told):
            self._tell(tracker, lambda tracker: tracker.round(tracked))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in tuple(self.told):
            self._tell(tracker, lambda tracker: tracker.end(self.summary))

    def _with_total(self, row: Row) -> TrackedRow:
        self.sent += row["bytes_sent"]
        return {**row, "bytes_sent_total": self.sent}

    def _tell(self, tracker: Tracker, call: Callable[[Tracker], None]) -> None:
        """Whoever fails is left out from then on."""
        try:
            call(tracker)
        except UserError:
            self.told.remove(tracker)
            raise
        except Exception as error:
            self.told.remove(tracker)
            told = f"{tracker.name} failed and is left out of this run, which goes on without it"
            self.bar.warn(f"{told} ({reason(error)})")
