"""Peers in the threads of one process, whose messages pass through the same mailboxes but over no network."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np

from coterie.algorithms.base import Algorithm
from coterie.data import Federation
from coterie.models.model import Model
from coterie.net.peer import mailbox, network, peer
from coterie.net.peer.peer import run_peer
from coterie.net.setup.prepare import Participant, experiments
from coterie.net.wire.message import Outgoing, Refused
from coterie.net.wire.transport import Beat
from coterie.training.settings import RunSettings


def write_log(folder: Path, missed: Mapping[int, Sequence[str]], begun: Sequence[int] = (1,)) -> None:
    """The log of a member, as far as a report reads it; ``missed``: by round, whom it went on without."""
    events: list[dict[str, Any]] = [{"event": "begins", "round": round} for round in begun]
    events += [{"event": "round", "round": t, "missed": names, "mass": 1 / t} for t, names in missed.items()]
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


class LocalTransport:
    """Delivers at once, in the sender's thread."""

    def __init__(
        self, name: str, members: dict[str, "LocalTransport"], receiver: Any, beat: Callable[[], Beat]
    ) -> None:
        self.name, self.members, self.receiver, self.beat = name, members, receiver, beat
        self.waiting: dict[str, list[tuple[Outgoing, Any]]] = {}
        self.sent = self.messages = 0
        self.turn = Lock()  # the thread that writes the status asks who is there, too
        self.gate = Lock()  # a process that is gone takes nothing: not even the rest of what it was taking

    def start(self) -> None:
        self.members[self.name] = self

    def close(self) -> None:
        with self.gate:
            self.members.pop(self.name)

    def post(self, to: str, message: Outgoing, on_done: Any) -> None:
        self.waiting.setdefault(to, []).append((message, on_done))
        self._flush(to)

    def _flush(self, to: str) -> None:
        """Send what waits, unless another thread is sending it."""
        if self.turn.acquire(blocking=False):
            try:
                self._send(to)
            finally:
                self.turn.release()

    def _send(self, to: str) -> None:
        queue = self.waiting.get(to, [])
        while queue and (there := self.members.get(to)):
            message, on_done = queue[0]
            try:
                with there.gate:
                    if self.members.get(to) is not there:
                        continue
                    path = there.receiver.admit(message.header, message.size)
                    path.write_bytes(b"".join(message.chunks()))
                    there.receiver.take(message.header, path)
                outcome = "accepted"
                self.sent, self.messages = self.sent + message.size, self.messages + 1
            except Refused as refused:
                if refused.reason == "early":
                    return
                outcome = {"duplicate": "accepted", "late": "late"}.get(refused.reason, f"refused: {refused}")
                assert not outcome.startswith("refused"), outcome
            queue.pop(0)
            on_done(to, outcome)

    def drop(self, before_round: int) -> None:
        pass

    def alive(self) -> dict[str, Beat]:
        for to in list(self.waiting):  # what was early is tried again
            self._flush(to)
        return {name: t.beat() for name, t in list(self.members.items()) if name != self.name}

    def snapshot(self) -> dict[str, Any]:
        told: dict[str, Any] = {"messages_in": {}, "refused": {}, "refused_by": {}, "last_answer": {}}
        return {"bytes_out": self.sent, "bytes_in": 0, "messages_out": {"copy": self.messages}, **told}


def participants(
    model: Callable[[], Model],
    fed: Federation,
    algorithm: Algorithm,
    rounds: int,
    folder: Path,
    seed: int = 0,
    validation: float = 0.0,
    selection: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> list[Participant]:
    """One participant per client of a federation."""
    names = tuple(f"site-{i}" for i in range(fed.clients))
    found = []
    for i in range(fed.clients):
        own, given = fed.of_clients(np.array([i])), model()
        settings = RunSettings(rounds=rounds, seed=seed, engine="serial", **{"validation": validation, **selection})
        whole, alone, reason = experiments(given, own, names, i, algorithm, settings)
        found.append(
            Participant("test", names, i, whole, alone, given, reason, {}, "digest", folder / names[i], **more)
        )
    return found


@contextmanager
def short_turns() -> Iterator[None]:
    """Whoever waits looks around every 10 ms: here others are ready long before a usual turn is over."""
    with ExitStack() as patched:
        for module in (mailbox, network, peer):
            patched.enter_context(patch.object(module, "TURN", 0.01))
        yield


def run_together(
    peers: Sequence[Participant],
    on_event: Callable[..., None] = lambda *_, **__: None,
    transport: Callable[..., Any] | None = None,
) -> None:
    """Run all participants at once, each in a thread; ``transport``: (name, mailbox, beat, hello) -> another one."""
    members: dict[str, LocalTransport] = {}
    failed: list[BaseException] = []

    def local(name: str, box: Any, beat: Callable[[], Beat], hello: Any) -> LocalTransport:
        return LocalTransport(name, members, box, beat)

    def one(p: Participant) -> None:
        try:
            run_peer(p, partial(transport or local, p.name), on_event)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=one, args=(p,), daemon=True) for p in peers]
    with short_turns():
        for thread in threads:
            thread.start()
        until = monotonic() + 120
        while any(thread.is_alive() for thread in threads) and monotonic() < until and not failed:
            sleep(0.01)
    for error in failed:
        raise error
    assert not any(thread.is_alive() for thread in threads), "a peer hangs"
