"""A time limit for some runs: no round is begun that would not end within it.

What a round takes is learned from those that were seen, apart from evaluated ones and from the first of its kind, in
which programs may be built. Whoever stops a run by force in time loses a round; who is too late loses the machine.
"""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.schema import Row, number
from ..core.spec import parse_seconds

if TYPE_CHECKING:
    from ..core.tensors import Tensors
    from ..store import Writer
    from .schedule import Schedule

SPARED = 0.02  # of the time, for what nobody measures, as the page at the end ...
STARTING = 4.0  # ... and seconds: a process begins and ends, which takes three where others have the cores as well
MARGIN = 1.2  # times the longest of the latest rounds
LATEST = 8  # rounds that are looked at
WRITING = "writing the clients' models"


class OutOfTime(Exception):  # noqa: N818 (no error: the run goes on later)
    """The time limit of ``fit`` is over. What was trained is saved, and ``resume`` goes on with it."""


@checked_class("class")
class TimeLimit:
    """The time for the runs that get it, from now on; ``time``: seconds, or a string as 90s, 25m or 1h30m."""

    def __init__(self, time: float | str, clock: Callable[[], float] = monotonic) -> None:
        self.text = time if isinstance(time, str) else f"{time:g}s"
        self.seconds, self.clock = parse_seconds(self.text), clock
        self.began = clock()
        self.steps = 0  # rounds that were run, and runs that were finished, within it
        self.longest_start = 0.0  # what a run has taken until its first round was saved

    def __repr__(self) -> str:
        return f"TimeLimit({self.text!r})"

    @property
    def left(self) -> float:
        """The seconds that can still be used."""
        return (1 - SPARED) * self.seconds - STARTING - (self.clock() - self.began)

    def check(self, what: str, takes: float) -> None:
        """Raise OutOfTime where something would not end within the time; ``takes``: its seconds, as far as known."""
        left = self.left
        if takes <= left and left > 0:
            return
        expected = f"takes about {takes:.3g} s, and {max(0.0, left):.3g} s are left" if takes else "finds no time left"
        if not self.steps:
            raise UserError(
                f"a time limit of {self.text} is too short to begin with: {what} {expected}; give more time"
            )
        raise OutOfTime(f"stopped in time: {what} {expected}; resume goes on")


class LimitedRun:
    """One run within a time limit."""

    def __init__(self, limit: TimeLimit) -> None:
        self.limit, self.began = limit, limit.clock()
        limit.check("the first round of a run", limit.longest_start)

    def rounds(self, todo: range, schedule: "Schedule", history: Sequence[Row], writer: "Writer") -> Iterator[int]:
        """Yield the rounds that are to be run, one after another, as long as there is time for the next one.

        ``history``: of earlier processes; ``writer``: who saves the rounds.
        """
        limit, times = self.limit, RoundTimes(history, schedule.every)
        try:
            for t in todo:
                evaluate = schedule.evaluated(t) == t
                # A checkpoint may be under way beside the round, and the last one is written behind it.
                takes = max(times.expected(evaluate), writer.longest) + writer.longest
                limit.check(f"round {t + 1} of {todo.stop}", takes)
                began = limit.clock()
                yield t
                times.seen(evaluate, limit.clock() - began)
                limit.steps += 1
                if t == todo.start:
                    writer.wait()  # to know what a checkpoint takes
                    limit.longest_start = max(limit.longest_start, limit.clock() - self.began)
        finally:  # a run may stop before its last round
            self.save, self.evaluation = writer.longest, times.expected(True)

    def finishing(self, tuned: bool) -> None:
        """Raise OutOfTime where there is no time for a first client's model, which is no larger than a checkpoint.

        ``tuned``: the models are fine-tuned before, as in an evaluation.
        """
        self.limit.check(WRITING, self.save + (self.evaluation if tuned else 0.0))

    def written(self, models: "Sequence[Tensors]") -> "Iterator[Tensors]":
        """Yield the clients' models that are to be written, as long as there is time for all that are left.

        What one takes is learned from those before it: a small checkpoint says little about many files.
        """
        began = self.limit.clock()
        for done, model in enumerate(models):
            each = (self.limit.clock() - began) / done if done else 0.0
            self.limit.check(WRITING, MARGIN * each * (len(models) - done))
            yield model
        self.limit.steps += 1


class RoundTimes:
    """What the next round will take, from what earlier ones took.

    >>> times = RoundTimes([], every=10)
    >>> times.expected(evaluate=False)  # nobody knows
    0.0
    >>> times.seen(False, 60.0); times.seen(False, 2.0); times.seen(False, 3.0)
    >>> times.expected(evaluate=False) == MARGIN * 3.0  # the first one built programs
    True
    >>> times.expected(evaluate=True) == MARGIN * (3.0 + 60.0)  # which evaluating does as well
    True
    """

    def __init__(self, history: Sequence[Row], every: int) -> None:
        self.every = every
        # As earlier processes have seen it; the first round of all was in building.
        known = history[1:][-max(LATEST, every) :]
        self.trained = max((row["seconds"] for row in known[-LATEST:]), default=0.0)
        self.evaluation = max((number(row, "evaluation_seconds") or 0.0 for row in known), default=0.0)
        self.first: dict[bool, float] = {}  # the first round of each kind, evaluated or not
        self.later: dict[bool, list[float]] = {False: [], True: []}

    def seen(self, evaluate: bool, seconds: float) -> None:
        """Note what a round took."""
        if evaluate in self.first:
            self.later[evaluate] = [*self.later[evaluate], seconds][-LATEST:]
        else:
            self.first[evaluate] = seconds

    def expected(self, evaluate: bool) -> float:
        """Return the seconds of the next round, 0 where nothing is known of any."""
        if evaluate in self.first:
            return MARGIN * max(self.later[evaluate], default=self.first[evaluate])
        if not evaluate:  # at most what an evaluated one takes
            return self.expected(True) if self.first else MARGIN * self.trained
        plain = max(self.later[False], default=self.first.get(False, self.trained))
        # An evaluation that this process has not seen may build programs, too. One that nobody has seen is seldom more
        # than a tenth of the rounds between two of them: the interval is chosen so where nobody says another one,
        # unless the run is short.
        evaluation = self.evaluation or max(self.trained, plain * self.every / 10)
        return MARGIN * (plain + max(self.first.get(False, 0.0), evaluation))
