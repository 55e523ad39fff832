"""The interface of trackers, who tells them of a run, and what several of them need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol, runtime_checkable

from ..core.checked_json import read_json
from ..core.errors import UserError
from ..core.files import write_json
from ..core.schema import Config, Row, Summary, TrackedRow
from .progress import Progress

MARKS = "trackers.json"  # in a run folder: under which id each tracker knows the run


@runtime_checkable
class Tracker(Protocol):
    """Takes the numbers of runs, one run after another.

    Whatever it refuses before any training (a package or a server that is not there), it refuses when it is made.
    Whatever it raises later is shown once and the run goes on without it.
    """

    @property
    def name(self) -> str:
        """Its name in sentences and in the run folder."""

    def begin(self, config: Config, folder: Path | None, history: Sequence[TrackedRow]) -> str:
        """Begin a run, or go on after the rounds of ``history``; return where to look at it, or nothing."""

    def round(self, row: TrackedRow) -> None:
        """Take the row of one more round, with the bytes of all rounds so far."""

    def end(self, summary: Summary | None) -> None:
        """End the run; None: it was interrupted, and may go on later."""


class Tracking:
    """Tells trackers of a run, from its begin to its end; use it with ``with``.

    A server may be gone, and a run goes on without the tracker that needs it. What is wrong with a tracker of the
    user's own passes as it is.
    """

    def __init__(self, trackers: Sequence[Tracker], bar: Progress) -> None:
        self.given, self.bar = trackers, bar
        self.told: list[Tracker] = []  # those that know of the run and have not failed
        self.sent = 0
        self.summary: Summary | None = None  # until the run is finished

    def __enter__(self) -> "Tracking":
        return self

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> None:
        """Begin or go on with a run; what is wrong with the request is refused, as nothing is trained yet."""
        rows = [self._with_total(row) for row in history]

        def begin(tracker: Tracker) -> None:
            if where := tracker.begin(config, folder, rows):
                self.bar.say(f"{tracker.name}: {where}")

        for tracker in self.given:
            self.told.append(tracker)
            self._tell(tracker, begin, "the begin")

    def round(self, row: Row) -> None:
        """Tell of one more round."""
        tracked = self._with_total(row)
        for tracker in tuple(self.told):
            self._tell(tracker, lambda tracker: tracker.round(tracked), f"round {row['round']}")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for tracker in tuple(self.told):
            self._tell(tracker, lambda tracker: tracker.end(self.summary), "the end", may_raise=error is None)

    def _with_total(self, row: Row) -> TrackedRow:
        self.sent += row["bytes_sent"]
        return {**row, "bytes_sent_total": self.sent}

    def _tell(self, tracker: Tracker, call: Callable[[Tracker], None], of: str, may_raise: bool = True) -> None:
        """Call a tracker; one whose server or disk fails is left out from then on."""
        try:
            call(tracker)
        except UserError:
            self.told.remove(tracker)
            raise
        except Exception as error:
            self.told.remove(tracker)
            ours = type(tracker).__module__.startswith("coterie.")
            if may_raise and not ours and not isinstance(error, OSError):
                error.add_note(f"It happened in the tracker {tracker.name}, when it was told of {of}.")
                raise
            told = f"{tracker.name} failed and is left out of this run, which goes on without it"
            self.bar.warn(f"{told} ({reason(error)})")


def reason(error: BaseException) -> str:
    """Return the first line of an error, or as much of it as a sentence bears.

    >>> reason(OSError("gone\\nat line 3")), reason(KeyError())
    ('gone', 'KeyError')
    """
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0], 200, placeholder=" ...")


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row by name.

    >>> scalars({"round": 3, "train_loss": 0.5, "global_accuracy": None, "bytes_sent": 8})
    {'train_loss': 0.5, 'bytes_sent': 8.0}
    """
    return {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k != "round"}


def dotted(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts under names with dots.

    >>> dict(dotted({"method": "local", "data": {"clients": 4}}))
    {'method': 'local', 'data.clients': 4}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def name_of(config: Config, folder: Path | None) -> str:
    """Return the name of a run: that of its folder, where it has one."""
    return f"{config['method']}-seed{config['seed']}" if folder is None else folder.absolute().name


def mark(folder: Path | None, name: str) -> str | None:
    """Return the id under which a tracker knows the run of this folder."""
    path = None if folder is None else folder / MARKS
    return read_json(path, dict[str, str]).get(name) if path is not None and path.exists() else None


def remember(folder: Path | None, name: str, known_as: str) -> None:
    """Keep that id, so that a continued run is the same one there, too."""
    if folder is not None:
        path = folder / MARKS
        write_json(path, {**(read_json(path, dict[str, str]) if path.exists() else {}), name: known_as})
