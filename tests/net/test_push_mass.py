"""Push-sum between peers keeps its mass to the last bit, wherever one of them is killed and started again."""

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import coterie as ct
from coterie.models.model import Model, cross_entropy
from coterie.net.peer.outbox import Outbox, Portion
from coterie.net.peer.peer import APPLIED, INBOX, OUTBOX, run_peer
from coterie.net.setup.prepare import Participant
from coterie.store import RunFolder
from federation_files import FederationFiles
from laws import build
from local_peers import LocalTransport, participants, short_turns
from toys import net, ragged

pytestmark = pytest.mark.hostile

ROUNDS = 2


class Killed(BaseException):
    """What a peer is ended with, in the middle of whatever it does."""


class Faulty:
    """Ends whoever passes the ``last`` of all places where a kill may come."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self, *event: str, **fields: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class FaultyAt:
    """Ends whoever tells this of a round."""

    def __init__(self, event: str, round: int) -> None:
        self.event, self.round = event, round

    def __call__(self, event: str = "", **fields: Any) -> None:
        if (event, fields.get("round")) == (self.event, self.round):
            raise Killed


def around(f: Callable[..., Any], fault: Callable[..., None]) -> Callable[..., Any]:
    """The same, with a place to be killed at before it and after it."""

    def g(*args: Any, **named: Any) -> Any:
        fault()
        found = f(*args, **named)
        fault()
        return found

    return g


def play(peers: list[Participant], victim: int, faults: Sequence[Callable[..., None]], damaged: str = "") -> bool:
    """Run all of them, kill one by each fault, damage a file of it, and start it again; whether it was killed."""
    members: dict[str, LocalTransport] = {}
    killed: list[int] = []
    failed: list[BaseException] = []

    def one(p: Participant) -> None:
        left = [*faults] if p.client == victim else []
        fault: Callable[..., None] = Faulty(0)

        def transport(box: Any, beat: Any, hello: Any) -> Any:
            made = LocalTransport(p.name, members, box, beat)
            made.post = around(made.post, fault)  # type: ignore[method-assign]
            box.saved = around(box.saved, fault)
            return made

        while True:
            fault = left.pop(0) if left else Faulty(0)
            try:
                run_peer(p, transport, fault)  # an event stands between most things that a peer does
                return
            except Killed:
                killed.append(p.client)
                if damaged and not left:
                    os.truncate(p.folder / damaged, 99)
            except BaseException as error:
                failed.append(error)
                raise

    threads = [Thread(target=one, args=(p,), daemon=True) for p in peers]
    with short_turns():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    for error in failed:
        raise error
    return bool(killed)


def mass_everywhere(peers: list[Participant]) -> Fraction:
    """All mass: in the states, on its way in the inboxes, and in the outboxes if it has not arrived."""
    total, last = Fraction(0), {}
    for p in peers:
        newest = sorted((p.folder / "checkpoint").glob("*.safetensors"))[-1]
        tensors = load_file(newest)
        flying = tensors["flying_mu"].flatten().tolist() if "flying_mu" in tensors else []  # OSGP's own queue
        total += sum(map(Fraction, [tensors["mu"].item(), *flying]))
        for q, at in zip(peers, tensors[APPLIED].tolist(), strict=True):
            last[p.name, q.name] = tuple(at)
        for path in (p.folder / INBOX).glob("transfer-*"):
            _, round, step, sender = path.stem.split("-", 3)
            at = int(round), int(step)
            if at > last[p.name, sender]:
                total += Fraction(load_file(path)["mass"].item())
                last[p.name, sender] = max(last[p.name, sender], at)
    for p in peers:
        for (round, step), entry in Outbox(p.folder / OUTBOX).entries.items():
            for to, share in entry.shares.items():
                if (round, step) > last[to, p.name]:
                    total += Fraction(share.mass)
    return total


def model() -> Model:
    return Model(net("mlp"), cross_entropy)


@pytest.mark.parametrize("method", ["dfedpgp", "osgp, overlapping"])
def test_a_kill_loses_and_doubles_no_mass(method: str, tmp_path: Path) -> None:
    """Before and after every message, every event and every file."""
    fed, algorithm = ragged("mlp").of_clients(np.arange(3)), build(method)
    last, killed = 1, True
    while killed:
        more = {"wait": 5.0, "deadline": 0.2}
        peers = participants(model, fed, algorithm, ROUNDS, tmp_path / str(last), **more)
        killed = play(peers, victim=1, faults=[Faulty(last)])
        assert mass_everywhere(peers) == len(peers), last
        assert all(RunFolder(p.folder).finished for p in peers)
        last += 1 if method == "dfedpgp" else 4  # a queue around the same exchange needs no more
    assert last > 10


def test_a_damaged_checkpoint_loses_and_doubles_no_mass(tmp_path: Path) -> None:
    """What the state before it needs is there until it is gone, although the peer was started with the newest one."""
    fed = ragged("mlp").of_clients(np.arange(3))
    uneven = ct.algorithms.osgp(topology="random-push:1", lr=0.1, epochs=1)  # members have different masses
    peers = participants(model, fed, uneven, ROUNDS, tmp_path, wait=0.5, deadline=0.2)
    faults = [FaultyAt("round", ROUNDS), FaultyAt("begins", ROUNDS + 1)]
    assert play(peers, 1, faults, f"checkpoint/round-{ROUNDS:06d}.safetensors")
    assert mass_everywhere(peers) == len(peers)
    assert all(RunFolder(p.folder).finished for p in peers)


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_the_mass_of_files_in_the_middle_of_a_round(saved: bool, arrived: bool, tmp_path: Path) -> None:
    """A state that was saved before its member handed something over still has it."""
    files = FederationFiles(tmp_path, {"alpha": "", "beta": ""}, "dfedpgp", ROUNDS, {})
    for name in files.names:
        (files.run(name) / "checkpoint").mkdir(parents=True)
        (files.run(name) / INBOX).mkdir()
        gone = 0.375 if saved and name == "alpha" else 0.0
        state = {"mu": torch.tensor([1.0 - gone]), APPLIED: torch.tensor([[-1, -1], [-1, -1]])}
        rounds = 3 if saved and name == "alpha" else 2
        save_file(state, files.run(name) / "checkpoint" / f"round-{rounds:06d}.safetensors")
    Outbox(files.run("alpha") / OUTBOX).commit(2, 0, {"u": torch.zeros(1)}, {"beta": Portion(0.5, 0.375)})
    if arrived:
        save_file({"mass": torch.tensor(0.375)}, files.run("beta") / INBOX / "transfer-000002-0-alpha")
    assert files.mass() == 2
