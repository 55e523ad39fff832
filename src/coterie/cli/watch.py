"""``coterie watch``: a table of runs under way and a page that keeps up with them."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live as Screen
from rich.table import Table

from ..core.errors import UserError
from ..core.files import write_text
from ..core.spec import scaled
from ..report import html
from ..report.library import compressed_library
from ..track.progress import Rhythm, clock
from .console import table
from .follow import FINISHED, RUNNING, STALLED, WAITING, Folder, Followed, Snapshot
from .report import PAGE
from .train import INTERRUPTED

FRAME = 8  # lines around the rows of the table
NUMBERS = (
    "accuracy: personal, after mixing, mean over the clients, as last measured; loss: of training; age: of the last "
    "round; ≥: evaluations not counted"
)
SOONEST = 2.0  # seconds until a page loads itself again: drawing takes one
SHARE = 0.1  # of the time may be spent on making pages
COLORS = {RUNNING: "green", STALLED: "red", FINISHED: "blue", WAITING: "dim"}
NOTHING = "nothing is there yet; waiting for a run to begin"


def watch_runs(path: Path, every: float, out: Path | None, once: bool) -> None:
    """Follows a folder until everything in it is finished."""
    folder = Folder(path)
    page = Page(folder, out or folder.path / PAGE, every)
    with _interruptible(page), _shown() as show:
        while True:
            seen = folder.look()
            show(seen)
            if once or folder.finished(seen):
                break
            page.refresh(seen)
            time.sleep(every)
        page.write(reload=None)
    _say(f"page: {page.path}" if page.text else f"no page: {page.trouble}")


@contextmanager
def _interruptible(page: "Page") -> Iterator[None]:
    """On Ctrl-C the page stays as it is, and stops loading itself again."""
    try:
        yield
    except KeyboardInterrupt:
        page.stop()
        sys.exit(INTERRUPTED)


class Page:
    """The report of what is there, written again when there is more."""

    def __init__(self, folder: Folder, path: Path, every: float) -> None:
        self.folder, self.path, self.every = folder, path, every
        self.text, self.trouble = "", ""
        self.of: list[tuple[str, int]] = []  # states and rounds it tells of
        self.due = 0.0
        try:
            compressed_library()
        except UserError as error:
            self.trouble = str(error)

    def refresh(self, seen: dict[Followed, Snapshot]) -> None:
        """Where something has changed, as often as its making allows."""
        now, of = time.monotonic(), [(run.state, run.done) for run in seen.values()]
        if of == self.of or now < self.due:
            return
        if self.write(reload=max(self.every, SOONEST)) and not self.of:
            _say(f"page: {self.path}, written again while runs are under way")
        self.of = of if self.text else []
        self.due = now + (time.monotonic() - now) / SHARE

    def write(self, reload: float | None) -> bool:
        """Makes it anew, whole or not at all; what cannot be read now may be read later."""
        try:
            self.text = html([self.folder.path], reload=reload)
        except UserError as error:
            self.trouble = str(error)
            return False
        self._put()
        return True

    def stop(self) -> None:
        """Leaves it as it is, but for loading itself again."""
        if self.text:
            self.text = re.sub(r'<p id="live".*?</p>', "", self.text)
            self._put()

    def _put(self) -> None:
        write_text(self.path, self.text, shared=True)  # the process that trains may write it at the same time


class _Lines:
    """Plain lines: when a run's state changes, and now and then in between."""

    def __init__(self) -> None:
        self.states: dict[Followed, str] = {}
        self.rhythms: dict[Followed, Rhythm] = {}
        self.waited = False

    def __call__(self, seen: dict[Followed, Snapshot]) -> None:
        if not seen and not self.waited:
            print(NOTHING, flush=True)
        self.waited = not seen
        for run, how in seen.items():
            evaluation_interval = self.rhythms.setdefault(run, Rhythm(how.done, how.rounds or 0, time.monotonic()))
            new = self.states.get(run) != how.state
            self.states[run] = how.state
            further = how.done > evaluation_interval.told and evaluation_interval.due(how.done, time.monotonic())
            if new or further:
                print(f"{run.name}: {_said(run, how)}", flush=True)


@contextmanager
def _shown() -> Iterator["_Lines | _Screen"]:
    """A table that is drawn again in a terminal, lines elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    with Screen(NOTHING, console=console, auto_refresh=False) as screen:
        yield _Screen(screen)


class _Screen:
    """The table in a terminal."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def __call__(self, seen: dict[Followed, Snapshot]) -> None:
        self.screen.update(_table(seen, self.screen.console.height - FRAME) if seen else NOTHING, refresh=True)


def _table(seen: dict[Followed, Snapshot], room: int) -> Table:
    """One row a run; where there is not room for all, those under way before the others."""
    chosen = sorted(seen, key=lambda run: seen[run].state in (FINISHED, WAITING))[:room]
    made = table("run", ">round", ">accuracy", ">loss", ">sent", ">ETA", ">age", "state")
    made.columns[0].no_wrap = made.columns[-1].no_wrap = True
    for run, how in ((run, how) for run, how in seen.items() if run in chosen):
        round = "-" if how.rounds is None else f"{how.done}/{how.rounds}"
        accuracy = "" if run.measured.accuracy is None else f"{100 * run.measured.accuracy[0]:.1f} %"
        sent = scaled(run.measured.bytes, "B") if how.done else ""
        state = f"[{COLORS.get(how.state, 'default')}]{how.state}"
        made.add_row(run.name, round, accuracy, run.measured.loss_text, sent, _left(how), _age(how), state)
    left_out = Counter(how.state for run, how in seen.items() if run not in chosen)
    no_room = "no room for: " + ", ".join(f"{count} {state}" for state, count in left_out.items()) + "\n"
    made.caption, made.caption_justify = (no_room if left_out else "") + NUMBERS, "left"
    return made


def _said(run: Followed, how: Snapshot) -> str:
    parts = [how.state, "" if how.rounds is None else f"round {how.done}/{how.rounds}", run.measured.said]
    times = {"ETA": _left(how), "since the last round": _age(how)}
    return ", ".join([p for p in parts if p] + [f"{k} {v}" for k, v in times.items() if v])


def _left(how: Snapshot) -> str:
    return "" if how.left is None or how.state == STALLED else f"{'≥' if how.at_least else ''}{clock(how.left)}"


def _age(how: Snapshot) -> str:
    return "" if how.age is None else clock(how.age)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
