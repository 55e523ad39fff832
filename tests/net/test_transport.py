"""Messages between peers: delivered in order and acknowledged, or refused with a reason; nobody breaks a transport."""

import errno
import json
import random
import socket
import ssl
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("aiohttp", reason="peers need coterie[peers]")

from coterie.core.errors import UserError
from coterie.net.wire import admission
from coterie.net.wire.message import Header, Outgoing, Refused
from coterie.net.wire.node import Presence
from coterie.net.wire.tls import name_of
from coterie.net.wire.transport import Beat, Transport
from net_members import (
    MODEL,
    QUICK,
    Certified,
    Client,
    Inbox,
    Member,
    free_addresses,
    silent_listener,
    wait,
)  # fmt: skip

pytestmark = pytest.mark.hostile

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("certs"), *NAMES, "outsider")


class Members:
    """The members of a test, which are closed behind it."""

    def __init__(self, folder: Path, certified: Certified) -> None:
        self.folder, self.certified = folder, certified
        self.addresses = free_addresses(*NAMES)
        self.all: list[Member] = []

    def start(self, name: str, **options: Any) -> Member:
        member = Member(name, self.addresses, self.folder, options.pop("certified", self.certified), **options)
        member.transport.start()
        self.all.append(member)
        return member

    def client(self, name: str, to: str = "beta") -> Client:
        return Client(self.addresses[to], self.certified.client(name), to)


@pytest.fixture
def members(tmp_path: Path, certified: Certified) -> Iterator[Members]:
    members = Members(tmp_path, certified)
    yield members
    for member in members.all:
        member.transport.close()


def message(sender: str = "alpha", kind: str = "copy", model: dict[str, torch.Tensor] = MODEL) -> bytes:
    return b"".join(Outgoing(Header("clinics", "0a1b", kind, 0, 0, sender), model).chunks())


def test_messages_are_delivered_and_acknowledged(members: Members) -> None:
    alpha, beta, gamma = (members.start(name) for name in NAMES)
    alpha.post("beta", 1)
    alpha.post("gamma", 1, "transfer")
    beta.post("alpha", 2)
    wait(lambda: len(alpha.done) == 2 and beta.done)
    assert sorted(alpha.done) == [("beta", "accepted", 1), ("gamma", "accepted", 1)]
    [(header, tensors)] = beta.inbox.taken
    assert header == Header("clinics", "0a1b", "copy", 1, 0, "alpha")
    assert all(torch.equal(tensors[name], value) for name, value in MODEL.items())
    assert gamma.inbox.taken[0][0].kind == "transfer"
    counts = alpha.transport.snapshot()
    assert counts["messages_out"] == {"copy": 1, "transfer": 1}
    assert counts["messages_in"] == {"copy": 1}
    assert counts["bytes_out"] == len(message()) + len(message(kind="transfer"))
    assert counts["bytes_in"] == len(message())
    assert counts["refused"] == {}


def test_a_receiver_gets_messages_in_the_order_in_which_they_were_posted(members: Members) -> None:
    alpha = members.start("alpha")
    for step in range(20):
        alpha.post("beta", 0, "transfer", step)
    beta = members.start("beta")
    beta.inbox.answers = [None, Refused("early", "not yet"), Refused("disk", "full"), None, Refused("early", "not yet")]
    wait(lambda: len(alpha.done) == 20)
    assert [header.step for header, _ in beta.inbox.taken] == list(range(20))


@pytest.mark.parametrize("reason", ["early", "disk", "error"])
def test_what_may_pass_is_tried_again(members: Members, reason: Any) -> None:
    alpha, beta = members.start("alpha"), members.start("beta")
    problem = {"early": Refused("early", "later"), "disk": OSError(errno.ENOSPC, "No space"), "error": KeyError("x")}
    beta.inbox.answers = [problem[reason]] * 3
    alpha.post("beta", 5)
    wait(lambda: alpha.done)
    assert alpha.done == [("beta", "accepted", 5)]
    assert alpha.transport.snapshot()["refused_by"] == {"beta": {reason: 3}}
    assert beta.transport.snapshot()["refused"] == {"alpha": {reason: 3}}
    told = 1 if reason == "early" else 3  # it is no problem, and sent again until its round has begun
    assert len(beta.found("refused", sender="alpha", reason=reason, round=6)) == told
    assert list(beta.inbox.folder.iterdir()) == []


