"""The server of one peer: it knows who is speaking, writes messages to files as they arrive, and answers heartbeats.

``admission`` accepts connections and not aiohttp, because limits must hold before TLS is agreed on.
"""

import asyncio
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientPayloadError, StreamReader, web

from ...core.errors import FolderError, UserError
from .admission import Admission
from .http import BEAT, HELLO, LONGEST_BEAT, MESSAGE, SENDER, STATUS, beat_of, in_words, read_json
from .message import CHUNK, Header, Refused, read_header, shorten
from .node import Node
from .tls import name_of

PER_MEMBER = 8  # connections of one member, and of all others together
LINGERING = 5.0  # seconds in which the rest of a refused message is thrown away, so that the answer can be read

_silent = logging.getLogger("coterie.net.http")  # aiohttp would log what a stranger has sent
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Connection(web.RequestHandler):
    """One connection, with the name of whoever is at the other end."""

    __slots__ = ("inbound", "requests", "sender")

    def __init__(self, inbound: "Inbound", manager: web.Server, idle: float) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=idle,
            lingering_time=LINGERING,
            logger=_silent,
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            read_bufsize=CHUNK // 4,
        )
        self.inbound, self.requests, self.sender = inbound, 0, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve it."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self.inbound.opened(self, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        self.inbound.lost(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, without repeating any of it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        return self.inbound.refuse(self.sender, Refused("format", "it is no request that HTTP knows"))


