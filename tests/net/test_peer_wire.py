"""What leaves a peer, seen by whoever reads along, and whom running peers let in: members, with what they may send."""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file

from coterie.net.certificates.authority import Authority
from coterie.net.peer.rehearsal import announcements
from coterie.net.setup.config import load
from coterie.net.setup.prepare import Participant
from coterie.net.setup.start import participant
from coterie.net.wire.http import BEAT, MESSAGE, Beat
from coterie.net.wire.message import Header, Outgoing
from federation_files import FederationFiles
from net_members import Client, free_addresses
from peer_processes import PeerServer, wait_until
from recording_proxy import RecordingProxy, header_of

pytestmark = pytest.mark.hostile

NAMES = [f"site-{i}" for i in range(3)]
MALLORY = "mallory"  # a member that the test plays
COMMON = {"lr": 0.1, "personal_lr": 0.1, "epochs": 1, "batch_size": 16}
SETTINGS = {"dfedalt": {**COMMON, "topology": "ring"}, "dfedpgp": {**COMMON, "topology": "random-push:1"}}
LABELS = 24  # so many in a row are found by no accident


def recorded(
    peer_server: PeerServer, folder: Path, method: str, *arguments: str
) -> tuple[FederationFiles, RecordingProxy]:
    """A whole run of three peers, and all that went over the wire."""
    with RecordingProxy(*NAMES) as proxy:
        reached, listens = (
            {name: f"{host}:{port}" for name, (host, port) in places.items()}
            for places in (proxy.reached, proxy.listens)
        )
        own = {"deadline": "5s", "wait": "30s"}
        files = FederationFiles(folder, reached, method, 3, SETTINGS[method], own=own, listen=listens).write()
        running = [peer_server.start(files.config(name), arguments=arguments) for name in NAMES]
        for peer in running:
            assert peer.wait() == 0, peer.said
    assert not any(files.events(name, "missing") for name in NAMES)
    return files, proxy


def pieces(values: torch.Tensor) -> Iterator[bytes]:
    """The bytes of every row of a tensor."""
    for row in values.reshape(len(values), -1) if values.dim() > 1 else values.reshape(1, -1):
        yield row.contiguous().numpy().tobytes()


def models(files: FederationFiles, one: Participant) -> dict[bool, list[bytes]]:
    """The rows of all members' models at the end, by whether they are shared."""
    found: dict[bool, list[bytes]] = {True: [], False: []}
    for name in NAMES:
        for key, value in load_file(next(files.run(name).glob("clients/client-0000*"))).items():
            found[key in one.experiment.program.shared] += pieces(value)
    return found


def own_data(files: FederationFiles) -> Iterator[bytes]:
    """All members' samples as numbers and as bytes, and their labels."""
    for name in NAMES:
        with np.load(files.folder / f"{name}.npz") as arrays:
            for key in ("x", "test_x"):
                flat = arrays[key].reshape(len(arrays[key]), -1)
                for kind in (np.float32, np.float64, np.uint8):
                    yield from (row.tobytes() for row in flat.astype(kind))
                yield from (row.tobytes() for row in np.round(16 * flat).astype(np.uint8))
            for key in ("y", "test_y"):
                for kind in (np.int64, np.int32, np.uint8):
                    yield arrays[key][:LABELS].astype(kind).tobytes()


@pytest.mark.parametrize("method", SETTINGS)
def test_only_what_is_shared_leaves_a_peer(peer_server: PeerServer, tmp_path: Path, method: str) -> None:
    files, proxy = recorded(peer_server, tmp_path, method, "--insecure-loopback")
    one, wire = participant(load(files.config("site-0"))), proxy.everything
    rows = models(files, one)
    assert rows[False], "something is personal"
    for secret in (*rows[False], *own_data(files)):
        assert secret not in wire
    names = {f"x/{key}" if method == "dfedpgp" else key for key in one.experiment.program.shared}
    beside = {"mass", "weight"} if method == "dfedpgp" else set()
    seen = [(request.line, request.body) for request in proxy.requests()]
    messages = [header_of(body) for line, body in seen if line.startswith(f"POST {MESSAGE} ")]
    assert len(messages) >= 3 * 3
    for header in messages:
        assert header.keys() == names | beside | {"__metadata__"}
        assert header["__metadata__"].keys() == set(Header._fields)
    others = {line for line, _ in seen if not line.startswith(f"POST {MESSAGE} ")}
    assert others == {f"POST {BEAT} HTTP/1.1"}
    assert max(len(body) for line, body in seen if line.startswith(f"POST {BEAT} ")) < 300
    body = next(body for line, body in seen if line.startswith(f"POST {MESSAGE} "))
    for value in from_bytes(body).values():
        assert all(row in wire for row in pieces(value)), "rows that leave are found"


def test_nothing_can_be_read_on_the_wire(peer_server: PeerServer, tmp_path: Path) -> None:
    files, proxy = recorded(peer_server, tmp_path, "dfedalt")
    one, wire = participant(load(files.config("site-0"))), proxy.everything
    rows = models(files, one)
    for secret in (*rows[True], *rows[False], *own_data(files)):
        assert secret not in wire
    for word in (one.digest, "clinics", "safetensors", "__metadata__", "HTTP/1.1", MESSAGE, BEAT):
        assert word.encode() not in wire


