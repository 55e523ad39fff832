"""One participant, round by round: train, exchange with whoever answers, measure, save; or catch up, or leave."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ...algorithms.base import Round
from ...core.schema import Config, Row
from ...measure.selection import stops_early
from ...models.model import products
from ...store import RunFolder
from ...store.checkpoint import Checkpoint, oldest
from ...store.chosen import drop_later
from ...store.folder import CHECKPOINT, INBOX, OUTBOX
from ...topology.sparse import links
from ...training.chosen import chosen_so_far
from ...training.folded import folded, with_constants
from ...training.so_far import run_after
from ...training.state import RunState
from ..operations.check import hello
from ..operations.status import Serve, Shown, to_nobody
from ..setup.prepare import Participant, configuration
from ..wire.transport import Beat, Transport
from .deadline import Deadline
from .diverged import check_finite
from .engine import Networked
from .mailbox import TURN, Mailbox
from .network import GONE, Network
from .outbox import Outbox
from .rehearsal import announcements, without_samples
from .rows import row_of, work_of

APPLIED = "peer/applied"  # [n, 2] round and step of the last transfer of every member that the state has

MakeTransport = Callable[[Mailbox, Callable[[], Beat], Callable[[], dict[str, Any]]], Transport]
"""(who takes messages, what the peer says of itself, what it was set up with) -> a transport that has not begun."""


@dataclass(eq=False)
class Peer:
    """A participant while it runs."""

    participant: Participant
    folder: RunFolder
    config: Config
    on_event: Callable[..., None]
    serve: Serve = to_nobody
    round: int = 0  # the one that it is in, counted from 0
    state: str = "waiting"  # what it does: waiting, training, resting, exchanging, finishing, leaving, done
    rests: bool = False  # whether it takes no step, because evaluations were no better
    history: list[Row] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)  # rounds that have waited for each member in vain
    mass: float | None = None  # push-sum's, of the saved state
    counted: Counter[str] = field(default_factory=Counter)  # what rows tell of the transport's counts

    def run(self, transport: MakeTransport) -> None:
        """Take part in all rounds that are left; whatever ends it, the neighbors are told."""
        p = self.participant
        start = p.experiment.start()
        announced = announcements(p.experiment, p.client, start)
        found = self.folder.resumed(self._restored, self._warn, self._say)
        (now, applied), self.history = ((start, {}), []) if found is None else found
        self.round = len(self.history)
        drop_later(self.folder.path, self.round)
        self.chosen = chosen_so_far(p.experiment, self.folder, self.config, self.round)
        inbox, members = self.folder.path / INBOX, len(p.members)
        self.mailbox = Mailbox(inbox, p.federation, p.digest, announced, self.senders, applied, members)
        self.outbox = Outbox(self.folder.path / OUTBOX)
        self.outbox.saved(self.round, self._oldest())
        carrier = transport(self.mailbox, self.beat, lambda: hello(p.agreed))
        self.deadline = Deadline(p.deadline)
        self.network = Network(
            p.members, p.client, p.digest, carrier, self.mailbox, self.outbox, self.deadline, self.on_event
        )
        self.experiment = replace(p.experiment, engine=Networked(p.experiment.engine, p.client, self.network))
        self.mailbox.enter(self.round)
        self.mass, self.shown = self._own_mass(now), Shown(self)
        self.mailbox.transfers.moved((self.mass or 0.0) - self.outbox.unsaved_mass)
        carrier.start()
        with self.shown.running(), self.serve(self.shown.latest):
            try:
                self._rounds(now, resumed=found is not None)
            finally:
                self.state = "done" if self.round >= p.experiment.settings.rounds else GONE
                carrier.close()
                self.on_event("leaves", done=self.round, state=self.state)

    def beat(self) -> Beat:
        """Return what this peer says of itself."""
        return Beat(self.round, self.state, time.time(), self.participant.digest)

    @lru_cache(maxsize=8)  # noqa: B019  # a peer lives as long as its process
    def _links(self, round: int) -> list[tuple[list[int], list[int]]]:
        """Return (receivers, senders) of every exchange of a round."""
        Ws = self.participant.experiment.schedule.matrices(round, torch.device("cpu"))
        return [tuple(ends.tolist() for ends in links(W)) for W in Ws]

    def senders(self, round: int, step: int) -> Collection[str]:
        """Return whom this peer hears in an exchange of a round."""
        me, members = self.participant.client, self.participant.members
        receivers, senders = self._links(round)[step]
        return {members[j] for i, j in zip(receivers, senders, strict=True) if i == me}

    def receivers(self, round: int) -> Collection[str]:
        """Return who hears this peer in a round."""
        me, members = self.participant.client, self.participant.members
        return {members[i] for Ws in self._links(round) for i, j in zip(*Ws, strict=True) if j == me}

    def neighbors(self, round: int) -> Collection[str]:
        """Return with whom this peer exchanges messages in a round."""
        heard = (self.senders(round, step) for step in range(len(self._links(round))))
        return set(self.receivers(round)).union(*heard) - {self.participant.name}

    def _rounds(self, now: RunState, resumed: bool) -> None:
        rounds = self.experiment.settings.rounds
        for entry in [e for _, e in sorted(self.outbox.entries.items()) if e.round < self.round]:
            self.network.resend(entry)
        self._wait_for_others(resumed)
        behind = resumed
        while self.round < rounds:
            if behind and self.outbox.open is None:  # what was committed before a crash comes first
                self._skip_to(min(self.network.middle_round(), rounds - 1))
            self.network.enter(self.round)
            self.network.let_others_come()
            now, behind = self._one_round(now)
        self.state = "finishing"
        self._finish(now)
        self.network.linger(max(self.deadline.seconds, 10.0))

    def _wait_for_others(self, resumed: bool) -> None:
        """Wait until everybody is there, as long as the configuration says; who resumes waits for one answer only.

        Once somebody has begun, the others are given no more time than in a round: nobody waits for this peer either.
        """
        p, began = self.participant, time.monotonic()
        others, seconds = set(p.members) - {p.name}, p.wait
        enough = min(1, len(others)) if resumed else len(others)
        self.on_event("waiting", members=sorted(others), seconds=seconds)
        while len(there := others & set(beats := self.network.beats())) < enough and time.monotonic() < began + seconds:
            if any(beats[k].state != self.state for k in there):
                seconds = min(seconds, time.monotonic() - began + self.deadline.seconds)
            time.sleep(TURN)
        self.on_event("begins", round=self.round + 1, there=sorted(there), missing=sorted(others - there))

    def _skip_to(self, round: int) -> None:
        """Leave out the rounds that the others have run without this peer: it kept what it has."""
        skipped = range(self.round, round)
        for t in skipped:
            self._note(row_of(self.participant.alone, t, None))
        if skipped:
            self.on_event("skipped", first=skipped[0] + 1, last=skipped[-1] + 1)
            self.round = round
            self.network.enter(round)

    def _one_round(self, now: RunState) -> tuple[RunState, bool]:
        """Train, exchange, measure and save; return the state, and whether the others were ahead."""
        e, began = self.experiment, time.perf_counter()
        r = self._round_of_training()
        with products(e.model.precision):
            trained = e.program.train(now.state, r)
        check_finite(trained, r, bool(self.history), self.network.heard)
        took = time.perf_counter() - began
        behind = self._catch_up()
        self.state = "exchanging"
        state = e.program.exchange(now.state, trained, e.round(self.round))
        seconds = time.perf_counter() - began
        self.deadline.note(seconds, took, self.network.together)
        self.network.keep_pace()
        t, evaluate = self.round, e.schedule.evaluated(self.round) == self.round
        after_train = e.after_train_of(now.after_train, trained, r, evaluate)
        values = e.values(state, after_train, t) if evaluate else None
        work = work_of(e, r, trained, seconds, time.perf_counter() - began, self._sent())
        now = RunState(state, after_train, values)
        self._note(row_of(self.participant.alone, t, values, work))
        if self.chosen is not None and values is not None:
            self.chosen.see(self.history, values, lambda: e.clients(now.state, t), self.folder)
        self._save(now, t + 1)
        self.round += 1
        return now, behind

    def _round_of_training(self) -> Round:
        """Return the round that this peer trains in; a peer that rests takes no step, and exchanges what it has."""
        before, self.rests = self.rests, stops_early(self.config, self.history)
        self.state = "resting" if self.rests else "training"
        if self.rests and not before:
            self.on_event("rests", round=self.round + 1)
        elif before and not self.rests:
            self.on_event("trains", round=self.round + 1)
        r = self.experiment.round(self.round)
        return without_samples(r) if self.rests else r

    def _sent(self) -> dict[str, int]:
        """Return what was carried since the last row, hence also between two rounds: some answers come that late."""
        now = traffic(self.network.transport)
        since = {k: v - self.counted[k] for k, v in now.items()}
        self.counted.update(since)
        return since

    def _catch_up(self) -> bool:
        """Exchange in the round the others are in, if they did not wait for this peer."""
        ahead = None if self.outbox.open else self.network.ahead(self.round, self.receivers(self.round))
        if self.outbox.open is not None and self.outbox.open.round > self.round:  # it was caught up before a crash
            ahead = self.outbox.open.round
        if ahead is not None:
            self._skip_to(min(ahead, self.experiment.settings.rounds - 1))
        return ahead is not None

    def _note(self, row: Row) -> None:
        self.history.append(row)
        self.folder.append(row)

    def _save(self, now: RunState, rounds: int) -> None:
        """Bring the state to the disk, and let go of the messages that no checkpoint needs any more."""
        members = self.participant.members
        applied = torch.tensor([self.mailbox.transfers.applied.get(name, (-1, -1)) for name in members])
        self.folder.save(rounds, {**self.experiment.saved(now), APPLIED: applied})
        self.mailbox.saved()
        self.outbox.saved(rounds, self._oldest())
        self.mass = self._own_mass(now)
        self.missed.update(self.network.missed)
        self.shown.news()
        row = self.history[-1]
        told = {k: row[k] for k in ("train_loss", "bytes_sent", "seconds")}
        metrics = {k: v for k, v in row.items() if k.startswith("personal_") and k.endswith("_after_mix")}
        mass = {} if self.mass is None else {"mass": self.mass}
        self.on_event("round", round=rounds, missed=sorted(self.network.missed), **told, **metrics, **mass)

    def _oldest(self) -> int:
        """Return after how many rounds the state is that one goes back to where the newest is damaged."""
        return oldest(self.folder.path / CHECKPOINT)

    def _own_mass(self, now: RunState) -> float | None:
        found = self.participant.experiment.program.mass
        return None if found is None else float(found(now.state)[0])

    def _restored(self, saved: Checkpoint) -> tuple[RunState, dict[str, tuple[int, int]]]:
        members = self.participant.members
        applied: Any = {
            m: tuple(at) for m, at in zip(members, saved.tensors[APPLIED].tolist(), strict=True) if at[0] >= 0
        }
        return self.participant.experiment.restored(saved), applied

    def _finish(self, now: RunState) -> None:
        """Write what a finished run has: the model, what is known of the client, the summary."""
        p = self.participant
        run = run_after(self.experiment, p.alone, self.config, now, self.history, self.chosen)
        common, own = folded(run.clients)
        self.folder.finish(run.summary, own, run.client_summary, with_constants(common, run.constants))
        self.mailbox.saved()  # a finished run has one checkpoint
        self.outbox.saved(self.round, self._oldest())
        self.on_event("finished", rounds=len(self.history))

    def _warn(self, text: str) -> None:
        self.on_event("warning", text=text)

    def _say(self, text: str) -> None:
        self.on_event("resumed", text=text)


def traffic(transport: Transport) -> dict[str, int]:
    """Return what a transport has carried so far."""
    found = transport.snapshot()
    out = sum(found["messages_out"].values())
    return {"bytes_out": found["bytes_out"], "bytes_in": found["bytes_in"], "messages_out": out}


def run_peer(
    participant: Participant,
    transport: MakeTransport,
    on_event: Callable[..., None],
    begun: Callable[[Path], None] = lambda folder: None,
    serve: Serve = to_nobody,
) -> Path:
    """Run a participant from where its folder stands to the end, and return the folder.

    ``begun``: called when the folder is there; ``serve``: shows others meanwhile what the peer does.
    """
    folder, config = RunFolder(participant.folder), configuration(participant)
    continued = folder.exists
    with folder.writing(config, lambda text: on_event("warning", text=text), continued):
        begun(folder.path)
        if not folder.finished:
            Peer(participant, folder, config, on_event, serve).run(transport)
    return folder.path
