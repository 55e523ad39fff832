"""Connections until TLS is agreed on: anybody can open one, so a connection costs little and a limit holds for all.

TLS of one connection takes more than a quarter of a MiB, most of it a buffer of asyncio. A connection therefore begins
TLS after its first byte has arrived. Until then it is a socket and a task.
"""

import asyncio
import errno
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from traceback import clear_frames
from typing import Any

from .http import in_words
from .message import Reason
from .node import UNKNOWN, Counters

BACKLOG = 128  # connections that the system accepts before this process does
SILENT = 256  # connections of which no byte has arrived
GREETED = 32  # connections that agree on TLS


class Room:
    """Sockets at one stage by the address of the other end, of which there are at most so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._sockets: dict[str, dict[socket.socket, None]] = defaultdict(dict)

    def enter(self, address: str, entering: socket.socket) -> None:
        """Take one socket more; beyond the limit, end the oldest of the address that has the most.

        A member needs some milliseconds, and shares its address with few others: a flood from elsewhere does not end
        its connection, however fast the flood is.
        """
        self._sockets[address][entering] = None
        if sum(map(len, self._sockets.values())) > self.most:
            most_frequent = max(self._sockets, key=lambda key: len(self._sockets[key]))
            oldest = next(iter(self._sockets[most_frequent]))
            self.leave(most_frequent, oldest)
            end(oldest)

    def leave(self, address: str, leaving: socket.socket) -> None:
        """Forget a socket, which may be forgotten already."""
        sockets = self._sockets[address]
        sockets.pop(leaving, None)
        if not sockets:
            del self._sockets[address]


class Admission:
    """Accepts connections, waits for their first byte, and agrees on TLS with them.

    Args:
        tls: TLS for whoever connects; None for plain HTTP.
        seconds: How long a connection may take for its first byte, and how long for TLS.
        protocol: Makes the protocol of a connection that is agreed on.
        counters: Count who is refused.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        seconds: float,
        protocol: Callable[[], asyncio.Protocol],
        counters: Counters,
    ) -> None:
        self._tls, self._seconds, self._protocol, self._counters = tls, seconds, protocol, counters
        self._silent, self._greeted = Room(SILENT), Room(GREETED)
        self._places = asyncio.Semaphore(GREETED)  # an ended connection has its buffers for some moments more
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._full = asyncio.Event()  # no connection can be accepted for a while

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections until this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                loop.add_reader(listening, self._accept, listening)
                self._full.clear()
                await self._full.wait()
                loop.remove_reader(listening)
                await asyncio.sleep(1)
        finally:
            loop.remove_reader(listening)
            for accepted in self._tasks.values():
                end(accepted)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        """Accept what waits. Not by ``sock_accept``, which loses a connection that comes while it is cancelled."""
        for _ in range(BACKLOG):
            try:
                accepted, address = listening.accept()
            except (InterruptedError, ConnectionError):  # the other end has closed it already
                continue
            except BlockingIOError:
                return
            except OSError as error:  # too many open files, most likely
                self._counters.refused(UNKNOWN, "error", f"no connection can be accepted ({in_words(error)})")
                self._full.set()
                return
            accepted.setblocking(False)
            task = asyncio.create_task(self._welcome(accepted, address[0]))
            self._tasks[task] = accepted
            task.add_done_callback(self._tasks.pop)

    async def _welcome(self, accepted: socket.socket, address: str) -> None:
        """Wait until the other end says something, and agree on TLS with it."""
        try:
            await self._in_room(self._silent, accepted, address, self._first_byte(accepted))
            await self._in_room(self._greeted, accepted, address, self._handshake(accepted))
        except ssl.SSLError as error:
            self._refuse(address, "certificate", in_words(error), error)
        except OSError as error:
            accepted.close()
            self._refuse(address, "cut", f"TLS was not agreed on ({in_words(error)})", error)

    def _refuse(self, address: str, reason: Reason, why: str, error: OSError) -> None:
        """Count a connection that ends here, and free its buffers.

        asyncio's future has the error, and a frame of the error's traceback has the future. Such a cycle keeps the
        buffers until Python collects garbage, which may be hundreds of connections later.
        """
        self._counters.refused(address, reason, why)
        clear_frames(error.__traceback__)

    @staticmethod
    async def _in_room(room: Room, accepted: socket.socket, address: str, stage: Coroutine[Any, Any, None]) -> None:
        room.enter(address, accepted)
        try:
            await stage
        finally:
            room.leave(address, accepted)

    async def _first_byte(self, accepted: socket.socket) -> None:
        """Wait for the first byte, which stays where it is."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(self._seconds):
                await readable.wait()
        finally:
            loop.remove_reader(accepted)
        if not accepted.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")

    async def _handshake(self, accepted: socket.socket) -> None:
        async with self._places:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._seconds if self._tls else None,
            )


def end(connection: socket.socket) -> None:
    """End a connection whose task then fails: it reads the end of what the other side sends."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
