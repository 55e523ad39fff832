"""The client of one peer: messages to every other member, one by one until each is acknowledged, and heartbeats."""

import asyncio
import json
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakSet

import aiohttp
from yarl import URL

from ...core.errors import UserError
from .http import BEAT, HELLO, LONGEST_ANSWER, MESSAGE, SENDER, beat_of, in_words, read_json, refusal_in
from .message import Outgoing, Reason, Refused
from .node import Node

WRITE = 2**17  # bytes that are handed to TLS at a time: a slow link then shows that it is one, and not a dead one
FIRST_PAUSE = 0.05  # seconds before a message is sent again; every further pause is twice as long
ROUNDS_KEPT = 2  # of messages that wait for a receiver: older ones would be refused as late

Outcome = Literal["accepted", "late", "given up"]
Answer = tuple[Reason | Literal["accepted", "unreachable"], str]
ENDS: dict[str, Outcome] = {"accepted": "accepted", "duplicate": "accepted", "late": "late"}
PASSING = {"unreachable", "early", "disk", "cut", "error"}  # what may be otherwise soon
FAILURES = (aiohttp.ClientError, OSError, Refused)  # timeouts are OSErrors; the last: whoever answers, or what


class Posted:
    """A message on its way to one receiver."""

    def __init__(self, message: Outgoing, on_done: Callable[[str, str], None]) -> None:
        self.message, self.on_done = message, on_done
        self.sending: asyncio.Task[Outcome] | None = None
        self.dropped = False


class SendQueue:
    """What waits to be sent to one member, first in, first out."""

    def __init__(self, to: str, attempt: Callable[[str, Outgoing], Any], node: Node) -> None:
        self.to, self._attempt, self._node = to, attempt, node
        self.waiting: deque[Posted] = deque()
        self._filled = asyncio.Event()
        self.news = asyncio.Event()  # the member is back, or in another round

    def put(self, posted: Posted) -> None:
        """Append a message; those of rounds that are too old give way."""
        self.waiting.append(posted)
        self._filled.set()
        if not posted.message.lasts:
            self.drop(posted.message.header.round - ROUNDS_KEPT + 1)

    def drop(self, before_round: int) -> None:
        """Give up what does not last of earlier rounds, one that is being sent included."""
        old = [p for p in self.waiting if not p.message.lasts and p.message.header.round < before_round]
        for posted in old:
            if posted.sending is not None:  # whoever waits for it will see that it ends
                posted.dropped = True
                posted.sending.cancel()
            else:
                self.waiting.remove(posted)
                self._node.pool.submit(self._tell, posted, "given up")

    async def run(self) -> None:
        """Send what comes, until this is cancelled."""
        while True:
            while not self.waiting:
                self._filled.clear()
                await self._filled.wait()
            posted = self.waiting[0]
            posted.sending = asyncio.create_task(self._deliver(posted.message))
            try:
                outcome = await posted.sending
            except asyncio.CancelledError:
                own = asyncio.current_task()
                if not posted.dropped or (own and own.cancelling()):
                    raise
                outcome = "given up"
            self.waiting.remove(posted)
            await self._node.in_thread(self._tell, posted, outcome)

    def _tell(self, posted: Posted, outcome: Outcome) -> None:
        try:
            posted.on_done(self.to, outcome)
        except Exception as error:
            self._node.counters.report("error", where="acknowledgement", why=type(error).__name__)

    async def _deliver(self, message: Outgoing) -> Outcome:
        """Send a message until it is taken, or until it need not be."""
        pause, header = FIRST_PAUSE, message.header
        while True:
            self.news.clear()
            reason, why = await self._attempt(self.to, message)
            if reason not in ("accepted", "unreachable"):
                self._node.counters.refused_by(self.to, reason, why, header.round)
            if reason in ENDS:
                if ENDS[reason] == "accepted":
                    self._node.counters.acknowledged("out", header.kind)
                return ENDS[reason]
            if not message.lasts and reason not in PASSING:
                return "given up"
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.news.wait()
            pause = min(2 * pause, self._node.timing.longest_pause)