class Inbound:
    """Whatever arrives."""

    def __init__(self, node: Node, tls: ssl.SSLContext | None, on_news: Callable[[str], None]) -> None:
        self._node, self._tls, self._on_news = node, tls, on_news
        self._counters, self._timing = node.counters, node.timing
        self._open: dict[str, dict[Connection, asyncio.Transport]] = defaultdict(dict)
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._arriving: dict[str, web.BaseRequest] = {}
        self._routes = {("POST", MESSAGE): self._message, ("POST", BEAT): self._beaten, ("GET", HELLO): self._greet}

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections until this is cancelled."""
        manager = web.Server(self._handle)
        admission = Admission(
            self._tls,
            self._timing.connect,
            lambda: Connection(self, manager, self._timing.idle),
            self._counters,
        )
        try:
            await admission.serve(listening)
        finally:
            for transport in [one for mine in self._open.values() for one in mine.values()]:
                transport.abort()
            await manager.shutdown(1)

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Keep a new connection; the oldest of a member that has too many is closed, as it may be dead."""
        certificate = transport.get_extra_info("peercert") if self._tls else None
        with suppress(UserError):  # a certificate that names nobody, or several
            connection.sender = name_of(certificate) if certificate else ""
        mine = self._open[connection.sender if connection.sender in self._node.members else ""]
        mine[connection] = transport
        if len(mine) > (PER_MEMBER if self._tls else PER_MEMBER * len(self._node.members)):
            mine.pop(next(iter(mine))).abort()

        def look_for_requests() -> None:
            if not connection.requests:
                transport.abort()

        asyncio.get_running_loop().call_later(self._timing.idle, look_for_requests)

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        for mine in self._open.values():
            mine.pop(connection, None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever happens."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.requests += 1
        sender = connection.sender if self._tls else request.headers.get(SENDER, "")
        try:
            self._check_sender(request, sender)
            route = self._routes.get((request.method, request.path))
            if route is None:
                raise Refused("format", "there is nothing at this address")
            return await route(request, sender)
        except Exception as error:
            return self.refuse(sender or request.remote or "", self._refusal(error, request, sender))

    def _refusal(self, error: Exception, request: web.BaseRequest, sender: str) -> Refused:
        """Say what an error means for whoever has sent the request."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, (ConnectionError, TimeoutError, ClientPayloadError, web.RequestPayloadError)):
            return Refused("cut", "the connection was lost in the middle")
        if isinstance(error, (OSError, FolderError)):
            return Refused("disk", f"it cannot be kept ({in_words(error)})")
        self._counters.report_of("error", sender, where=request.path, why=type(error).__name__)
        return Refused("error", "something went wrong on this side")

    def _check_sender(self, request: web.BaseRequest, sender: str) -> None:
        """Refuse whoever is no other member, or is none any more."""
        certificate = request.transport.get_extra_info("peercert") if request.transport and self._tls else None
        if sender not in self._node.members:
            raise Refused("sender", f"{shorten(sender) or 'nobody'} is no other member")
        why = self._node.certificate_ok(certificate) if certificate else None
        if why is not None:
            raise Refused("revoked", why)

    def refuse(self, sender: str, refused: Refused) -> web.Response:
        """Count a refusal, and answer it."""
        self._counters.refused(sender, refused.reason, str(refused), refused.round)
        said = {"refused": refused.reason, "why": str(refused), "round": self._node.beat().round}
        response = web.json_response(said, status=STATUS[refused.reason])
        if refused.reason not in ("early", "late", "duplicate"):
            response.force_close()
        return response

    async def _message(self, request: web.BaseRequest, sender: str) -> web.Response:
        """Take a message. A member sends one at a time: a second one means that it has given up the first."""
        if sender in self._arriving and (transport := self._arriving[sender].transport):
            transport.abort()
        async with self._turns[sender]:
            self._arriving[sender] = request
            try:
                await self._take(request, sender)
            finally:
                del self._arriving[sender]
        return web.json_response({"accepted": True})

    async def _take(self, request: web.BaseRequest, sender: str) -> None:
        """Read a message into a file and hand it over; remove the file if it is not taken."""
        size = request.content_length
        if size is None:
            raise Refused("size", "it does not say how long it is")
        header, first = await self._begin(request.content)
        try:
            if header.sender != sender:
                raise Refused("sender", f"it names {header.sender} as its sender, and {sender} has sent it")
            path = await self._node.in_thread(self._node.receiver.admit, header, size)
            try:
                await self._spool(request.content, first, path)
                await self._node.in_thread(self._node.receiver.take, header, path)
            except BaseException:
                await self._node.in_thread(path.unlink, True)
                raise
        except Exception as error:
            refused = self._refusal(error, request, sender)
            refused.round = header.round
            raise refused from None
        self._counters.acknowledged("in", header.kind)

    async def _begin(self, content: StreamReader) -> tuple[Header, list[bytes]]:
        """Return the header of a message, and what was read for it."""
        first = b""
        while (header := read_header(first)) is None:
            if not (part := await self._next(content)):
                raise Refused("format", "it ends within its header")
            first += part
        return header, [first]

    async def _next(self, content: StreamReader) -> bytes:
        """Return some bytes, none at the end."""
        try:
            async with asyncio.timeout(self._timing.stalled):
                part = await content.readany()
        except TimeoutError:
            raise Refused("cut", f"nothing came for {self._timing.stalled:g} s") from None
        self._counters.moved("in", len(part))
        return part

    async def _spool(self, content: StreamReader, parts: list[bytes], path: Path) -> None:
        """Write all that comes into a file, a chunk at a time."""
        with await self._node.in_thread(path.open, "wb") as f:
            held = sum(map(len, parts))
            while part := await self._next(content):
                parts.append(part)
                held += len(part)
                if held >= CHUNK:
                    await self._node.in_thread(f.writelines, parts)
                    parts, held = [], 0
            await self._node.in_thread(f.writelines, parts)

    async def _beaten(self, request: web.BaseRequest, sender: str) -> web.Response:
        """Note a heartbeat, and answer with one."""
        async with asyncio.timeout(self._timing.beat):
            beat = beat_of(await read_json(request.content, LONGEST_BEAT))
        if self._node.presence.heard(sender, beat):
            self._on_news(sender)
        return web.json_response(self._node.beat()._asdict())

    async def _greet(self, request: web.BaseRequest, sender: str) -> web.Response:
        """Say what this peer is."""
        return web.json_response(await self._node.in_thread(self._node.hello))