@pytest.mark.parametrize(("reason", "outcome"), [("late", "late"), ("duplicate", "accepted"), ("settings", "given up")])
def test_what_cannot_pass_ends_a_copy(members: Members, reason: Any, outcome: str) -> None:
    alpha, beta = members.start("alpha"), members.start("beta")
    beta.inbox.answers = [Refused(reason, "another method")]
    alpha.post("beta", 5)
    alpha.post("beta", 6)
    wait(lambda: len(alpha.done) == 2)
    assert alpha.done == [("beta", outcome, 5), ("beta", "accepted", 6)]
    [event] = alpha.found("refused_by")
    assert event == {"event": "refused_by", "member": "beta", "reason": reason, "why": "another method", "round": 6}


def test_a_transfer_is_never_given_up(members: Members) -> None:
    alpha, beta = members.start("alpha"), members.start("beta")
    beta.inbox.answers = [Refused("settings", "another method"), Refused("values", "x"), Refused("federation", "y")]
    alpha.post("beta", 5, "transfer")
    alpha.transport.drop(100)
    wait(lambda: alpha.done)
    assert alpha.done == [("beta", "accepted", 5)]


def test_a_receiver_that_comes_back_gets_what_waits(members: Members) -> None:
    alpha, beta = members.start("alpha"), members.start("beta")
    alpha.post("beta", 0, "transfer")
    wait(lambda: alpha.done)
    beta.transport.close()
    wait(lambda: alpha.found("left", member="beta"))
    for step in (1, 2):
        alpha.post("beta", 0, "transfer", step)
    again = members.start("beta")
    wait(lambda: len(alpha.done) == 3)
    assert [header.step for header, _ in again.inbox.taken] == [1, 2]
    assert len(alpha.found("found", member="beta")) == 2


def test_copies_of_two_rounds_wait_and_older_ones_are_given_up(members: Members) -> None:
    alpha = members.start("alpha")
    for round in range(5):
        alpha.post("beta", round)
        alpha.post("beta", round, step=1)
    wait(lambda: len(alpha.done) == 6)
    assert sorted(alpha.done) == [("beta", "given up", round) for round in (0, 0, 1, 1, 2, 2)]
    alpha.transport.drop(4)
    wait(lambda: len(alpha.done) == 8)
    assert {round for _, _, round in alpha.done} == {0, 1, 2, 3}
    beta = members.start("beta")
    wait(lambda: len(alpha.done) == 10)
    assert [(header.round, header.step) for header, _ in beta.inbox.taken] == [(4, 0), (4, 1)]


def test_a_silent_member_is_noticed(members: Members) -> None:
    """Its machine accepts connections, and nobody answers."""
    with silent_listener(members.addresses["gamma"]):
        alpha, beta = (members.start(name, timing=QUICK._replace(alive=0.5, beat=0.3)) for name in NAMES[:2])
        wait(lambda: alpha.found("lost", member="gamma"))
        wait(lambda: set(alpha.transport.alive()) == {"beta"})
        beta.beat = beta.beat._replace(round=7, state="training")
        wait(lambda: alpha.transport.alive()["beta"] == beta.beat)
        assert alpha.found("lost") == [{"event": "lost", "member": "gamma", "why": "it did not answer in time"}]


def test_who_leaves_says_so(members: Members) -> None:
    alpha, beta = members.start("alpha"), members.start("beta")
    wait(lambda: "beta" in alpha.transport.alive())
    beta.transport.close()
    assert alpha.transport.alive()["beta"].state == "leaving"
    assert alpha.found("left", member="beta")
    with pytest.raises(RuntimeError, match="the transport is closed"):
        beta.post("alpha", 1)


def test_a_heartbeat_on_its_way_brings_nobody_back_who_has_left() -> None:
    events: list[str] = []
    presence = Presence(["beta"], within=0.2, report=lambda event, who, **_: events.append(event))
    said = [Beat(3, "exchanging", 100.0, "0a1b"), Beat(4, "leaving", 101.0, "0a1b"), Beat(4, "done", 100.9, "0a1b")]
    for beat in said:
        presence.heard("beta", beat)
    assert presence.alive() == {"beta": said[1]}
    assert presence.heard("beta", Beat(0, "waiting", 102.0, "0a1b"))  # it was started again
    presence.heard("beta", said[1])
    time.sleep(0.3)
    assert presence.heard("beta", Beat(0, "waiting", 7.0, "0a1b"))  # and its clock was set back
    assert events == ["found", "left", "found", "left", "found"]