class Attack:
    """What a member with a valid certificate may try, and strangers; ``at``: the member that is attacked."""

    def __init__(self, files: FederationFiles, at: str) -> None:
        self.files, self.at = files, at
        host, _, port = files.addresses[at].rpartition(":")
        self.address = host, int(port)
        self.own = participant(load(files.config(MALLORY)))
        self.tensors = self._tensors()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """A message as it should be: the model that all begin with."""
        e = self.own.experiment
        start = e.start()
        shapes = announcements(e, self.own.client, start)[0].tensors
        return {key: e.model.start[key].to(dtype).reshape(shape) for key, (dtype, shape) in shapes.items()}

    def context(self, certificate: str | None, authority: str = "certs") -> ssl.SSLContext:
        """A client that shows a certificate of some authority, and trusts the members'."""
        made = ssl.create_default_context(cafile=str(self.files.folder / "certs" / "authority.pem"))
        if certificate is not None:
            folder = self.files.folder / authority
            made.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
        return made

    def connect(self, certificate: str | None = MALLORY, authority: str = "certs") -> Client:
        return Client(self.address, self.context(certificate, authority), self.at)

    def let_in(self, certificate: str | None, authority: str = "certs") -> bool:
        """Whether a certificate opens the door."""
        with self.connect(certificate, authority) as client:
            client.request("GET", "/v1/hello")
            return client.answer()[0] == 200

    def round(self) -> int:
        """The round that the member is in."""
        with self.connect() as client:
            client.request("GET", "/v1/hello")
            assert client.answer()[0] == 200
        return len(self.files.events(self.at, "round"))

    def claim(self, round: int) -> None:
        """Say in a heartbeat that this member is in some round."""
        beat = Beat(round, "training", time.time(), self.own.digest)
        with self.connect() as client:
            client.request("POST", BEAT, json.dumps(beat._asdict()).encode())
            assert client.answer()[0] == 200

    def send(self, round: int, sender: str = MALLORY, length: int | None = None, **changed: torch.Tensor) -> Any:
        """What the member answers to a message."""
        header = Header(self.own.federation, self.own.digest, "copy", round, 0, sender)
        body = b"".join(bytes(part) for part in Outgoing(header, self.tensors | changed).chunks())
        with self.connect() as client:
            client.request("POST", MESSAGE, body, length)
            return client.answer()[1]

    def refused(self, reason: str, why: str = "") -> bool:
        """Whether the member's log names such a refusal."""
        return any(why in each["why"] for each in self.files.events(self.at, "refused", reason=reason))


def test_running_peers_let_nobody_in_who_is_none_of_them(peer_server: PeerServer, tmp_path: Path) -> None:
    places = free_addresses(*NAMES[:2], MALLORY)
    addresses = {name: f"{host}:{port}" for name, (host, port) in places.items()}
    own = {"deadline": "1s", "wait": "1s"}
    settings = {**COMMON, "topology": "full"}
    files = FederationFiles(tmp_path, addresses, "dfedalt", 25, settings, own=own).write()
    files.authority.issue("expired", days=-0.5)
    Authority.create(tmp_path / "others").issue(MALLORY)
    running = [peer_server.start(files.config(name), pause=0.3) for name in NAMES[:2]]
    attack = Attack(files, "site-0")
    wait_until(lambda: files.events("site-0", "begins"), "the first round")

    for certificate, authority, why in (
        (None, "certs", "it showed no certificate"),
        (MALLORY, "others", "its certificate is another authority's"),
        ("expired", "certs", "its certificate has expired"),
    ):
        assert not attack.let_in(certificate, authority)
        wait_until(lambda why=why: attack.refused("certificate", why), why)
    assert attack.let_in(MALLORY)

    first = next(name for name, value in attack.tensors.items() if value.dim() > 1)
    poison = attack.tensors[first].clone()
    poison.view(-1)[-1] = float("nan")
    for reason, sent in (
        ("sender", {"sender": "site-1"}),
        ("values", {first: poison}),
        ("size", {"length": 10**10}),
        ("shapes", {"secret": torch.ones(2)}),
        ("shapes", {first: attack.tensors[first].double()}),
    ):
        while (answer := attack.send(attack.round(), **sent))["refused"] == "late":  # type: ignore[arg-type]
            pass
        assert answer["refused"] == reason
        wait_until(lambda reason=reason: attack.refused(reason), reason)

    for _ in range(5):  # nobody follows one that claims to be far ahead, and leaves out rounds
        attack.claim(10**9)
        now = attack.round()
        wait_until(lambda now=now: attack.round() > now, "another round")

    while (answer := attack.send(round := attack.round())) != {"accepted": True}:
        assert answer["refused"] == "late"
    assert attack.send(round)["refused"] in ("duplicate", "late"), "a round is taken once"
    wait_until(lambda: attack.round() > round + 1, "a later round")
    assert attack.send(round)["refused"] == "late"
    assert attack.refused("late")

    with attack.connect() as client:
        client.request("GET", "/v1/hello")
        assert client.answer()[0] == 200
        files.authority.revoke(MALLORY)
        client.request("GET", "/v1/hello")
        assert client.answer()[0] in (0, 403)
    wait_until(lambda: attack.refused("revoked"), "the open connection")
    assert not attack.let_in(MALLORY)
    wait_until(lambda: attack.refused("certificate", "its certificate is revoked"), "a new connection")

    for peer in running:
        assert peer.wait() == 0, peer.said
    assert files.accuracy(NAMES[:2]) > 90
    for name in NAMES[:2]:
        assert [each["round"] for each in files.events(name, "round")] == list(range(1, files.rounds + 1))
        assert not files.events(name, "error")
    assert not files.events("site-1", "refused", reason="values"), "nobody else was attacked"
