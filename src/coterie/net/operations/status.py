"""What a running peer shows of itself: a file in its folder, written again and again beside the training."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypedDict

from ...core.errors import FolderError
from ...core.files import write_json
from ...core.schema import FINETUNED, Row, number
from ...measure import PROTOCOLS
from ...store.folder import CHECKPOINT
from ..wire.http import Beat

STATUS = "status.json"
EVERY = 5.0  # seconds between two looks
SOONEST = 1.0  # seconds, however short rounds are, and however often somebody asks

Counts = dict[str, int]
Serve = Callable[[Callable[[], "PeerStatus"]], AbstractContextManager[object]]
"""Shows others meanwhile what a function says of the peer."""


class MemberStatus(TypedDict):
    """Another member, as this peer sees it."""

    neighbor: bool  # whether messages pass between the two in this round
    there: bool  # whether it has answered lately
    last_answer: float | None  # seconds since 1970; None: it never has
    round: int | None  # that it is in, counted from 1
    state: str | None
    missed: int  # rounds that have waited for it in vain
    refused: Counts  # of its messages, by reason
    refused_by: Counts  # of the messages to it, by its reasons


class MassStatus(TypedDict):
    """Push-sum's mass: over all members together, each part of it is in one of these places."""

    own: float
    outbox: float  # on its way to others
    inbox: float  # has arrived, and is in no saved state yet


class PeerStatus(TypedDict):
    """status.json: times are seconds since 1970, and all counts are since the process has begun."""

    time: float
    process: int
    federation: str
    name: str
    method: str
    round: int  # that it is in, counted from 1
    rounds: int
    done: int  # rounds
    state: str
    deadline: float  # seconds that an exchange waits
    missing: list[str]  # whom this round has waited for in vain
    members: dict[str, MemberStatus]
    strangers: Counts  # refusals of whoever is no member, by reason
    bytes_in: int
    bytes_out: int
    messages_in: Counts  # by kind
    messages_out: Counts
    mass: MassStatus | None  # None: the method has none
    measured: int | None  # the round of the metrics
    metrics: dict[str, dict[str, float]]  # of the peer's own model, by column and protocol
    train_loss: float | None  # of the latest round
    seconds: float | None
    saved: float | None
    kept: int | None  # the round whose model the peer would end with; None: the latest


def to_nobody(latest: Callable[[], PeerStatus]) -> AbstractContextManager[object]:
    """Show nobody anything."""
    return nullcontext()


def members_seen(
    names: Iterable[str],
    rounds: int,
    near: Collection[str],
    alive: Mapping[str, Beat],
    counts: Mapping[str, Any],
    missed: Mapping[str, int],
) -> dict[str, MemberStatus]:
    """Return what a peer knows of other members; ``counts``: its transport's."""
    beats = {name: alive.get(name) for name in names}
    return {
        name: {
            "neighbor": name in near,
            "there": beat is not None,
            "last_answer": counts["last_answer"].get(name),
            "round": None if beat is None else min(beat.round + 1, rounds),
            "state": None if beat is None else beat.state,
            "missed": missed.get(name, 0),
            "refused": counts["refused"].get(name, {}),
            "refused_by": counts["refused_by"].get(name, {}),
        }
        for name, beat in beats.items()
    }


def measured(rows: Sequence[Row], columns: Sequence[str]) -> tuple[int | None, dict[str, dict[str, float]]]:
    """Return the latest evaluated round, counted from 1, and its metrics."""
    for row in reversed(rows):
        told = {c: {p: number(row, f"personal_{c}_{p}") for p in (*PROTOCOLS, FINETUNED)} for c in columns}
        known = {c: {p: v for p, v in each.items() if v is not None} for c, each in told.items()}
        if any(known.values()):
            return row["round"], known
    return None, {}


def last_saved(folder: Path) -> float | None:
    """Return when a state was last saved; files come and go meanwhile."""
    times = []
    for path in (folder / CHECKPOINT).glob("round-*.json"):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=None)


class StatusWriter:
    """Keeps the status of a peer in its folder while it runs, and for whoever asks."""

    def __init__(self, folder: Path, look: Callable[[], PeerStatus], on_event: Callable[..., None]) -> None:
        self._path, self._look, self._on_event, self._lock = folder / STATUS, look, on_event, Lock()
        self._latest: PeerStatus | None = None
        self._wanted, self._closing, self._trouble = Event(), Event(), ""
        self._thread = Thread(target=self._keep, name="coterie-status", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write the file now, again and again, and once more in the end."""
        self._thread.start()
        try:
            yield
        finally:
            self._closing.set()
            self._wanted.set()
            self._thread.join()
            self._write()

    def news(self) -> None:
        """Let the file be written soon; this does not wait for it."""
        self._latest = None
        self._wanted.set()

    def latest(self) -> PeerStatus:
        """Return the status, no older than a moment; however often somebody asks, the peer is looked at seldom."""
        with self._lock:
            known = self._latest
            if known is None or abs(time.time() - known["time"]) >= SOONEST:
                self._latest = known = self._look()
            return known

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._wanted.clear()
            self._write()
            self._closing.wait(SOONEST)
            self._wanted.wait(EVERY - SOONEST)

    def _write(self) -> None:
        """Write the file; whatever is wrong with that is told once, and the peer goes on."""
        trouble = ""
        try:
            status = self._look()
            with self._lock:
                self._latest = status
            write_json(self._path, status)
        except FolderError as error:
            trouble = str(error)
        except Exception as error:
            trouble = f"the status cannot be written ({type(error).__name__})"
        if trouble and trouble != self._trouble:
            self._on_event("warning", text=trouble)
        self._trouble = trouble