def test_a_member_is_asked_what_it_is(members: Members, tmp_path: Path) -> None:
    alpha, _ = members.start("alpha"), members.start("beta")
    assert alpha.transport.ask("beta", 20) == {"name": "beta"}
    gamma = Member("gamma", members.addresses, tmp_path, members.certified)
    assert gamma.transport.ask("beta", 20) == {"name": "beta"}  # without being started
    with pytest.raises(
        UserError, match=r"gamma does not answer at 127.0.0.1:\d+ \(connection refused\): start it there"
    ):
        alpha.transport.ask("gamma", 20)
    gamma.transport.close()


def test_certificates_decide_who_is_asked(members: Members, tmp_path: Path) -> None:
    beta = members.start("beta")
    strangers = Certified(tmp_path / "strangers", *NAMES)
    stranger = Member("alpha", members.addresses, tmp_path, strangers)
    with pytest.raises(UserError, match=r"beta does not answer at .* \(its certificate is another authority's\)"):
        stranger.transport.ask("beta", 20)
    moved = {**members.addresses, "gamma": members.addresses["beta"]}
    alpha = Member("alpha", moved, tmp_path, members.certified)
    with pytest.raises(UserError, match=r"gamma .* \(its certificate is that of another member\)"):
        alpha.transport.ask("gamma", 20)
    for member in (stranger, alpha):
        member.transport.close()
    assert not beta.found("error")


def test_a_port_that_is_taken(members: Members, tmp_path: Path) -> None:
    members.start("alpha")
    other = Member("alpha", members.addresses, tmp_path, members.certified)
    with pytest.raises(UserError, match=r"cannot listen at 127.0.0.1:\d+ \(address already in use\): choose another"):
        other.transport.start()
    other.transport.close()


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.2", "localhost", "::1", "0.0.0.0"])
def test_plain_http_stays_on_this_machine(host: str) -> None:
    with pytest.raises(UserError, match=r"b is at .*:1, which is not on 127.0.0.1: use certificates"):
        Transport(
            "a", {"b": (host, 1)}, ("127.0.0.1", 0),
            receiver=Inbox(Path()), beat=lambda: None, hello=dict, on_event=print,
        )  # type: ignore[arg-type, return-value]  # fmt: skip


def test_without_certificates_on_this_machine(members: Members) -> None:
    alpha, beta = (members.start(name, certified=None) for name in NAMES[:2])
    alpha.post("beta", 1)
    wait(lambda: alpha.done == [("beta", "accepted", 1)])
    with Client(members.addresses["beta"], None) as client:
        client.request("GET", "/v1/hello", Coterie_Sender="mallory\x1b")
        assert client.answer()[0] in (400, 403)
    with Client(members.addresses["beta"], None) as client:
        client.request("GET", "/v1/hello", Coterie_Sender="beta")  # it is no other member
        assert client.answer()[1]["refused"] == "sender"
    assert beta.found("refused", reason="sender")


def test_a_certificate_that_is_revoked_meanwhile(members: Members) -> None:
    """It was valid when the connection began."""
    revoked = set[str]()

    def look(certificate: dict[str, Any]) -> str | None:
        return "its certificate is revoked" if name_of(certificate) in revoked else None

    beta = members.start("beta", certificate_ok=look)
    with members.client("alpha") as client:
        client.request("GET", "/v1/hello")
        assert client.answer() == (200, {"name": "beta"})
        revoked.add("alpha")
        client.request("GET", "/v1/hello")
        assert client.answer() == (403, {"refused": "revoked", "why": "its certificate is revoked", "round": 0})
        assert client.ended()
    assert beta.found("refused", sender="alpha", reason="revoked")


def test_nothing_is_sent_to_a_member_that_is_revoked_meanwhile(members: Members) -> None:
    revoked: list[str] = []
    alpha = members.start(
        "alpha", timing=QUICK._replace(alive=0.5), certificate_ok=lambda one: revoked[0] if revoked else None
    )
    beta = members.start("beta")
    wait(lambda: "beta" in alpha.transport.alive())
    revoked.append("its certificate is revoked")
    alpha.post("beta", 1)
    wait(lambda: alpha.found("lost", member="beta", why="its certificate is revoked"))
    assert beta.inbox.taken == []
    assert alpha.done == []  # it waits


