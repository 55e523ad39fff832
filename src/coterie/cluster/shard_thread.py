"""A thread that stops wherever its work needs the other shards, and goes on with what they send.

A worker may have several shards, and all of them must reach an exchange before any of them passes it. So each shard
works in a thread of its own, and the worker can run the next shard while this one waits.
"""

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from ..core.tensors import Tensors

SWAP, TOTAL, DONE, FAILED = "swap", "total", "done", "failed"


class Abandoned(BaseException):
    """Raised in a task that nobody waits for any more."""


class Request(NamedTuple):
    """What a task needs from the other shards, or how it ended."""

    kind: str
    messages: Mapping[int, Tensors] = {}  # SWAP: by receiving shard; TOTAL: this shard's part of the sum, under 0
    result: Any = None  # DONE: what the work returned; FAILED: what it raised


class Task:
    """Some work in the shard's thread, and the queues between that thread and the worker's."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.requests: SimpleQueue[Request] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()

    def ask(self, request: Request) -> Any:
        """Send a request from the shard's thread and wait for the answer."""
        self.requests.put(request)
        answer = self.answers.get()
        if answer is Abandoned:
            raise Abandoned
        return answer

    def run(self) -> None:
        """Do the work in the shard's thread."""
        try:
            self.requests.put(Request(DONE, result=self.work()))
        except Abandoned:
            pass
        except BaseException as error:
            self.requests.put(Request(FAILED, result=error))


class ShardThread:
    """One task after another in one thread; beginning a task abandons the one before it."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.current: Task | None = None  # the task that somebody waits for
        self.running: Task | None = None  # the task in the thread
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None:
            self.running = task
            task.run()
            self.running = None
            del task  # its result must not be kept until the next task

    def begin(self, work: Callable[[], Any]) -> Request:
        """Run ``work`` until it needs other shards or has ended."""
        self.abandon()
        self.current = Task(work)
        self.tasks.put(self.current)
        return self._next_request(self.current)

    def proceed(self, answer: Any) -> Request:
        """Continue the current task with the answer to its request."""
        assert self.current is not None
        self.current.answers.put(answer)
        return self._next_request(self.current)

    def _next_request(self, task: Task) -> Request:
        request = task.requests.get()
        if request.kind in (DONE, FAILED):
            self.current = None
        return request

    def abandon(self) -> None:
        """End the current task at its next exchange."""
        if self.current is not None:
            self.current.answers.put(Abandoned)
            self.current = None

    def close(self) -> None:
        """End the thread."""
        self.abandon()
        self.tasks.put(None)

    def swap(self, out: Mapping[int, Tensors]) -> Mapping[int, Tensors]:
        """Send tensors to other shards and return what they send here, by shard; only the running task calls this."""
        assert self.running is not None
        answer: Mapping[int, Tensors] = self.running.ask(Request(SWAP, out))
        return answer

    def total(self, x: Tensors) -> Tensors:
        """Return the sum over all shards; only the running task calls this."""
        assert self.running is not None
        answer: Tensors = self.running.ask(Request(TOTAL, {0: x}))
        return answer
