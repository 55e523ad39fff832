"""Push-sum between peers keeps its mass to the last bit, wherever one of them is killed and started again."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from coterie.models.model import Model, cross_entropy
from coterie.net.outbox import Outbox
from coterie.net.peer import APPLIED, INBOX, OUTBOX, run_peer
from coterie.net.prepare import Participant
from coterie.store import RunFolder
from laws import build
from local_peers import LocalTransport, participants, short_turns
from toys import net, ragged

ROUNDS = 2


class Killed(BaseException):
    """What a peer is ended with, in the middle of whatever it does."""


class Faulty:
    """Ends whoever passes the ``last`` of all places where a kill may come."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def around(f: Callable[..., Any], fault: Faulty) -> Callable[..., Any]:
    """The same, with a place to be killed at before it and after it."""

    def g(*args: Any, **named: Any) -> Any:
        fault()
        found = f(*args, **named)
        fault()
        return found

    return g


def play(peers: list[Participant], victim: int, last: int) -> bool:
    """Run all of them, kill one at its ``last`` place, and start it again; whether it was killed."""
    members: dict[str, LocalTransport] = {}
    killed: list[int] = []
    failed: list[BaseException] = []

    def one(p: Participant) -> None:
        fault = Faulty(last if p.client == victim else 0)

        def transport(box: Any, beat: Any, hello: Any) -> Any:
            made = LocalTransport(p.name, members, box, beat)
            made.post = around(made.post, fault)  # type: ignore[method-assign]
            box.saved = around(box.saved, fault)
            return made

        def quiet(*_: Any, **__: Any) -> None:
            fault()  # an event stands between most things that a peer does

        for _ in range(2):
            try:
                run_peer(p, transport, quiet)
                return
            except Killed:
                killed.append(p.client)
                fault.left = 0
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


@pytest.mark.parametrize("method", ["dfedpgp", "osgp, overlapping"])
def test_a_kill_loses_and_doubles_no_mass(method: str, tmp_path: Path) -> None:
    """Before and after every message, every event and every file."""
    fed, algorithm = ragged("mlp").of_clients(np.arange(3)), build(method)
    last, killed = 1, True
    while killed:
        more = {"wait": 5.0, "deadline": 0.2}
        peers = participants(
            lambda: Model(net("mlp"), cross_entropy), fed, algorithm, ROUNDS, tmp_path / str(last), **more
        )
        killed = play(peers, victim=1, last=last)
        assert mass_everywhere(peers) == len(peers), last
        assert all(RunFolder(p.folder).finished for p in peers)
        last += 1 if method == "dfedpgp" else 4  # a queue around the same exchange needs no more
    assert last > 10