class TestRefused:
    """What a member sends that no transport would."""

    @pytest.fixture
    def beta(self, members: Members) -> Member:
        return members.start("beta", timing=QUICK._replace(stalled=0.3))

    def refusal(self, members: Members, send: Callable[[Client], None], sender: str = "alpha") -> tuple[int, str, str]:
        with members.client(sender) as client:
            send(client)
            status, said = client.answer()
            return status, said["refused"], said["why"]

    def test_under_the_name_of_another(self, members: Members, beta: Member) -> None:
        body = message("gamma")
        found = self.refusal(members, lambda client: client.request("POST", "/v1/message", body))
        assert found == (403, "sender", "it names gamma as its sender, and alpha has sent it")
        assert beta.found("refused", sender="alpha", reason="sender", round=1)

    def test_a_certificate_of_nobody(self, members: Members, beta: Member) -> None:
        found = self.refusal(members, lambda client: client.request("GET", "/v1/hello"), "outsider")
        assert found == (403, "sender", "outsider is no other member")
        assert beta.transport.snapshot()["refused"] == {"unknown": {"sender": 1}}

    def test_more_than_it_may_be(self, members: Members, beta: Member) -> None:
        """It is refused by its length, before its body is read."""
        body = message()
        found = self.refusal(members, lambda client: client.request("POST", "/v1/message", body, length=10**12))
        assert found == (413, "size", "it has 1,000,000,000,000 bytes, and 1,048,576 are the most")

    def test_without_a_length(self, members: Members, beta: Member) -> None:
        request = b"POST /v1/message HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"
        assert self.refusal(members, lambda client: client.send(request))[1] == "size"

    def test_no_message(self, members: Members, beta: Member) -> None:
        for body in (b"", b"short", b"\xff" * 100, b"\x08" + bytes(7) + b"{}      ", bytes(8)):
            found = self.refusal(members, lambda client, body=body: client.request("POST", "/v1/message", body))
            assert found[:2] == (400, "format"), body

    def test_poison(self, members: Members, beta: Member) -> None:
        body = message(model={**MODEL, "bias": torch.tensor([1, float("nan"), 0])})
        found = self.refusal(members, lambda client: client.request("POST", "/v1/message", body))
        assert found == (422, "values", "its tensor bias has a value that is not finite")
        assert list(beta.inbox.folder.iterdir()) == []

    @pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"round": 1}', b"[" * 3_000, b"x" * 5_000])
    def test_no_heartbeat(self, members: Members, beta: Member, body: bytes) -> None:
        found = self.refusal(members, lambda client: client.request("POST", "/v1/beat", body))
        assert found[1] in ("format", "size")
        assert beta.transport.alive() == {}

    @pytest.mark.parametrize(
        "said",
        [
            '{"round": true, "state": "a", "clock": 1, "digest": ""}',
            '{"round": 1, "state": 1, "clock": 1, "digest": ""}',
            '{"round": 1, "state": "\\u001b", "clock": 1, "digest": ""}',
            '{"round": 1, "state": "a", "clock": NaN, "digest": ""}',
            f'{{"round": 1, "state": "a", "clock": {10**400}, "digest": ""}}',
            '{"round": 1e999, "state": "a", "clock": 1, "digest": ""}',
        ],
    )
    def test_a_heartbeat_of_other_types(self, members: Members, beta: Member, said: str) -> None:
        found = self.refusal(members, lambda client: client.request("POST", "/v1/beat", said.encode()))
        assert found[:2] == (400, "format")

    def test_cut_in_the_middle(self, members: Members, beta: Member) -> None:
        with members.client("alpha") as client:
            client.request("POST", "/v1/message", message()[:-10], length=len(message()))
            wait(lambda: list(beta.inbox.folder.iterdir()))
        wait(lambda: beta.found("refused", sender="alpha", reason="cut"))
        wait(lambda: list(beta.inbox.folder.iterdir()) == [])

    def test_stalled(self, members: Members, beta: Member) -> None:
        with members.client("alpha") as client:
            client.request("POST", "/v1/message", message()[:-10], length=len(message()))
            assert client.answer() == (408, {"refused": "cut", "why": "nothing came for 0.3 s", "round": 0})
        assert list(beta.inbox.folder.iterdir()) == []

    def test_longer_than_it_says(self, members: Members, beta: Member) -> None:
        with members.client("alpha") as client:
            client.request("POST", "/v1/message", message() + bytes(100), length=len(message()))
            assert client.answer()[0] in (200, 400)  # by whether the rest has come with it
        wait(lambda: beta.found("refused", sender="alpha", reason="format"))
        assert self.refusal(members, lambda client: client.request("GET", "/v1/nothing"))[0] == 400

    def test_a_second_message_ends_the_first(self, members: Members, beta: Member) -> None:
        """A link was cut, and the member has sent its message again before the first connection is known to be dead."""
        with members.client("alpha") as first, members.client("alpha") as second:
            first.request("POST", "/v1/message", message()[:-10], length=len(message()))
            wait(lambda: list(beta.inbox.folder.iterdir()))
            second.request("POST", "/v1/message", message())
            assert second.answer() == (200, {"accepted": True})
            assert first.ended()

    def test_floods_are_counted_and_not_all_reported(self, members: Members, beta: Member) -> None:
        for _ in range(30):
            self.refusal(members, lambda client: client.request("GET", "/v1/nothing"))
        assert beta.transport.snapshot()["refused"] == {"alpha": {"format": 30}}
        assert 10 <= len(beta.found("refused")) < 30

    def test_coming_and_leaving_all_the_time_does_not_fill_the_log(self, members: Members, beta: Member) -> None:
        with members.client("alpha") as client:
            for i in range(200):
                said = Beat(0, ("leaving", "training")[i % 2], 1.0 + i, "0a1b")
                client.request("POST", "/v1/beat", json.dumps(said._asdict()).encode())
                assert client.answer()[0] == 200
        assert 20 <= len(beta.found("left") + beta.found("found")) < 150

    def test_errors_do_not_fill_the_log(self, members: Members, beta: Member) -> None:
        beta.inbox.answers = [ValueError() for _ in range(30)]
        for _ in range(30):
            self.refusal(members, lambda client: client.request("POST", "/v1/message", message()))
        assert 10 <= len(beta.found("error")) < 30


