"""What a peer takes, keeps and waits for, and when it follows the others."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.core.errors import DamagedFileError
from coterie.core.tensors import Tensors
from coterie.net.peer.deadline import Deadline
from coterie.net.peer.engine import Networked
from coterie.net.peer.kinds import Copies, Portion, Transfers
from coterie.net.peer.mailbox import Announcement, Arrived, Mailbox, WaitFor
from coterie.net.peer.network import Network
from coterie.net.peer.outbox import Outbox
from coterie.net.wire.message import Header, Outgoing, Refused
from coterie.net.wire.transport import Beat

X = {"w": torch.arange(3.0)}
COPY, TRANSFER = Copies.name, Transfers.name
SHAPES = {COPY: X, TRANSFER: Portion(0.5, 0.5).message(X)}
ANNOUNCED = [Announcement(k, {n: (v.dtype, tuple(v.shape)) for n, v in x.items()}) for k, x in SHAPES.items()]
NOW = Header("fed", "digest", COPY, 5, 0, "b")
PUSHED = NOW._replace(kind=TRANSFER, step=1)


def mailbox(folder: Path, round: int = 5, **applied: tuple[int, int]) -> Mailbox:
    box = Mailbox(folder, "fed", "digest", ANNOUNCED, lambda round, step: {"b", "c"}, applied, members=3)
    box.enter(round)
    return box


def deliver(box: Mailbox, header: Header, tensors: Tensors | None = None, size: int = 0) -> None:
    message = Outgoing(header, SHAPES.get(header.kind, X) if tensors is None else tensors)
    path = box.admit(header, size or message.size)
    path.write_bytes(b"".join(message.chunks()))
    box.take(header, path)


def copies(box: Mailbox, wanted: Sequence[str], round: int, step: int, until: WaitFor) -> dict[str, Arrived]:
    return dict(box.due(box.copies, wanted, (round, step), until)[1])


def transfers(box: Mailbox, wanted: Sequence[str], round: int, step: int, until: WaitFor) -> list[Arrived]:
    return [tensors for _, tensors in box.due(box.transfers, wanted, (round, step), until)[1]]


def waiting(*alive: str, seconds: float = 5.0) -> WaitFor:
    return WaitFor(seconds, lambda: alive)


REFUSED = {
    "another federation": (NOW._replace(federation="other"), "federation"),
    "other settings": (NOW._replace(digest="other"), "settings"),
    "a kind that nobody knows": (NOW._replace(kind="gift"), "format"),
    "no such exchange": (NOW._replace(step=7), "format"),
    "another kind": (NOW._replace(kind=TRANSFER), "format"),
    "two rounds ahead": (NOW._replace(round=7), "early"),
    "a round that is over": (NOW._replace(round=4), "late"),
    "no neighbor": (NOW._replace(sender="d"), "sender"),
    "no neighbor that hands anything over": (PUSHED._replace(sender="d"), "sender"),
    "a transfer from the future": (PUSHED._replace(round=7), "early"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_for_this_round_and_from_a_neighbor_is_refused(name: str, tmp_path: Path) -> None:
    header, reason = REFUSED[name]
    with pytest.raises(Refused) as refused:
        deliver(mailbox(tmp_path), header)
    assert refused.value.reason == reason


def test_a_message_is_taken_once_and_none_is_too_long(tmp_path: Path) -> None:
    box = mailbox(tmp_path)
    for header in (NOW, NOW._replace(round=6), PUSHED._replace(round=3), PUSHED):
        deliver(box, header)
        with pytest.raises(Refused) as refused:
            deliver(box, header)
        assert refused.value.reason == "duplicate"
    with pytest.raises(Refused) as refused:
        deliver(box, NOW._replace(sender="c"), size=10**9)
    assert refused.value.reason == "size"
    found = copies(box, ["b", "c"], 5, 0, waiting("b", seconds=0.0))
    assert {k: v()["w"].tolist() for k, v in found.items()} == {"b": [0.0, 1.0, 2.0]}
    box.enter(6)  # what was for the next round is there
    assert copies(box, ["b"], 6, 0, waiting("b", seconds=0.0)).keys() == {"b"}


@pytest.mark.parametrize(("weight", "mass"), [(-0.1, 0.5), (1.5, 0.5), (0.5, -1.0), (0.5, 1e9)])
def test_a_portion_that_no_division_gives_is_refused(weight: float, mass: float, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        deliver(mailbox(tmp_path), PUSHED, Portion(weight, mass).message(X))
    assert refused.value.reason == "values"


def handed_over(mass: float) -> Tensors:
    return Portion(0.5, mass).message(X)


def test_no_more_mass_is_taken_than_the_members_have(tmp_path: Path) -> None:
    """One member cannot make another one count more than all of them together, at once or little by little."""
    box = mailbox(tmp_path)
    box.transfers.moved(1.0)  # its own
    deliver(box, PUSHED, handed_over(1.5))
    with pytest.raises(Refused, match="more than the 3 of all members") as refused:
        deliver(box, PUSHED._replace(sender="c"), handed_over(0.75))
    assert refused.value.reason == "values"
    box = mailbox(tmp_path)  # what waits there counts after a restart, too
    box.transfers.moved(1.0)
    with pytest.raises(Refused, match="more than the 3 of all members"):
        deliver(box, PUSHED._replace(sender="c"), handed_over(0.75))
    box.transfers.moved(-0.25)
    deliver(box, PUSHED._replace(sender="c"), handed_over(0.75))
    assert box.transfers.mass == 3.0


def test_a_sender_cannot_fill_the_disk_with_old_transfers(tmp_path: Path) -> None:
    box = mailbox(tmp_path)
    for round in (1, 2, 3):
        deliver(box, PUSHED._replace(round=round), handed_over(0.125))
    with pytest.raises(Refused) as refused:
        deliver(box, PUSHED._replace(round=4), handed_over(0.125))
    assert refused.value.reason == "early"  # which is sent again
    deliver(box, PUSHED._replace(sender="c"), handed_over(0.125))
    assert len(transfers(box, ["b"], 5, 1, waiting("b", seconds=0.0))) == 4
    deliver(box, PUSHED._replace(round=4), handed_over(0.125))


def test_what_a_peer_hands_over_makes_room_for_what_comes_back(tmp_path: Path) -> None:
    peer = network(tmp_path, b=5)
    peer.enter(5)
    peer.mailbox.transfers.moved(3.0)
    peer.transfers(X, {1: Portion(0.5, 1.5)}, [])
    assert peer.mailbox.transfers.mass == 1.5
    deliver(peer.mailbox, PUSHED, handed_over(1.5))


def test_what_training_never_gives_is_refused(tmp_path: Path) -> None:
    box = mailbox(tmp_path)
    for value in (float("nan"), 1e30, -2100.0):
        with pytest.raises(Refused, match="not finite, or far too large") as refused:
            deliver(box, NOW, {"w": torch.tensor([0.0, value, 1.0])})
        assert refused.value.reason == "values"
    box.sent(0, {"w": torch.tensor([-3.0])})
    deliver(box, NOW, {"w": torch.tensor([0.0, -2100.0, 1.0])})
    box.sent(0, {"w": torch.tensor([700.0])})  # it has mixed that in: the bound does not follow
    with pytest.raises(Refused, match="not finite, or far too large"):
        deliver(box, NOW._replace(sender="c"), {"w": torch.tensor([0.0, 1e5, 1.0])})


def test_transfers_outlive_a_crash_until_a_state_has_them(tmp_path: Path) -> None:
    box = mailbox(tmp_path)
    deliver(box, PUSHED._replace(round=4))
    deliver(box, PUSHED)
    deliver(box, PUSHED._replace(round=6))
    (tmp_path / ".9.part").write_bytes(b"half of a message")
    box = mailbox(tmp_path, b=(4, 1))  # a state has the first
    assert not (tmp_path / ".9.part").exists()
    assert box.transfers.waiting_mass == 1.0
    assert len(transfers(box, ["b"], 5, 1, waiting())) == 1  # that of the next round waits
    assert box.transfers.applied == {"b": (5, 1)}
    assert len(transfers(mailbox(tmp_path, b=(4, 1)), ["b"], 5, 1, waiting())) == 1  # nothing was saved yet
    for left in (["transfer-000005-1-b", "transfer-000006-1-b"], ["transfer-000006-1-b"]):  # one checkpoint later
        box.saved()
        assert sorted(path.stem for path in tmp_path.iterdir()) == left


DAMAGED = {
    "other bytes": lambda content: b"x" * 5000,
    "cut within its header": lambda content: content[:40],
    "cut within its values": lambda content: content[:-1],
    "emptied": lambda content: b"",
    "other tensors": lambda content: b"".join(Outgoing(PUSHED, X).chunks()),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damaged_messages_are_named_and_stay(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """The sender has let go of what was acknowledged, and the receivers may have a part of what has left."""
    deliver(mailbox(tmp_path / "in"), PUSHED)
    Outbox(tmp_path / "out").commit(3, 1, X, {"b": Portion(0.25, 0.25)})
    again: list[Callable[[], object]] = [lambda: mailbox(tmp_path / "in"), lambda: Outbox(tmp_path / "out")]
    for folder, begin in zip(("in", "out"), again, strict=True):
        (path,) = (tmp_path / folder).iterdir()
        damaged = damage(path.read_bytes())
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{re.escape(str(path))} is damaged, because"):
            begin()
        assert path.read_bytes() == damaged
    mailbox(tmp_path / "in", b=(5, 1))  # nobody needs one that the state has


def test_nobody_waits_for_whoever_is_gone(tmp_path: Path) -> None:
    """An exchange ends as soon as all are here that are alive, and wakes up for what comes meanwhile."""
    box = mailbox(tmp_path)
    assert copies(box, ["b", "c"], 5, 0, waiting(seconds=3600)) == {}
    thread = Thread(target=deliver, args=(box, NOW))
    thread.start()
    assert copies(box, ["b", "c"], 5, 0, waiting("b", seconds=3600)).keys() == {"b"}
    thread.join()


def test_a_message_that_is_arriving_is_waited_for(tmp_path: Path) -> None:
    """Over a slow link a message takes longer than a deadline; one that was cut is not waited for."""
    box = mailbox(tmp_path)
    path = box.admit(NOW, 0)
    message = b"".join(Outgoing(NOW, X).chunks())
    patience = WaitFor(0.0, lambda: ["b"], longest=3600.0)

    def rest() -> None:
        path.write_bytes(message)
        box.take(NOW, path)

    thread = Thread(target=rest)
    thread.start()
    assert copies(box, ["b"], 5, 0, patience).keys() == {"b"}
    thread.join()
    cut = box.admit(NOW._replace(sender="c"), 0)
    assert copies(box, ["c"], 5, 0, WaitFor(0.0, lambda: ["b"], longest=3600.0)) == {}  # it is not there any more
    assert copies(box, ["c"], 6, 0, WaitFor(0.0, lambda: ["c"], longest=3600.0)) == {}  # of another round
    cut.unlink()
    assert copies(box, ["c"], 5, 0, WaitFor(0.0, lambda: ["c"], longest=3600.0)) == {}
    assert (Deadline().longest, Deadline(7.0).longest) == (60.0, 7.0)


def test_a_member_of_which_nothing_arrives_is_told_of_once(tmp_path: Path) -> None:
    peer, told = network(tmp_path, b=5), list[str]()
    peer.on_event = lambda event, **fields: told.append(fields["text"]) if event == "warning" else None
    for round in range(5, 12):
        peer.enter(round)
        peer.copies(X, [], [1, 2])  # the second one does not even answer
    (text,) = told
    assert text.startswith("b answers, but 5 rounds have waited for it in vain")
    deliver(peer.mailbox, NOW._replace(round=11))
    peer.enter(11)
    assert peer.copies(X, [], [1]).keys() == {1}
    for round in range(12, 17):
        peer.enter(round)
        peer.copies(X, [], [1])
    assert len(told) == 2


def network(folder: Path, **rounds: int) -> Network:
    beats = {name: Beat(round, "training", 0.0, "digest") for name, round in rounds.items()}
    transport: Any = SimpleNamespace(alive=lambda: beats, drop=lambda round: None, post=lambda *_: None)
    events: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    box, out = mailbox(folder / "in"), Outbox(folder / "out")
    return Network(
        members=["a", "b", "c", "d", "e"],
        client=0,
        transport=transport,
        mailbox=box,
        outbox=out,
        deadline=Deadline(0.0),
        on_event=events,
    )


@pytest.mark.parametrize(
    ("rounds", "ahead"),
    [
        ({"b": 5, "c": 5, "d": 5, "e": 5}, None),
        ({"b": 6, "c": 6, "d": 6, "e": 6}, 6),
        ({"b": 9, "c": 9, "d": 8, "e": 5}, 8),
        ({"b": 10**9, "c": 5, "d": 5, "e": 5}, None),  # who lies moves nobody
        ({"b": 10**9, "c": 5}, None),  # nor one of two
        ({"b": 6}, 6),
        ({"d": 9}, None),  # it needs nothing of this peer
        ({}, None),
    ],
)
def test_a_peer_follows_where_half_of_its_receivers_have_gone_on(
    rounds: dict[str, int], ahead: int | None, tmp_path: Path
) -> None:
    assert network(tmp_path, **rounds).ahead(5, {"b", "c"}) == ahead


def test_who_is_slow_on_purpose_does_not_raise_the_deadline_without_end() -> None:
    deadline = Deadline()
    for _ in range(30):
        deadline.note(0.85 * deadline.seconds, 0.02, together=True)
    assert (deadline.seconds, deadline.pace) == (60.0, 5.0)
    slow = Deadline()  # where one's own training takes long, everything does
    for _ in range(30):
        slow.note(150.0, 100.0, together=True)
    assert (slow.seconds, slow.pace) == (450.0, 150.0)


def test_who_is_alone_keeps_the_pace_however_long_that_lasts(tmp_path: Path) -> None:
    """Otherwise it would be done before the others are there again."""
    peer = network(tmp_path, b=5, c=5)
    peer.enter(5)
    peer.transport.alive().pop("c")
    peer.enter(500)
    assert (peer.lost, peer.together) == ({"c"}, False)


def test_missing_weight_stays_where_the_formula_puts_it(tmp_path: Path) -> None:
    """Nobody answers: an average leaves a model as it is, and push-sum keeps all mass."""
    engine = Networked(SimpleNamespace(name="", map=0, scan=0, gradient=0), 0, network(tmp_path))  # type: ignore[arg-type]
    W = torch.full((5, 5), 0.2, dtype=torch.float64)
    x = {"w": torch.arange(3.0)[None]}
    assert torch.equal(engine.mix(W, x)["w"], x["w"])
    moved = engine.push(W, x, torch.ones(1, dtype=torch.float64))
    assert torch.equal(moved.kept["w"], x["w"])
    assert (moved.kept_mass.item(), moved.arrived_mass.item()) == (1.0, 0.0)


def test_an_outbox_keeps_what_nobody_has_acknowledged(tmp_path: Path) -> None:
    """A round that is run again after a crash sends what it sent before, and to the same members."""
    shares = {"b": Portion(0.25, 0.25), "c": Portion(0.25, 0.25)}
    Outbox(tmp_path).commit(3, 1, X, shares)
    again = Outbox(tmp_path)
    again.saved(3, 2)
    assert again.open is not None
    assert (again.open.round, again.open.shares) == (3, shares)
    assert torch.equal(again.open.tensors["w"], X["w"])
    again.settle(3, 1, "b")
    again.saved(4, 3)
    assert again.open is None
    assert again.unsettled_mass == 0.25
    again.settle(3, 1, "c")
    assert len(list(tmp_path.iterdir())) == 1  # the state after three rounds can be gone back to
    again.saved(5, 4)
    assert list(tmp_path.iterdir()) == []
