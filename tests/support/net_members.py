"""Members of a federation on this machine, for tests of what passes between them."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coterie.core.tensors import Tensors
from coterie.net.certificates.authority import Authority
from coterie.net.wire.message import Header, Outgoing, Refused, open_message
from coterie.net.wire.tls import Credentials, client_context, server_context
from coterie.net.wire.transport import Beat, Timing, Transport

# Fast enough for a test, and slow enough for a machine that is busy with others.
QUICK = Timing(heartbeat=0.1, alive=2, beat=1, connect=10, stalled=10, answer=20, idle=20, longest_pause=0.2)
MODEL = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(3)}


class Certified:
    """A folder with an authority and the certificates of some members."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        authority = Authority.create(folder)
        for name in names:
            authority.issue(name)

    def credentials(self, name: str) -> Credentials:
        path = self.folder
        return Credentials(
            path / "authority.pem", path / f"{name}.pem", path / f"{name}.key", path / "revoked.pem", name
        )

    def client(self, name: str) -> ssl.SSLContext:
        return client_context(self.credentials(name))

    def server(self, name: str) -> ssl.SSLContext:
        return server_context(self.credentials(name), lambda reason: None)


class Inbox:
    """A receiver that keeps what it takes; ``answers`` are the reasons for which the next ones are not taken."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.taken = folder, list[tuple[Header, Tensors]]()
        self.answers: list[Exception | None] = []
        self.largest = 2**20

    def admit(self, header: Header, size: int) -> Path:
        if size > self.largest:
            raise Refused("size", f"it has {size:,} bytes, and {self.largest:,} are the most")
        return self.folder / f"{header.sender}.part"

    def take(self, header: Header, path: Path) -> None:
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer
        tensors = open_message(path, {name: (v.dtype, tuple(v.shape)) for name, v in MODEL.items()})
        path.unlink()
        self.taken.append((header, tensors))


class Member:
    """A transport with an inbox; what it reports and what becomes of its messages is kept."""

    def __init__(self, name: str, members: dict[str, tuple[str, int]], folder: Path, certified: Certified | None,
                 timing: Timing = QUICK, inbox: Any = None, **options: Any) -> None:  # fmt: skip
        self.name, self.address = name, members[name]
        self.inbox: Any = inbox or Inbox(folder / name)
        self.events: list[dict[str, Any]] = []
        self.done: list[tuple[str, str, int]] = []
        self.beat = Beat(0, "waiting", time.time(), "0a1b")
        tls = (certified.server(name), certified.client(name)) if certified else (None, None)
        self.transport = Transport(
            name, members, self.address, receiver=self.inbox, beat=lambda: self.beat, hello=lambda: {"name": name},
            on_event=self.note, server_tls=tls[0], client_tls=tls[1], timing=timing, **options,
        )  # fmt: skip

    def note(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def found(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of this name that have these fields."""
        wanted = {"event": event, **fields}
        return [one for one in list(self.events) if wanted.items() <= one.items()]

    def post(self, to: str, round: int, kind: str = "copy", step: int = 0, model: Tensors = MODEL) -> None:
        message = Outgoing(Header("clinics", "0a1b", kind, round, step, self.name), model, kind == "transfer")
        self.transport.post(to, message, lambda who, outcome: self.done.append((who, outcome, round)))


def wait(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until something holds; the limit is for a test that fails."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def free_addresses(*names: str) -> dict[str, tuple[str, int]]:
    """Addresses at which nobody listens."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    addresses = {name: s.getsockname() for name, s in sockets.items()}
    for s in sockets.values():
        s.close()
    return addresses


class Client:
    """A connection of one's own, for what no transport would send."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, name: str = "") -> None:
        self.socket = socket.create_connection(address, timeout=60)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=name)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def request(self, method: str, path: str, body: bytes = b"", length: int | None = None, **fields: str) -> None:
        """Send a request; ``length``: what it says of its body."""
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in fields.items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def answer(self) -> tuple[int, Any]:
        """The status and the JSON of the answer; (0, None) where the connection ends."""
        file = self.socket.makefile("rb")
        try:
            first = file.readline()
            if not first:
                return 0, None
            fields = {}
            while line := file.readline().strip():
                key, _, value = line.partition(b":")
                fields[key.lower()] = value.strip()
            return int(first.split()[1]), json.loads(file.read(int(fields[b"content-length"])))
        except (ConnectionError, ssl.SSLError):
            return 0, None

    def ended(self) -> bool:
        """Wait until the other side closes the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


@contextmanager
def silent_listener(address: tuple[str, int]) -> Iterator[None]:
    """Somebody who accepts connections and never says a word."""
    kept: list[socket.socket] = []
    with socket.create_server(address) as listening:

        def accept() -> None:
            try:
                while True:
                    kept.append(listening.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in kept:
                one.close()
