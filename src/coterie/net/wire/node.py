"""What the server and the client of one peer share."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from .counters import Counters, Presence
from .http import Beat, Receiver, Timing

T = TypeVar("T")


class Node(NamedTuple):
    """One peer, as its transport sees it."""

    me: str
    members: Mapping[str, tuple[str, int]]  # all others: where each listens
    receiver: Receiver
    beat: Callable[[], Beat]
    hello: Callable[[], dict[str, Any]]
    certificate_ok: Callable[[dict[str, Any]], str | None]
    counters: Counters
    presence: Presence
    pool: Executor
    timing: Timing

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return what a call returns that may wait for a disk."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *arguments)
