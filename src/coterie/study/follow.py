"""Runs that another process trains, perhaps on another machine, followed by nothing but their files.

No locks and no notices of the system: neither crosses a network mount. What is half written counts when it is whole.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..core.custom import folder_name
from ..core.errors import UserError
from ..core.schema import Config, Row
from ..core.units import metrics_of
from ..report.collect import COMPARISON, RECIPE, planned_runs
from ..store import RunFolder
from ..store.digests import DIGESTS
from ..store.folder import CLIENTS, CONFIG, METRICS, SUMMARY
from ..track.progress import LatestMeasures, Pace, clock

WAITING, STARTING, RUNNING, STALLED, FINISHED = "waiting", "starting", "running", "stalled", "finished"
DAMAGED = "damaged"
STILL = 60.0  # seconds in which no run is called stalled
PATIENCE = 10  # times the usual length of a round
BUILDING = 600.0  # seconds until the first round is over, engines built
OF_A_RUN = ("checkpoint", "clients", CLIENTS, DIGESTS, METRICS, SUMMARY)  # may be copied before the configuration is
LATEST = 10  # rounds whose seconds tell how long one takes, before any was seen


class Snapshot(NamedTuple):
    """The state of a run when it was looked at."""

    state: str
    done: int
    rounds: int | None  # None before its configuration is there
    left: float | None  # seconds until the last round is over
    at_least: bool  # whether that leaves out what is not known yet: evaluations
    age: float | None  # seconds since the last round, or since the run began

    @property
    def left_text(self) -> str:
        """The time left, where it can be told."""
        return "" if self.left is None or self.state == STALLED else f"{'≥' if self.at_least else ''}{clock(self.left)}"

    @property
    def age_text(self) -> str:
        """The time since the last round."""
        return "" if self.age is None else clock(self.age)


class Followed:
    """One run folder, looked at again and again."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder, self.now = folder, now
        self.config: Config | None = None
        self.trouble = ""  # what cannot be read, as of the last look
        self.measured = LatestMeasures()
        self.rows: list[Row] = []
        self.pace: Pace | None = None
        self.stamp: tuple[int, int] | None = None  # of the metrics as they were last read
        self.changed = 0.0  # when something was last seen to change
        self.looked = False

    @property
    def name(self) -> str:
        """The name of its folder, and the method where that does not tell."""
        name, method = self.folder.absolute().name, "" if self.config is None else self.config["method"]
        return name if folder_name(method) in name else f"{name} ({method})"

    def look(self) -> Snapshot:
        """Read the files and return how the run stands now."""
        try:
            self.trouble = ""
            self._read_config()
            self._read_rows()
            if self.over:
                RunFolder(self.folder).summary()
        except UserError as error:
            self.trouble = str(error)
        self.looked = True
        rounds = None if self.config is None else self.config["rounds"]
        if self.trouble and (self.over or rounds is not None):  # else the configuration may be half copied
            return Snapshot(DAMAGED, len(self.rows), rounds, None, False, None)
        if rounds is None:
            return Snapshot(WAITING, 0, None, None, False, None)
        done = len(self.rows)
        if self.over:
            return Snapshot(FINISHED, done, rounds, None, False, None)
        age = max(0.0, self.now() - self.changed)
        each, at_least = self._seconds_a_round()
        left = None if each is None else max(0.0, (rounds - done) * each - age)
        limit = BUILDING if each is None else max(STILL, PATIENCE * each)
        state = STALLED if age > limit else RUNNING if done else STARTING
        return Snapshot(state, done, rounds, left, at_least, age)

    @property
    def over(self) -> bool:
        """Whether the last file of the run is there."""
        return (self.folder / SUMMARY).exists()

    def _read_config(self) -> None:
        if self.config is None and (self.folder / CONFIG).exists():
            self.config = RunFolder(self.folder).config()
            self.changed = self._time_of((self.folder / CONFIG).stat().st_mtime)

    def _read_rows(self) -> None:
        """Read all rows where the file has changed: a run that was continued may have been cut first."""
        path = self.folder / METRICS
        if not path.exists():
            return
        about = path.stat()
        rows = self.rows if self.stamp == (about.st_mtime_ns, about.st_size) else RunFolder(self.folder).rows()
        if self.stamp is not None and len(rows) == len(self.rows):
            return
        self.changed = self._time_of(about.st_mtime)
        self.stamp, before, self.rows = (about.st_mtime_ns, about.st_size), len(self.rows), rows
        self.measured = LatestMeasures(() if self.config is None else metrics_of(self.config))
        for row in rows:
            self.measured.add(row)
        if self.pace is None or len(rows) < before:
            self.pace = Pace(len(rows), about.st_mtime)
        self.pace.seen(len(rows), about.st_mtime)

    def _time_of(self, written: float) -> float:
        """Return when a change happened: the first look believes the file, later ones this clock, as two may differ."""
        return self.now() if self.looked else written

    def _seconds_a_round(self) -> tuple[float | None, bool]:
        """Return the seconds as they were seen, else as the rows tell them, and whether evaluations are left out."""
        seen = None if self.pace is None else self.pace.seconds_per_round
        if seen is not None:
            return seen, False
        latest = [row["seconds"] for row in self.rows[-LATEST:]]
        return (sum(latest) / len(latest), True) if latest else (None, False)


class Folder:
    """A run folder, or that of a comparison or a recipe, with all runs that are there or will be."""

    def __init__(self, path: Path) -> None:
        self.path = path.parent if path.name == CONFIG else path
        if not self.path.is_dir():
            raise UserError(f"there is no folder {self.path}: give that of a run, a comparison or a recipe's runs")
        self.runs: dict[Path, Followed] = {}
        others = [p.name for p in self.path.iterdir() if p.name not in OF_A_RUN and not p.name.startswith(".")]
        if others and not self._folders():
            raise UserError(f"{self.path} holds no run: give the folder of a run, a comparison or a recipe's runs")

    def look(self) -> dict[Followed, Snapshot]:
        """Return how all runs stand, in the order in which they are trained."""
        for folder in self._folders():
            self.runs.setdefault(folder, Followed(folder))
        return {run: run.look() for run in self.runs.values()}

    def finished(self, seen: dict[Followed, Snapshot]) -> bool:
        """Return whether nothing is left to wait for; several runs end with a file about all of them."""
        whole = (self.path / CONFIG).exists() or not self._planned()
        ended = whole or any((self.path / name).exists() for name in (COMPARISON, RECIPE))
        return bool(seen) and ended and all(how.state in (FINISHED, DAMAGED) and run.over for run, how in seen.items())

    def _folders(self) -> list[Path]:
        if (self.path / CONFIG).exists():
            return [self.path]
        there = sorted((p.parent for p in self.path.glob(f"*/{CONFIG}")), key=lambda p: (p / CONFIG).stat().st_mtime)
        return list(dict.fromkeys([*(self.path / name for name in self._planned()), *there]))

    def _planned(self) -> list[str]:
        try:
            return planned_runs(self.path)
        except UserError:  # half of it
            return []