def test_strangers_are_counted(members: Members, tmp_path: Path) -> None:
    beta = members.start("beta")
    strangers = Certified(tmp_path / "strangers", "alpha")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    other = strangers.client("alpha")
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    for tls, why in ((bare, "it showed no certificate"), (other, "its certificate is another authority's")):
        with Client(members.addresses["beta"], tls, "beta") as client:
            client.request("GET", "/v1/hello")
            assert client.answer() == (0, None)
        wait(lambda why=why: beta.found("refused", sender="127.0.0.1", reason="certificate", why=why))
    with Client(members.addresses["beta"], None) as client:
        client.request("GET", "/v1/hello")
        assert client.ended()
    wait(lambda: beta.found("refused", sender="127.0.0.1", why="it speaks plain HTTP without TLS"))
    assert beta.transport.snapshot()["refused"] == {"unknown": {"certificate": 3}}


def test_idle_connections_are_few_and_end(members: Members) -> None:
    """A hundred strangers that never begin TLS, and a member with twenty connections."""
    alpha = members.start("alpha")
    beta = members.start("beta", timing=QUICK._replace(idle=1.5, connect=2.0))
    strangers = [socket.create_connection(members.addresses["beta"]) for _ in range(100)]
    clients = [members.client("gamma") for _ in range(20)]
    alpha.post("beta", 1)
    wait(lambda: alpha.done == [("beta", "accepted", 1)])
    assert all(client.ended() for client in clients)  # twelve at once, the others when they were idle for long
    wait(lambda: cut_connections(beta) == 100)
    for one in [*strangers, *(client.socket for client in clients)]:
        one.close()


def cut_connections(member: Member) -> int:
    """How many connections of strangers ended before TLS was agreed on."""
    return int(member.transport.snapshot()["refused"].get("unknown", {}).get("cut", 0))


def client_hello() -> bytes:
    """The first bytes of a client, which need no certificate."""
    context, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="beta").do_handshake()
    return sent.read()


