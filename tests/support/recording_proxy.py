"""A place in the network that sees everything: connections go through it, and all bytes are kept."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from net_members import free_addresses


class RecordedRequest(NamedTuple):
    """One HTTP request."""

    line: str
    body: bytes


class RecordingProxy:
    """Addresses through which members are reached; use it in a ``with`` statement."""

    def __init__(self, *names: str) -> None:
        places = free_addresses(*(f"{name} {side}" for name in names for side in ("reached", "listens")))
        self.reached = {name: places[f"{name} reached"] for name in names}
        self.listens = {name: places[f"{name} listens"] for name in names}
        self.asked: list[bytearray] = []  # what came from whoever has connected, by connection
        self.answered: list[bytearray] = []
        self._servers: list[socket.socket] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> "RecordingProxy":
        for name, address in self.reached.items():
            server = socket.create_server(address)
            self._servers.append(server)
            threading.Thread(target=self._accept, args=(server, self.listens[name]), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (*self._servers, *self._open):
            _end(one)

    def _accept(self, server: socket.socket, to: tuple[str, int]) -> None:
        while True:
            try:
                here, _ = server.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(to)
            except OSError:  # it is not there yet, or no more
                here.close()
                continue
            self._open += [here, there]
            for source, sink, kept in ((here, there, self.asked), (there, here, self.answered)):
                kept.append(record := bytearray())
                threading.Thread(target=_carry, args=(source, sink, record), daemon=True).start()

    @property
    def everything(self) -> bytes:
        """All bytes of all connections."""
        return b"\0".join(bytes(each) for each in (*self.asked, *self.answered))

    def requests(self) -> Iterator[RecordedRequest]:
        """What was asked, where nothing is encrypted."""
        for stream in self.asked:
            rest = bytes(stream)
            while b"\r\n\r\n" in rest:
                head, _, rest = rest.partition(b"\r\n\r\n")
                line, *fields = head.decode().split("\r\n")
                length = next((int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length")), 0)
                assert not any("chunked" in f.lower() for f in fields)
                if len(rest) >= length:
                    yield RecordedRequest(line, rest[:length])
                rest = rest[length:]


def header_of(message: bytes) -> dict[str, Any]:
    """What a safetensors file says of itself."""
    found: dict[str, Any] = json.loads(message[8 : 8 + int.from_bytes(message[:8], "little")])
    return found


def _carry(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
    with suppress(OSError):
        while part := source.recv(2**16):
            record += part
            sink.sendall(part)
    _end(sink)
    _end(source)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
