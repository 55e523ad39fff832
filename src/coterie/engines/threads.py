"""Several clients at once, each in a thread of its own: torch lets go of Python's lock while it computes.

Torch's generator belongs to all threads, so nothing that draws random numbers can run here: the first draw ends it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread, local

import torch
from torch import Tensor

LISTEN = 0.1  # seconds between two looks for a Ctrl-C
_here = local()  # .crew: what this thread works for, if anything


class RandomnessUsed(BaseException):
    """Random numbers were drawn where several threads share the generator."""


class Stopped(BaseException):
    """Somebody interrupts, or another thread has failed."""


class ClientThreads:
    """Threads that share the clients among themselves."""

    def __init__(self, one: Callable[[int], None], clients: int) -> None:
        self.one = one
        self.waiting = deque(range(clients))
        self.failed: dict[int, BaseException] = {}
        self.stopped = False
        self.done: SimpleQueue[None] = SimpleQueue()  # an entry for every thread that has ended
        self.generator: Tensor = torch.default_generator.get_state()

    def run(self, workers: int) -> None:
        """Run every client; the error of the first one that fails is raised as it is."""
        differentiable = torch.is_grad_enabled()  # a new thread does not know
        threads = [Thread(target=self._work, args=(differentiable,)) for _ in range(workers)]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                self._await_one()
        finally:
            self.stopped = True  # an interruption comes to the thread that waits here: the others have to be told
            for thread in threads:
                if thread.is_alive():
                    thread.join()
        if any(isinstance(error, RandomnessUsed) for error in self.failed.values()):
            raise RandomnessUsed  # whatever else went wrong may have come from shared random numbers
        if self.failed:
            raise self.failed[min(self.failed)]

    def _await_one(self) -> None:
        """Wait until one more thread has ended, in short turns: a Ctrl-C just before a wait is seen after it.

        Not by join: Python 3.11 takes a thread for dead when that is interrupted. Nor by a semaphore: interrupted
        between taking its lock and holding it, nobody else ever gets it.
        """
        while True:
            try:
                return self.done.get(timeout=LISTEN)
            except Empty:
                continue

    def _work(self, differentiable: bool) -> None:
        """Run one client after another."""
        _here.crew = self
        try:
            with torch.set_grad_enabled(differentiable):
                while (i := self._next()) is not None:
                    self._play_one(i)
        finally:
            self.done.put(None)

    def _play_one(self, i: int) -> None:
        try:
            try:
                self.one(i)
            finally:
                self.check()
        except BaseException as error:
            self.failed[i] = error

    def _next(self) -> int | None:
        """Return the next client, none after one has failed: all before it are at work, and end as they would alone."""
        try:
            return None if self.failed else self.waiting.popleft()
        except IndexError:
            return None

    def check(self) -> None:
        """End the calling thread if the others may not go on."""
        if self.stopped:
            raise Stopped
        if not torch.equal(torch.default_generator.get_state(), self.generator):
            raise RandomnessUsed


def check() -> None:
    """End this thread if the others may not go on. It is called often, so that it ends soon."""
    crew: ClientThreads | None = getattr(_here, "crew", None)
    if crew is not None:
        crew.check()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let every thread that begins to compute meanwhile use so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
