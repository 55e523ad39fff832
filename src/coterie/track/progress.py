"""Showing how far a run is: a bar in a terminal, a line now and then elsewhere, always on the standard error stream."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..core.schema import ACCURACY, VALIDATION, MetricInfo, Row, number, personal_column
from ..core.spec import scaled
from ..core.units import with_unit, words

APART, LONGEST = 10.0, 120.0  # seconds between two plain lines, at least and at most (or a tenth of the rounds)


class Pace:
    """How fast rounds go by, and when the last one will be over.

    Only rounds that were seen count, so that a run which is continued is not taken for a fast one; of these the later
    half, and not the first, in which an engine may prepare itself. A round that built programs does not count at all.
    """

    def __init__(self, done: int, now: float) -> None:
        self.began, self.done, self.since = now, done, now
        self.marks = [(0, 0.0)]  # rounds that count, and the seconds that these took

    def seen(self, done: int, now: float, built: bool = False) -> None:
        """Note that ``done`` rounds are done; ``built``: programs were built meanwhile."""
        if done > self.done:
            if not built:
                rounds, seconds = self.marks[-1]
                self.marks.append((rounds + done - self.done, seconds + now - self.since))
            self.done, self.since = done, now

    @property
    def seconds_per_round(self) -> float | None:
        """The time of one round; None before the first that counts."""
        finished = len(self.marks) - 1
        if not finished:
            return None
        first, began = self.marks[max(1, finished // 2) if finished > 1 else 0]
        last, ended = self.marks[-1]
        return (ended - began) / (last - first)

    def left(self, rounds: int, now: float) -> float | None:
        """Return the seconds until all ``rounds`` are done.

        >>> pace = Pace(10, now=0.0)
        >>> pace.seen(11, now=60.0); pace.seen(12, now=62.0); pace.seen(13, now=64.0)
        >>> pace.left(20, now=65.0)
        13.0
        """
        each = self.seconds_per_round
        return None if each is None else max(0.0, (rounds - self.done) * each - (now - self.since))


class LineThrottle:
    """Decides when a plain line is due: after the first and the last round, and in between at a decent pace."""

    def __init__(self, done: int, rounds: int, now: float) -> None:
        self.rounds, self.first = rounds, True
        self.told, self.at = done, now

    def due(self, done: int, now: float) -> bool:
        """Return whether to say that ``done`` rounds are done; if so, that counts as said."""
        waited, tenth = now - self.at, 10 * (done - self.told) >= self.rounds
        if not (self.first or done == self.rounds or waited >= LONGEST or (tenth and waited >= APART)):
            return False
        self.told, self.at, self.first = done, now, False
        return True


class LatestMeasures:
    """The latest numbers of a run, in words."""

    def __init__(self, metrics: Sequence[MetricInfo] = (ACCURACY,)) -> None:
        self.bytes = 0
        self.row: Row | None = None
        self.metric = metrics[0] if metrics else None  # the one that decides
        self.value: tuple[float, int] | None = None  # the last one that was measured, and after which round
        self.point = "after aggregation"

    def add(self, row: Row) -> None:
        """Take the row of one more round."""
        self.row = row
        self.bytes += row["bytes_sent"]
        found = None
        if self.metric is not None:
            tried = {personal_column(self.metric, name): name for name in (VALIDATION, "after_mix")}
            column = next((column for column in tried if number(row, column) is not None), "")
            found = number(row, column)
            # Who keeps validation samples decides by them, and is not to look at the test samples meanwhile.
            self.point = "on validation samples" if tried.get(column) == VALIDATION else self.point
        self.value = self.value if found is None else (found, row["round"])

    @property
    def value_text(self) -> str:
        """The mean over the clients, on validation samples if there are any, else after aggregation, and its round.

        >>> measured = LatestMeasures()
        >>> measured.add({"round": 1, "bytes_sent": 8, "personal_accuracy_after_mix": 0.5, "train_loss": 1.0})
        >>> measured.add({"round": 2, "bytes_sent": 8, "personal_accuracy_after_mix": None, "train_loss": 0.5})
        >>> measured.value_text, measured.said
        ('50.0 % (round 1)', 'personal accuracy after aggregation 50.0 % (round 1), train loss 0.500, 16 B sent')
        """
        if self.value is None or self.row is None or self.metric is None:
            return ""
        value, measured_after = self.value
        return with_unit(self.metric, value) + (
            "" if measured_after == self.row["round"] else f" (round {measured_after})"
        )

    @property
    def loss_text(self) -> str:
        """The training loss of the last round."""
        loss = None if self.row is None else self.row["train_loss"]
        return "" if loss is None else f"{loss:.3f}"

    @property
    def said(self) -> str:
        """All of them in one text."""
        if self.row is None:
            return ""
        name = "" if self.metric is None else f"personal {words(self.metric)} {self.point}"
        named = {name: self.value_text, "train loss": self.loss_text}
        return ", ".join([*(f"{k} {v}" for k, v in named.items() if v), f"{scaled(self.bytes, 'B')} sent"])


def clock(seconds: float | None) -> str:
    """Return a time as a clock shows it.

    >>> clock(75.2), clock(None)
    ('0:01:15', '-:--:--')
    """
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))


class _Time(ProgressColumn):
    """The time that is left, counting down while a round lasts."""

    def __init__(self, progress: "Progress") -> None:
        super().__init__()
        self.progress = progress

    def render(self, task: Task) -> Text:
        return Text(self.progress.time)


class _TwoLines(Bars):
    """The bar, and below it what was measured: both fit into 80 characters."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["said"]:
                yield Text("  " + task.fields["said"], style="dim", overflow="ellipsis", no_wrap=True)


