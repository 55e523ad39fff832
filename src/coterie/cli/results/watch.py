"""``coterie watch``: a table of runs under way and a page that keeps up with them."""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from ...core.errors import DamagedFileError, UserError, in_one_line
from ...core.files import write_text
from ...core.spec import scaled
from ...core.units import with_unit, words
from ...report import html
from ...report.library import compressed_library
from ...study.follow import DAMAGED, FINISHED, RUNNING, STALLED, WAITING, Folder, Followed, Snapshot
from ...track.progress import LineThrottle
from ..common.console import plain_console, table
from ..common.typed import INTERRUPTED
from .report import PAGE

FRAME = 8  # lines around the rows of the table
NUMBERS = (
    "{}: personal, after aggregation, mean over the clients, as last measured; loss: of training; age: of the last "
    "round; ≥: evaluations not counted"
)
SOONEST = 2.0  # seconds until a page loads itself again: drawing takes one
SHARE = 0.1  # of the time may be spent on making pages
COLORS = {RUNNING: "green", STALLED: "red", DAMAGED: "red", FINISHED: "blue", WAITING: "dim"}
NOTHING = "nothing is there yet; waiting for a run to begin"


def watch_runs(path: Path, every: float, out: Path | None, once: bool) -> None:
    """Follow a folder until everything in it is finished; Ctrl-C leaves the page, which stops reloading itself."""
    folder = Folder(path)
    page = Page(folder, out or folder.path / PAGE, every)
    try:
        with _shown() as show:
            while True:
                seen = folder.look()
                show(seen)
                if once or folder.finished(seen):
                    break
                page.refresh(seen)
                time.sleep(every)
            page.write(reload=None)
    except KeyboardInterrupt:
        page.stop()
        sys.exit(INTERRUPTED)
    print(f"page: {page.path}" if page.text else f"no page: {page.trouble}", file=sys.stderr)
    damages = [*(run.trouble for run in seen if run.trouble), page.damage]
    if damages[0]:
        raise UserError(damages[0])


class Page:
    """The report of what is there, written again when there is more."""

    def __init__(self, folder: Folder, path: Path, every: float) -> None:
        self.folder, self.path, self.every = folder, path, every
        self.text, self.trouble, self.damage = "", "", ""
        self.of: list[tuple[str, int]] = []  # the states and rounds it shows
        self.due = 0.0
        try:
            compressed_library()
        except UserError as error:
            self.trouble = str(error)

    def refresh(self, seen: dict[Followed, Snapshot]) -> None:
        """Write the page where something has changed, as often as its making allows."""
        now, of = time.monotonic(), [(run.state, run.done) for run in seen.values()]
        if of == self.of or now < self.due:
            return
        if self.write(reload=max(self.every, SOONEST)) and not self.of:
            print(f"page: {self.path}, written again while runs are under way", file=sys.stderr)
        self.of = of if self.text else []
        self.due = now + (time.monotonic() - now) / SHARE

    def write(self, reload: float | None) -> bool:
        """Write the page anew, whole or not at all; what cannot be read now may be read later."""
        try:
            self.text = html([self.folder.path], reload=reload)
        except UserError as error:
            self.trouble, self.damage = str(error), str(error) if isinstance(error, DamagedFileError) else ""
            return False
        self._put()
        return True

    def stop(self) -> None:
        """Leave the page as it is, but for loading itself again."""
        if self.text:
            self.text = re.sub(r'<p id="live".*?</p>', "", self.text)
            self._put()

    def _put(self) -> None:
        write_text(self.path, self.text, shared=True)  # the process that trains may write it at the same time


class _Lines:
    """Plain lines: when a run's state changes, and now and then in between."""

    def __init__(self) -> None:
        self.states: dict[Followed, str] = {}
        self.throttles: dict[Followed, LineThrottle] = {}
        self.waited = False

    def __call__(self, seen: dict[Followed, Snapshot]) -> None:
        if not seen and not self.waited:
            print(NOTHING, flush=True)
        self.waited = not seen
        for run, now in seen.items():
            throttle = self.throttles.setdefault(run, LineThrottle(now.done, now.rounds or 0, time.monotonic()))
            new = self.states.get(run) != now.state
            self.states[run] = now.state
            if new or (now.done > throttle.told and throttle.due(now.done, time.monotonic())):
                state = run.trouble if now.state == DAMAGED else now.state
                parts = [state, "" if now.rounds is None else f"round {now.done}/{now.rounds}", run.measured.said]
                times = {"ETA": now.left_text, "since the last round": now.age_text}
                said = [*filter(None, parts), *(f"{k} {v}" for k, v in times.items() if v)]
                print(f"{in_one_line(run.name)}: {', '.join(said)}", flush=True)


@contextmanager
def _shown() -> Iterator[Callable[[dict[Followed, Snapshot]], None]]:
    """Give a table that is drawn again in a terminal, lines elsewhere."""
    console = plain_console()
    if not console.is_terminal:
        yield _Lines()
        return
    with Screen(NOTHING, console=console, auto_refresh=False) as screen:
        yield lambda seen: screen.update(_table(seen, console.height - FRAME) if seen else NOTHING, refresh=True)


def _table(seen: dict[Followed, Snapshot], room: int) -> Table:
    """Return one row per run; where there is not room for all, those under way come before the others."""
    chosen = sorted(seen, key=lambda run: seen[run].state in (FINISHED, WAITING))[:room]
    measured = dict.fromkeys(words(m) for run in chosen if (m := run.measured.metric) is not None)
    metric = next(iter(measured)) if len(measured) == 1 else "metric"
    made = table("run", ">round", f">{metric}", ">loss", ">sent", ">ETA", ">age", "state")
    made.columns[0].no_wrap = made.columns[-1].no_wrap = True
    for run, how in ((run, how) for run, how in seen.items() if run in chosen):
        round = "-" if how.rounds is None else f"{how.done}/{how.rounds}"
        last, of = run.measured.value, run.measured.metric
        value = "" if last is None or of is None else with_unit(of, last[0])
        sent = scaled(run.measured.bytes, "B") if how.done else ""
        state = Text(how.state, COLORS.get(how.state, "default"))
        made.add_row(
            in_one_line(run.name), round, value, run.measured.loss_text, sent, how.left_text, how.age_text, state
        )
    left_out = Counter(how.state for run, how in seen.items() if run not in chosen)
    no_room = "no room for: " + ", ".join(f"{count} {state}" for state, count in left_out.items()) + "\n"
    made.caption, made.caption_justify = (no_room if left_out else "") + NUMBERS.format(metric), "left"
    return made
