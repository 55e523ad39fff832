"""What a running peer shows of itself: a file in its folder, written again and again beside the training."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, TypedDict

from ...core.errors import FolderError
from ...core.files import write_json
from ...core.schema import FINETUNED, Row, number
from ...core.units import metrics_of
from ...measure import PROTOCOLS
from ...store.folder import CHECKPOINT
from ..wire.counters import UNKNOWN

if TYPE_CHECKING:
    from ..peer.peer import Peer

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


def status_of(peer: "Peer") -> PeerStatus:
    """Return what a peer that has begun shows; any thread may ask."""
    p, rounds, rows = peer.participant, peer.participant.experiment.settings.rounds, list(peer.history)
    counts = peer.network.transport.snapshot()
    last = rows[-1] if rows else None
    return {
        "time": time.time(),
        "process": os.getpid(),
        "federation": p.federation,
        "name": p.name,
        "method": p.experiment.algorithm.name,
        "round": min(peer.round + 1, rounds),
        "rounds": rounds,
        "done": len(rows),
        "state": peer.state,
        "deadline": peer.deadline.seconds,
        "missing": sorted(peer.network.missed),
        "members": _members(peer, counts),
        "strangers": counts["refused"].get(UNKNOWN, {}),
        **{key: counts[key] for key in ("bytes_in", "bytes_out", "messages_in", "messages_out")},  # type: ignore[typeddict-item]
        "mass": _mass(peer),
        **_measured(peer, rows),
        "train_loss": None if last is None else last["train_loss"],
        "seconds": None if last is None else last["seconds"],
        "saved": _saved(peer.folder.path),
        "kept": peer.chosen.rounds[0] if peer.chosen is not None and peer.chosen.rounds else None,
    }


def _members(peer: "Peer", counts: dict[str, Any]) -> dict[str, MemberStatus]:
    names, alive = peer.participant.members, peer.network.transport.alive()
    rounds = peer.participant.experiment.settings.rounds
    near = peer.neighbors(min(peer.round, rounds - 1))
    found: dict[str, MemberStatus] = {}
    for name in names:
        beat = alive.get(name)
        if name != peer.participant.name:
            found[name] = {
                "neighbor": name in near,
                "there": beat is not None,
                "last_answer": counts["last_answer"].get(name),
                "round": None if beat is None else min(beat.round + 1, rounds),
                "state": None if beat is None else beat.state,
                "missed": peer.missed[name],
                "refused": counts["refused"].get(name, {}),
                "refused_by": counts["refused_by"].get(name, {}),
            }
    return found


def _mass(peer: "Peer") -> MassStatus | None:
    """Return where the mass is: what a round that is not saved has handed over is with this peer no longer."""
    if peer.mass is None:
        return None
    own = peer.mass - peer.outbox.unsaved_mass
    return {"own": own, "outbox": peer.outbox.unsettled_mass, "inbox": peer.mailbox.transfers.waiting_mass}


def _measured(peer: "Peer", rows: Sequence[Row]) -> Any:
    """Return the metrics of the latest evaluated round."""
    columns = [m["column"] for m in metrics_of(peer.config)]
    for row in reversed(rows):
        told = {c: {p: number(row, f"personal_{c}_{p}") for p in (*PROTOCOLS, FINETUNED)} for c in columns}
        known = {c: {p: v for p, v in each.items() if v is not None} for c, each in told.items()}
        if any(known.values()):
            return {"measured": row["round"], "metrics": known}
    return {"measured": None, "metrics": {}}


def _saved(folder: Path) -> float | None:
    """Return when a state was last saved; files come and go meanwhile."""
    times = []
    for path in (folder / CHECKPOINT).glob("round-*.json"):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=None)


class Shown:
    """The status of a peer while it runs: in its folder, and for whoever asks."""

    def __init__(self, peer: "Peer") -> None:
        self.peer, self._lock = peer, Lock()
        self._latest: PeerStatus | None = None
        self._wanted, self._closing, self._trouble = Event(), Event(), ""
        self._thread = Thread(target=self._keep, name="coterie-status", daemon=True)

    @contextmanager
    def running(self) -> Iterator["Shown"]:
        """Write the file now, again and again, and once more in the end."""
        self._thread.start()
        try:
            yield self
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
                self._latest = known = status_of(self.peer)
            return known

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._wanted.clear()
            self._write()
            self._closing.wait(SOONEST)
            self._wanted.wait(EVERY - SOONEST)

    def _write(self) -> None:
        """Write the file; whatever is wrong with that is told once, and the peer goes on."""
        try:
            status = status_of(self.peer)
            with self._lock:
                self._latest = status
            write_json(self.peer.folder.path / STATUS, status)
            trouble = ""
        except FolderError as error:
            trouble = str(error)
        except Exception as error:
            trouble = f"the status cannot be written ({type(error).__name__})"
        if trouble and trouble != self._trouble:
            self.peer.on_event("warning", text=trouble)
        self._trouble = trouble