class Progress:
    """Progress of one run; ``where``: its engine and device."""

    def __init__(
        self, name: str, rounds: int, where: str, shown: bool, metrics: Sequence[MetricInfo] = (ACCURACY,)
    ) -> None:
        self.name, self.rounds, self.where, self.shown = name, rounds, where, shown
        self.measured = LatestMeasures(metrics)
        self.pace, self.throttle = Pace(0, time.monotonic()), LineThrottle(0, rounds, time.monotonic())
        self.built: tuple[int, int | None] | None = None  # the program of this round that was begun last, of how many
        console = Console(stderr=True)
        self.bar: Bars | None = None
        if shown and console.is_terminal:
            columns = (TextColumn(name, markup=False), BarColumn(bar_width=None), MofNCompleteColumn(), _Time(self))
            self.bar = _TwoLines(*columns, TextColumn(where, markup=False), console=console, expand=True)
            self.task = self.bar.add_task(name, total=rounds, said="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    @property
    def time(self) -> str:
        """The time until the last round is over, at the pace of this process; in the end what it took.

        While programs are built, nobody knows.
        """
        if self.built is not None:
            number, total = self.built
            return f"building program {number}" if total is None else f"building programs {number} of {total}"
        if self.pace.done == self.rounds:
            return f"took {clock(self.pace.since - self.pace.began)}"
        return f"ETA {clock(self.pace.left(self.rounds, time.monotonic()))}"

    def say(self, text: str) -> None:
        """Print a line that stays, unless all is to be quiet."""
        if self.shown:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a line that stays, however quiet."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr)

    def begin(self, history: Iterable[Row]) -> None:
        """Take the rounds of an earlier process; those to come are timed from now on."""
        for row in history:
            self.measured.add(row)
        done, now = (0 if self.measured.row is None else self.measured.row["round"]), time.monotonic()
        self.pace, self.throttle = Pace(done, now), LineThrottle(done, self.rounds, now)
        self._draw(done)

    def building(self, number: int, total: int | None) -> None:
        """Show that an engine begins to build a program, counted from 1; ``total``: how many, where it is known."""
        if self.built is None and self.bar is None:
            many = "programs" if total is None else "1 program" if total == 1 else f"{total} programs"
            self.say(f"{self.name}: building {many}, {self.where}")
        self.built = number, total
        if self.bar is not None:
            self.bar.refresh()  # now: a compiler may leave no time for the bar's own thread

    def update(self, row: Row) -> None:
        """Show that one more round is done."""
        self.measured.add(row)
        done, now = row["round"], time.monotonic()
        built, self.built = self.built, None
        if built is not None and self.bar is None:
            took = clock(now - self.pace.since)
            self.say(f"{self.name}: the programs are built, {built[0]} in all; round {done} took {took} with that")
        self.pace.seen(done, now, built is not None)
        self._draw(done)
        if self.bar is None and self.shown and self.throttle.due(done, now):
            self.warn(f"{self.name}: round {done}/{self.rounds}, {self.measured.said}, {self.time}, {self.where}")

    def _draw(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, said=self.measured.said)


class PendingMessages:
    """Keeps messages until there is somebody to say them to."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.to: Callable[[str], object] = self.kept.append

    def __call__(self, text: str) -> None:
        self.to(text)

    def go_to(self, say: Callable[[str], object]) -> None:
        """Say what was kept, and from now on everything at once."""
        self.to = say
        for text in self.kept:
            say(text)
