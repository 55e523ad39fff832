"""Messages and heartbeats between one peer and all others: HTTP over mutual TLS, in one thread with a loop of its own.

The answer to a request is the acknowledgement, and nothing else is: under TLS 1.3 a client that is refused sees its
writes succeed, and TCP takes many minutes to notice a link that is cut.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ...core.errors import UserError
from .address import check_loopback
from .admission import BACKLOG
from .http import Beat, Receiver, Timing, in_words
from .inbound import Inbound
from .message import Outgoing
from .node import Counters, Node, Presence
from .outbound import Outbound, Posted

__all__ = ["Beat", "Receiver", "Timing", "Transport"]

LEAVING = 1.0  # seconds for telling all others


class Transport:
    """One peer's connections to all others.

    Args:
        me: The name of this peer.
        members: Where everybody listens; this peer may be among them.
        listen: Where this peer listens.
        receiver: Who takes messages; called in threads.
        beat: What this peer says of itself in heartbeats; called on the loop, so it must not wait.
        hello: What it says to ``ask``; called in a thread.
        on_event: Called with the name of an event and its fields, in any thread.
        server_tls: TLS for whoever connects; None for plain HTTP, on 127.0.0.1 only.
        client_tls: TLS for connecting to others.
        certificate_ok: A reason to refuse a certificate that was valid when its connection began, else None.
        timing: Seconds for everything.
    """

    def __init__(
        self,
        me: str,
        members: Mapping[str, tuple[str, int]],
        listen: tuple[str, int],
        *,
        receiver: Receiver,
        beat: Callable[[], Beat],
        hello: Callable[[], dict[str, Any]],
        on_event: Callable[..., None],
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        certificate_ok: Callable[[dict[str, Any]], str | None] = lambda certificate: None,
        timing: Timing = Timing(),  # noqa: B008
    ) -> None:
        if server_tls is None or client_tls is None:
            check_loopback({**members, f"{me} itself": listen})
        others = {name: where for name, where in members.items() if name != me}
        counters = Counters(others, on_event)
        presence = Presence(others, timing.alive, counters.report_of)
        pool = ThreadPoolExecutor(len(others) + 4, "coterie-net")
        self._beat, self._leaving = beat, False
        self._node = Node(
            me=me,
            members=others,
            receiver=receiver,
            beat=self._own_beat,
            hello=hello,
            certificate_ok=certificate_ok,
            counters=counters,
            presence=presence,
            pool=pool,
            timing=timing,
        )
        self._listen, self._server_tls, self._client_tls = listen, server_tls, client_tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, and begin to exchange heartbeats."""
        host, port = self._listen
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}:{port} ({in_words(error)}): "
                "choose another address in listen, or end the program that has it"
            ) from error
        listening.setblocking(False)
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening, started), name="coterie-net", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, listening: socket.socket, started: threading.Event) -> None:
        try:  # the usual loop of Windows cannot wait for a socket that listens
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._main(listening, started))
        finally:
            started.set()  # whatever has happened

    async def _main(self, listening: socket.socket, started: threading.Event) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._on_error)
        self._outbound = Outbound(self._node, self._client_tls)
        inbound = Inbound(self._node, self._server_tls, lambda name: self._outbound.queues[name].news.set())
        with listening:
            tasks = [asyncio.create_task(inbound.serve(listening)), asyncio.create_task(self._outbound.run())]
            for task in tasks:
                task.add_done_callback(self._on_end)
            started.set()
            await self._closing.wait()
            self._leaving = True
            await asyncio.gather(*(self._outbound.beat(name, LEAVING) for name in self._node.members))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None

    def _own_beat(self) -> Beat:
        beat = self._beat()
        return beat._replace(state="leaving") if self._leaving else beat

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report what asyncio would log, without anything that somebody has sent."""
        where = str(context.get("message", "loop")).split("(")[0]  # what a callback was given comes behind it
        self._node.counters.report("error", where=where, why=type(context.get("exception")).__name__)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._node.counters.report("error", where="transport", why=repr(error))

    def close(self) -> None:
        """Tell all others that this peer leaves, and end; what is still queued is neither sent nor given up."""
        if self._loop is not None and self._thread is not None:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        self._node.pool.shutdown(cancel_futures=True)

    def post(self, to: str, message: Outgoing, on_done: Callable[[str, str], None]) -> None:
        """Queue a message; ``on_done(to, "accepted" | "late" | "given up")`` is called in a thread when it is settled.

        What a receiver takes may be sent again until it says so, hence twice. A message is given up when the receiver
        refuses it, or when those of two later rounds wait behind it, unless it lasts.
        """
        queue = self._outbound.queues[to]
        self._call(queue.put, Posted(message, on_done))

    def drop(self, before_round: int) -> None:
        """Give up what does not last of earlier rounds."""
        for queue in self._outbound.queues.values():
            self._call(queue.drop, before_round)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None:
            raise RuntimeError("the transport is closed")
        self._loop.call_soon_threadsafe(function, *arguments)

    def alive(self) -> dict[str, Beat]:
        """Return what those members say of themselves that are there, or have left seconds ago ("leaving")."""
        return self._node.presence.alive()

    def ask(self, name: str, timeout: float) -> dict[str, Any]:
        """Return the hello of a member; for that, this transport need not be started."""

        async def once() -> dict[str, Any]:
            outbound = Outbound(self._node, self._client_tls)
            try:
                return await outbound.ask(name, timeout)
            finally:
                await outbound.close()

        return asyncio.run(once())

    def snapshot(self) -> dict[str, Any]:
        """Return all counts as they are now: bytes, messages, refusals, when each member was last heard."""
        return {**self._node.counters.snapshot(), "last_answer": self._node.presence.answered()}