@pytest.mark.parametrize("says", ["nothing", "hello"])
def test_a_flood_of_strangers_takes_little_memory_and_starves_no_member(members: Members, says: str) -> None:
    """A thousand connections that stay open; each had taken 256 KiB until Python collected its garbage."""
    alpha, beta = members.start("alpha"), members.start("beta")
    first = client_hello() if says == "hello" else b""
    strangers = []
    tracemalloc.start()
    try:
        for number in range(1000):
            strangers.append(socket.create_connection(members.addresses["beta"]))
            strangers[-1].sendall(first)
            if number % 250 == 0:  # a copy gives way to that of a later round, so each has to arrive before the next
                wait(lambda sent=number // 250: [outcome for _, outcome, _ in alpha.done] == ["accepted"] * sent)
                alpha.post("beta", number)
        wait(lambda: [outcome for _, outcome, _ in alpha.done] == ["accepted"] * 4)
        wait(lambda: cut_connections(beta) >= 1000 - admission.SILENT)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for one in strangers:
            one.close()
    assert peak < 30 * 2**20
    assert held < 20 * 2**20


def test_the_address_with_most_connections_loses_one() -> None:
    room, pairs = admission.Room(3), [socket.socketpair() for _ in range(5)]
    for address, (near, _) in zip(["member", "flood", "flood", "flood", "other"], pairs, strict=True):
        room.enter(address, near)
    ended = [far.recv(1, socket.MSG_DONTWAIT) == b"" for _, far in (pairs[1], pairs[2])]
    assert ended == [True, True]
    for _, far in (pairs[0], pairs[3], pairs[4]):
        with pytest.raises(BlockingIOError):
            far.recv(1, socket.MSG_DONTWAIT)
    for one in [end for pair in pairs for end in pair]:
        one.close()


@pytest.mark.parametrize(("tls", "requests"), [(False, 400), (True, 60)], ids=["plain", "tls"])
def test_fuzzed_requests_leave_it_serving(members: Members, tls: bool, requests: int) -> None:
    """Some hundred requests that are none; a member can send them over TLS as well."""
    rng = random.Random(0)
    beta = members.start("beta", certified=members.certified if tls else None)
    valid = b"POST /v1/message HTTP/1.1\r\nHost: x\r\nCoterie-Sender: alpha\r\nContent-Length: %d\r\n\r\n"
    valid = valid % len(message()) + message()

    def client() -> Client:
        return members.client("alpha") if tls else Client(members.addresses["beta"], None)

    for number in range(requests):
        with client() as one:
            with suppress(OSError):  # it may be cut off before all of it is sent
                one.send(malformed(rng, valid, number))
                one.socket.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError, ssl.SSLError):  # and not wait for more, which would be a timeout
                while one.socket.recv(2**16):
                    pass
    assert not beta.found("error")
    assert sum(beta.transport.snapshot()["refused"].get("alpha" if tls else "unknown", {}).values()) > requests / 4
    with client() as one:
        one.send(valid)
        assert one.answer() == (200, {"accepted": True})


def malformed(rng: random.Random, valid: bytes, number: int) -> bytes:
    """A request that is none, or one that is mutated."""
    beat, hello, hers = b"POST /v1/beat HTTP/1.1\r\n", b"GET /v1/hello HTTP/1.1\r\n", b"Coterie-Sender: alpha\r\n"
    known = [
        b"\x16\x03\x01" + rng.randbytes(200), b"GET", b"\r\n" * 1000, b"GET / HTTP/9.9\r\n\r\n", bytes(2000),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", hello + b"A: b\r\n" * 10_000 + b"\r\n",
        hello + b"A: " + b"b" * 100_000 + b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        beat + b"Content-Length: -1\r\n\r\n", beat + b"Content-Length: 1e9\r\n\r\n",
        beat + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        beat + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        beat + hers + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        hello + hers + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n" + bytes(500),
        b"GET http://[::1 HTTP/1.1\r\n\r\n", b"GET \xff\xfe HTTP/1.1\r\n\r\n", (hello + b"\r\n") * 200,
        beat + hers + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n" + bytes(9),
    ]  # fmt: skip
    if number < len(known):
        return known[number]
    changed = bytearray(valid)
    for _ in range(rng.randint(1, 10)):
        changed[rng.randrange(160)] = rng.randrange(256)
    return bytes(changed[: rng.choice([len(valid), rng.randrange(len(valid))])])


def test_memory_does_not_grow_with_the_message(members: Members, tmp_path: Path) -> None:
    """Two of 48 MB to one receiver, in the memory of a few chunks."""
    size = 48 * 10**6
    model = {"weight": torch.zeros(size // 4)}
    beta = members.start("beta", inbox=Sink(tmp_path / "sink"))
    senders = [members.start(name) for name in ("alpha", "gamma")]
    tracemalloc.start()
    try:
        for sender in senders:
            sender.post("beta", 1, model=model)
        wait(lambda: all(sender.done for sender in senders))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert beta.transport.snapshot()["bytes_in"] > 2 * size
    assert peak < size / 2


class Sink(Inbox):
    """A receiver that takes anything."""

    def admit(self, header: Header, size: int) -> Path:
        return self.folder / header.sender

    def take(self, header: Header, path: Path) -> None:
        assert path.stat().st_size > 48 * 10**6
        path.unlink()
