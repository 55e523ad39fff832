"""A program that stops wherever it needs the other shards, and goes on with what they send.

It runs in a thread of its own, so that whoever plays it can do something else while it waits: a worker may have
several shards, and all of them must come to an exchange before any of them passes it.
"""

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from ..core.tensors import Tensors


class Abandoned(BaseException):
    """Nobody waits for this play any more."""


class Swap(NamedTuple):
    """Something for other shards; what they have for this one is wanted."""

    out: Mapping[int, Tensors]


class Total(NamedTuple):
    """A part of a sum, which is wanted."""

    part: Tensors


class Done(NamedTuple):
    """What it came to."""

    result: Any


class Failed(NamedTuple):
    """What went wrong."""

    error: BaseException


Request = Swap | Total | Done | Failed


class Task:
    """One performance; only the program's own thread may call ``swap`` and ``total``."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.heard: SimpleQueue[Any] = SimpleQueue()
        self.said: SimpleQueue[Request] = SimpleQueue()

    def ask(self, question: Request) -> Any:
        """Says it and waits for the answer."""
        self.said.put(question)
        answer = self.heard.get()
        if answer is Abandoned:
            raise Abandoned
        return answer

    def perform(self) -> None:
        """From beginning to end."""
        try:
            self.said.put(Done(self.work()))
        except Abandoned:
            pass
        except BaseException as error:
            self.said.put(Failed(error))


class ShardThread:
    """Plays one program after another; to begin another abandons the one before."""

    def __init__(self) -> None:
        self.plays: SimpleQueue[Task | None] = SimpleQueue()
        self.now: Task | None = None
        self.playing: Task | None = None  # in the thread
        Thread(target=self._thread, daemon=True).start()

    def _thread(self) -> None:
        while (play := self.plays.get()) is not None:
            self.playing = play
            play.perform()
            self.playing = None
            del play  # what it came to is not held until the next one

    def begin(self, work: Callable[[], Any]) -> Request:
        """Until it needs others or has ended."""
        self.close_play()
        self.now = Task(work)
        self.plays.put(self.now)
        return self._listen(self.now)

    def proceed(self, answer: Any) -> Request:
        """On with what it has asked for."""
        assert self.now is not None
        self.now.heard.put(answer)
        return self._listen(self.now)

    def _listen(self, play: Task) -> Request:
        said = play.said.get()
        if isinstance(said, Done | Failed):
            self.now = None
        return said

    def close_play(self) -> None:
        """Whatever is under way comes to nothing at its next exchange."""
        if self.now is not None:
            self.now.heard.put(Abandoned)
            self.now = None

    def close(self) -> None:
        """Ends the thread."""
        self.close_play()
        self.plays.put(None)

    def swap(self, out: Mapping[int, Tensors]) -> Mapping[int, Tensors]:
        """For the program: to other shards and from them."""
        assert self.playing is not None
        answer: Mapping[int, Tensors] = self.playing.ask(Swap(out))
        return answer

    def total(self, x: Tensors) -> Tensors:
        """For the program: the sum over all shards."""
        assert self.playing is not None
        answer: Tensors = self.playing.ask(Total(x))
        return answer
