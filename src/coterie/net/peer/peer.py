"""One participant, round by round: train, exchange with whoever answers, measure, save; or catch up, or leave."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...algorithms.base import Round, Trained
from ...core.errors import DivergedError
from ...core.schema import Config, Row
from ...core.units import metrics_of
from ...measure.selection import stops_early
from ...models.model import products
from ...store import RunFolder
from ...store.checkpoint import Checkpoint, oldest
from ...store.chosen import drop_later
from ...store.folder import CHECKPOINT, INBOX, OUTBOX
from ...training.client import folded, with_constants
from ...training.experiment import RunState
from ...training.results import chosen_so_far, run_after
from ..operations.status import (
    MassStatus,
    PeerStatus,
    Serve,
    StatusWriter,
    last_saved,
    measured,
    members_seen,
    to_nobody,
)
from ..setup.agreement import hello
from ..setup.prepare import Participant, configuration
from ..wire.node import UNKNOWN
from ..wire.transport import Beat, Transport
from .deadline import Deadline
from .engine import Networked
from .kinds import NEVER, At
from .mailbox import TURN, Mailbox
from .network import GONE, Network
from .outbox import Outbox
from .rehearsal import announcements, without_samples
from .rows import Carried, costs_of, member_row

APPLIED = "peer/applied"  # [n, 2] round and step of the last transfer of every member that the state has

MakeTransport = Callable[[Mailbox, Callable[[], Beat], Callable[[], dict[str, Any]]], Transport]
"""(who takes messages, what the peer says of itself, what it was set up with) -> a transport that has not begun."""


class Peer:
    """A participant while it runs: all that it has is made at once, and nothing happens before ``run``."""

    def __init__(
        self,
        participant: Participant,
        folder: RunFolder,
        config: Config,
        transport: MakeTransport,
        on_event: Callable[..., None],
    ) -> None:
        p, e = participant, participant.experiment
        self.participant, self.folder, self.config, self.on_event = p, folder, config, on_event
        self.state = "waiting"  # what it does: waiting, training, resting, exchanging, finishing, leaving, done
        self.rests = False  # whether it takes no step, because evaluations were no better
        self.missed: Counter[str] = Counter()  # rounds that have waited for each member in vain
        start = e.start()
        announced = announcements(e, p.client, start)
        warn, say = (lambda text: on_event("warning", text=text)), (lambda text: on_event("resumed", text=text))
        saved = folder.resumed(partial(restored, p), warn, say)
        self.resumed = saved is not None
        (self.now, applied), self.history = ((start, {}), []) if saved is None else saved
        self.round = len(self.history)  # the one that it is in, counted from 0
        drop_later(folder.path, self.round)
        self.chosen = chosen_so_far(e, folder, config, self.round)
        self.outbox = Outbox(folder.path / OUTBOX)
        self.outbox.saved(self.round, self._oldest())
        inbox, members = folder.path / INBOX, len(p.members)
        self.mailbox = Mailbox(inbox, p.federation, p.digest, announced, p.senders, applied, members=members)
        self.mailbox.enter(self.round)
        self.mass = self._own_mass()  # push-sum's, of the saved state
        self.mailbox.transfers.moved((self.mass or 0.0) - self.outbox.unsaved_mass)
        self.deadline = Deadline(p.deadline)
        self.transport = transport(self.mailbox, self.beat, lambda: hello(p.agreed))
        self.carried = Carried(self.transport)
        parts = self.transport, self.mailbox, self.outbox, self.deadline
        self.network = Network(p.members, p.client, *parts, on_event=on_event)
        self.experiment = replace(e, engine=Networked(e.engine, p.client, self.network))
        self.status = StatusWriter(folder.path, self.snapshot, on_event)

    def run(self, serve: Serve) -> None:
        """Take part in all rounds that are left; whatever ends it, the neighbors are told."""
        self.transport.start()
        with self.status.running(), serve(self.status.latest):
            try:
                self._rounds()
            finally:
                self.state = "done" if self.round >= self.experiment.settings.rounds else GONE
                self.transport.close()
                self.on_event("leaves", done=self.round, state=self.state)

    def beat(self) -> Beat:
        """Return what this peer says of itself to the others."""
        return Beat(self.round, self.state, time.time(), self.participant.digest)

    def snapshot(self) -> PeerStatus:
        """Return what this peer shows of itself to its operator; any thread may ask."""
        p, rows, counts = self.participant, list(self.history), self.transport.snapshot()
        rounds, last = p.experiment.settings.rounds, rows[-1] if rows else None
        near, others = p.neighbors(min(self.round, rounds - 1)), [name for name in p.members if name != p.name]
        evaluated, metrics = measured(rows, [m["column"] for m in metrics_of(self.config)])
        return {
            "time": time.time(),
            "process": os.getpid(),
            "federation": p.federation,
            "name": p.name,
            "method": p.experiment.algorithm.name,
            "round": min(self.round + 1, rounds),
            "rounds": rounds,
            "done": len(rows),
            "state": self.state,
            "deadline": self.deadline.seconds,
            "missing": sorted(self.network.missed),
            "members": members_seen(others, rounds, near, self.transport.alive(), counts, self.missed),
            "strangers": counts["refused"].get(UNKNOWN, {}),
            "bytes_in": counts["bytes_in"],
            "bytes_out": counts["bytes_out"],
            "messages_in": counts["messages_in"],
            "messages_out": counts["messages_out"],
            "mass": self._mass_status(),
            "measured": evaluated,
            "metrics": metrics,
            "train_loss": None if last is None else last["train_loss"],
            "seconds": None if last is None else last["seconds"],
            "saved": last_saved(self.folder.path),
            "kept": self.chosen.rounds[0] if self.chosen is not None and self.chosen.rounds else None,
        }

    def _mass_status(self) -> MassStatus | None:
        """Return where the mass is: what a round that is not saved has handed over is with this peer no longer."""
        if self.mass is None:
            return None
        own = self.mass - self.outbox.unsaved_mass
        return {"own": own, "outbox": self.outbox.unsettled_mass, "inbox": self.mailbox.transfers.waiting_mass}

    def _rounds(self) -> None:
        rounds = self.experiment.settings.rounds
        for entry in [e for _, e in sorted(self.outbox.entries.items()) if e.round < self.round]:
            self.network.resend(entry)
        self._wait_for_others()
        behind = self.resumed
        while self.round < rounds:
            if behind and self.outbox.open is None:  # what was committed before a crash comes first
                self._skip_to(min(self.network.middle_round(), rounds - 1))
            self.network.enter(self.round)
            self.network.let_others_come()
            behind = self._one_round()
        self.state = "finishing"
        self._finish()
        self.network.linger(max(self.deadline.seconds, 10.0))

    def _wait_for_others(self) -> None:
        """Wait until everybody is there, as long as the configuration says; who resumes waits for one answer only.

        Once somebody has begun, the others are given no more time than in a round: nobody waits for this peer either.
        """
        p, began = self.participant, time.monotonic()
        others, seconds = set(p.members) - {p.name}, p.wait
        enough = min(1, len(others)) if self.resumed else len(others)
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
            self._note(member_row(self.participant.alone, t))
        if skipped:
            self.on_event("skipped", first=skipped[0] + 1, last=skipped[-1] + 1)
            self.round = round
            self.network.enter(round)

    def _one_round(self) -> bool:
        """Train, exchange, measure and save; return whether the others were ahead."""
        e, now, began = self.experiment, self.now, time.perf_counter()
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
        loss = float(trained.loss[0]) if int(trained.steps[0]) else None
        costs = costs_of(e, r, trained, seconds, time.perf_counter() - began, self.carried.since_last())
        self.now = RunState(state, after_train, values)
        self._note(member_row(self.participant.alone, t, values, loss, costs))
        if self.chosen is not None and values is not None:
            self.chosen.see(self.history, values, lambda: e.clients(state, t), self.folder)
        self._save(t + 1)
        self.round += 1
        return behind

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

    def _catch_up(self) -> bool:
        """Exchange in the round the others are in, if they did not wait for this peer."""
        ahead = None if self.outbox.open else self.network.ahead(self.round, self.participant.receivers(self.round))
        if self.outbox.open is not None and self.outbox.open.round > self.round:  # it was caught up before a crash
            ahead = self.outbox.open.round
        if ahead is not None:
            self._skip_to(min(ahead, self.experiment.settings.rounds - 1))
        return ahead is not None

    def _note(self, row: Row) -> None:
        self.history.append(row)
        self.folder.append(row)

    def _save(self, rounds: int) -> None:
        """Bring the state to the disk, and let go of the messages that no checkpoint needs any more."""
        members = self.participant.members
        applied = torch.tensor([self.mailbox.transfers.applied.get(name, NEVER) for name in members])
        self.folder.save(rounds, {**self.experiment.saved(self.now), APPLIED: applied})
        self.mailbox.saved()
        self.outbox.saved(rounds, self._oldest())
        self.mass = self._own_mass()
        self.missed.update(self.network.missed)
        self.status.news()
        row = self.history[-1]
        told = {k: row[k] for k in ("train_loss", "bytes_sent", "seconds")}
        metrics = {k: v for k, v in row.items() if k.startswith("personal_") and k.endswith("_after_mix")}
        mass = {} if self.mass is None else {"mass": self.mass}
        self.on_event("round", round=rounds, missed=sorted(self.network.missed), **told, **metrics, **mass)

    def _oldest(self) -> int:
        """Return after how many rounds the state is that one goes back to where the newest is damaged."""
        return oldest(self.folder.path / CHECKPOINT)

    def _own_mass(self) -> float | None:
        mass = self.participant.experiment.program.mass
        return None if mass is None else float(mass(self.now.state)[0])

    def _finish(self) -> None:
        """Write what a finished run has: the model, what is known of the client, the summary."""
        p = self.participant
        run = run_after(self.experiment, p.alone, self.config, self.now, self.history, self.chosen)
        common, own = folded(run.clients)
        self.folder.finish(run.summary, own, run.client_summary, with_constants(common, run.constants))
        self.mailbox.saved()  # a finished run has one checkpoint
        self.outbox.saved(self.round, self._oldest())
        self.on_event("finished", rounds=len(self.history))


def restored(p: Participant, saved: Checkpoint) -> tuple[RunState, dict[str, At]]:
    """Return the state of a checkpoint, and the last transfer of each sender that it has."""
    rows = zip(p.members, saved.tensors[APPLIED].tolist(), strict=True)
    return p.experiment.restored(saved), {member: (round, step) for member, (round, step) in rows if round >= 0}


def check_finite(trained: Trained, r: Round, mixed: bool, heard: Collection[str]) -> None:
    """Stop a peer that diverges; ``mixed``: whether it may have models of others, ``heard``: whose it had last."""
    try:
        trained.check_finite(r)
    except DivergedError as error:
        if not mixed:
            raise
        raise DivergedError(after_mix(str(error), heard)) from error


def after_mix(text: str, heard: Collection[str]) -> str:
    """Return what is said of a loss that is not finite after a mix.

    >>> after_mix("the loss of beta is not finite any more in round 3: lower lr", {"gamma", "alpha"})
    'the loss of beta is not finite any more in round 3, after models of alpha, gamma were mixed in: if one of those
    was wrong, set robust or revoke its sender, and begin with an empty folder; if not, lower lr'
    """
    what, _, fix = text.partition(": ")
    mixed = f"after models of {', '.join(sorted(heard)) or 'others'} were mixed in"
    wrong = "if one of those was wrong, set robust or revoke its sender, and begin with an empty folder"
    return f"{what}, {mixed}: {wrong}; if not, {fix}"


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
            Peer(participant, folder, config, transport, on_event).run(serve)
    return folder.path
