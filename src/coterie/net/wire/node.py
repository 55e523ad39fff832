"""What the server and the client of one peer share: counts, refusals, and when each member was last heard.

One thread writes them, and any thread reads them.
"""

import asyncio
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from .http import Beat, Receiver, Timing
from .message import Reason

BURST = 10  # events of one kind and member that are reported at once; more of them are reported once a second
UNKNOWN = "unknown"  # whoever is no member, so that strangers cannot make the counts grow

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Counters:
    """Bytes and messages by kind, and refusals by sender and reason; events are reported through ``on_event``."""

    def __init__(self, members: Iterable[str], on_event: Callable[..., None]) -> None:
        self._members, self._on_event = frozenset(members), on_event
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()
        self._messages: dict[str, Counter[str]] = {"in": Counter(), "out": Counter()}
        self._refused: dict[str, dict[str, Counter[str]]] = {
            "here": defaultdict(Counter),
            "there": defaultdict(Counter),
        }
        self._allowed: dict[tuple[str, ...], tuple[float, float]] = {}
        self._early: dict[str, int | None] = {}  # the round of each member's message that was last reported as early

    def moved(self, way: str, size: int) -> None:
        """Count bytes of messages, "in" or "out"."""
        with self._lock:
            self._bytes[way] += size

    def acknowledged(self, way: str, kind: str) -> None:
        """Count a message that was taken, "in" or "out"."""
        with self._lock:
            self._messages[way][kind] += 1

    def refused(self, sender: str, reason: Reason, why: str, round: int | None = None) -> None:
        """Count and report what was refused here; reports count rounds from 1.

        What is early is sent again until its round has begun, and reported once.
        """
        told = reason == "early" and self._early.get(sender) == round
        if reason == "early":
            self._early[sender] = round
        if self._count("here", sender, reason) and not told:
            counted = None if round is None else round + 1
            self.report("refused", sender=sender, reason=reason, why=why, round=counted)

    def refused_by(self, member: str, reason: Reason, why: str, round: int) -> None:
        """Count what a member has refused, and report it unless it was early, which is no problem."""
        if self._count("there", member, reason) and reason != "early":
            self.report("refused_by", member=member, reason=reason, why=why, round=round + 1)

    def _count(self, where: str, who: str, reason: str) -> bool:
        """Count a refusal, and tell whether to report it."""
        who = who if who in self._members else UNKNOWN
        with self._lock:
            self._refused[where][who][reason] += 1
        return self._allow(where, who, reason)

    def _allow(self, *kind: str) -> bool:
        """Tell whether to report one more of a kind: a member that does nothing else must not fill the disk."""
        with self._lock:
            now = time.monotonic()
            left, since = self._allowed.get(kind, (float(BURST), now))
            left = min(BURST, left + now - since)
            self._allowed[kind] = (left - 1 if left >= 1 else left, now)
            return left >= 1

    def report_of(self, event: str, who: str, **fields: Any) -> None:
        """Report an event that a member can cause as often as it likes, so not all of them."""
        if self._allow(event, who if who in self._members else UNKNOWN):
            self.report(event, **fields)

    def report(self, event: str, **fields: Any) -> None:
        """Report an event; one that cannot be reported is logged, because the transport must go on."""
        try:
            self._on_event(event, **fields)
        except Exception:
            logger.exception("the event %s cannot be reported", event)

    def snapshot(self) -> dict[str, Any]:
        """Return all counts as they are now."""
        with self._lock:
            return {
                "bytes_in": self._bytes["in"],
                "bytes_out": self._bytes["out"],
                "messages_in": dict(self._messages["in"]),
                "messages_out": dict(self._messages["out"]),
                "refused": {who: dict(reasons) for who, reasons in self._refused["here"].items()},
                "refused_by": {who: dict(reasons) for who, reasons in self._refused["there"].items()},
            }


class Presence:
    """The latest heartbeat of every member, whoever has begun it."""

    def __init__(self, members: Iterable[str], within: float, report: Callable[..., None]) -> None:
        self._within, self._report = within, report
        self._lock = threading.Lock()
        self._since = dict.fromkeys(members, time.monotonic())  # when each was last heard, or when this one began
        self._beats: dict[str, Beat] = {}
        self._answered: dict[str, float] = {}
        self._there: dict[str, bool] = {}  # as it was last reported

    def heard(self, name: str, beat: Beat) -> bool:
        """Note a heartbeat, and tell whether it says anything new."""
        with self._lock:
            before = self._beats.get(name)
            if before is not None and self._outdated(name, before, beat):
                return False
            returned = time.monotonic() - self._since[name] > self._within or not self._there.get(name)
            self._beats[name], self._since[name], self._answered[name] = beat, time.monotonic(), time.time()
        left = beat.state == "leaving"
        if left == self._there.get(name, False):
            self._there[name] = not left
            self._report("left" if left else "found", name, member=name, round=beat.round + 1)
        return returned or before is None or (before.round, before.state) != (beat.round, beat.state)

    def _outdated(self, name: str, before: Beat, beat: Beat) -> bool:
        """Return whether a heartbeat was on its way while its sender said goodbye: it must not bring the sender back.

        Clocks may be set back, so what comes later than this is believed whatever its time is.
        """
        late = time.monotonic() - self._since[name] <= self._within
        return before.state == "leaving" != beat.state and beat.clock < before.clock and late

    def unheard(self, name: str, why: str) -> None:
        """Note that a member has not answered; report once that it is lost."""
        with self._lock:
            silent = time.monotonic() - self._since[name]
        if silent > self._within and self._there.get(name, True):
            self._there[name] = False
            self._report("lost", name, member=name, why=why)

    def alive(self) -> dict[str, Beat]:
        """Return the latest heartbeats of those that are there."""
        now = time.monotonic()
        with self._lock:
            return {name: beat for name, beat in self._beats.items() if now - self._since[name] <= self._within}

    def answered(self) -> dict[str, float]:
        """Return when each member was last heard, in seconds since 1970."""
        with self._lock:
            return dict(self._answered)


class Node(NamedTuple):
    """One peer, as its transport sees it."""

    me: str
    members: Mapping[str, tuple[str, int]]  # all others: where each listens
    receiver: Receiver
    beat: Callable[[], Beat]
    hello: Callable[[], dict[str, Any]]
    certificate_ok: Callable[[dict[str, Any]], str | None]
    counters: Counters
    presence: Presence
    pool: Executor
    timing: Timing

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return what a call returns that may wait for a disk."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *arguments)