class Connector(aiohttp.TCPConnector):
    """Connections to members whose certificates are not revoked: one that is kept open may outlast that."""

    def __init__(self, certificate_ok: Callable[[dict[str, Any]], str | None]) -> None:
        super().__init__(limit=0, socket_factory=self._socket)
        self._certificate_ok = certificate_ok
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        self._sockets.add(made)
        return made

    async def connect(self, *arguments: Any, **options: Any) -> aiohttp.connector.Connection:
        """Return a connection, new or kept, before anything is sent."""
        connection = await super().connect(*arguments, **options)
        certificate = connection.transport.get_extra_info("peercert") if connection.transport else None
        why = self._certificate_ok(certificate) if certificate else None
        if why is not None:
            connection.close()
            raise Refused("revoked", why)
        return connection

    async def end(self) -> None:
        """End all connections, those as well that asyncio forgets when TLS is interrupted, or agrees to end slowly."""
        for _ in range(100):
            left = [one for one in self._sockets if one.fileno() >= 0]
            for one in left:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            if not left:
                break
            await asyncio.sleep(0.01)


class Outbound:
    """Whatever is sent."""

    def __init__(self, node: Node, tls: ssl.SSLContext | None) -> None:
        self._node, self._tls, self._timing = node, tls, node.timing
        self._connector = Connector(node.certificate_ok)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=node.timing.connect),
            headers={} if tls else {SENDER: node.me},
        )
        self.queues = {name: SendQueue(name, self._attempt, node) for name in node.members}

    async def run(self) -> None:
        """Send messages and heartbeats until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, queue in self.queues.items():
                    tasks.create_task(queue.run())
                    tasks.create_task(self._keep_beating(name))
        finally:
            await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._connector.end()

    async def _request(self, name: str, method: str, path: str, **options: Any) -> tuple[bool, Any]:
        """Return whether a member has agreed, and its answer."""
        host, port = self._node.members[name]
        scheme = "https" if self._tls else "http"
        url = URL.build(scheme=scheme, host=host, port=port, path=path)
        if self._tls:  # a member's certificate has its name, wherever it runs
            options |= {"ssl": self._tls, "server_hostname": name}
        async with self._session.request(method, url, allow_redirects=False, **options) as response:
            return response.status == 200, await read_json(response.content, LONGEST_ANSWER)

    async def _attempt(self, name: str, message: Outgoing) -> Answer:
        """Send a message once, and return what became of it."""
        loop, timing = asyncio.get_running_loop(), self._timing

        async def body() -> AsyncIterator[bytes | memoryview]:
            for chunk in message.chunks(WRITE):
                deadline.reschedule(loop.time() + timing.stalled)
                yield chunk
                self._node.counters.moved("out", len(chunk))
            deadline.reschedule(loop.time() + timing.answer)

        try:
            async with asyncio.timeout(timing.connect + timing.stalled) as deadline:
                length = {"Content-Length": str(message.size)}
                agreed, answer = await self._request(name, "POST", MESSAGE, data=body(), headers=length)
        except FAILURES as error:
            return "unreachable", in_words(error)
        except Exception as error:
            self._node.counters.report("error", where=MESSAGE, why=type(error).__name__)
            return "error", "something went wrong on this side"
        return ("accepted", "") if agreed else refusal_in(answer)

    async def _keep_beating(self, name: str) -> None:
        """Exchange heartbeats with a member."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.beat(name, self._timing.beat)
            await asyncio.sleep(max(self._timing.heartbeat - (loop.time() - begun), self._timing.heartbeat / 10))

    async def beat(self, name: str, timeout: float) -> None:
        """Exchange one heartbeat with a member."""
        try:
            async with asyncio.timeout(timeout):
                body = json.dumps(self._node.beat()._asdict()).encode()
                agreed, answer = await self._request(name, "POST", BEAT, data=body)
                if not agreed:
                    self._node.presence.unheard(name, refusal_in(answer)[1])
                elif self._node.presence.heard(name, beat_of(answer)):
                    self.queues[name].news.set()
        except FAILURES as error:
            self._node.presence.unheard(name, in_words(error))
        except Exception as error:
            self._node.counters.report("error", where=BEAT, why=type(error).__name__)

    async def ask(self, name: str, timeout: float) -> dict[str, Any]:
        """Return what a member says of itself, or say why it does not."""
        try:
            async with asyncio.timeout(timeout):
                agreed, answer = await self._request(name, "GET", HELLO)
        except FAILURES as error:
            why = in_words(error)
        else:
            if agreed and isinstance(answer, dict):
                return answer
            why = refusal_in(answer)[1]
        host, port = self._node.members[name]
        raise UserError(f"{name} does not answer at {host}:{port} ({why}): start it there, or mend what is named")
