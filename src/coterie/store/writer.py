"""Checkpoints written beside the training, so seldom that it hardly notices."""

import math
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from types import TracebackType
from typing import NamedTuple

import torch

from ..core.schema import Row
from .checkpoint import Saved
from .folder import RunFolder

SHARE = 0.05  # of the time may be spent on writing


class Unsaved(NamedTuple):
    """The state after ``round`` rounds, which no checkpoint holds yet."""

    round: int
    state: Saved


class Writer:
    """Keeps a run's rounds in its folder; use it in a ``with`` statement.

    One checkpoint at a time is written, by a thread: a state never changes once a round has made it, so the next round
    can train meanwhile. While one is under way, and until what it took is SHARE of the time since, states are passed
    over. However the ``with`` statement ends, the last one is saved.
    """

    def __init__(self, folder: RunFolder, say: Callable[[str], object]) -> None:
        self.folder, self.say = folder, say
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._under_way: futures.Future[float] | None = None  # or the last one that was; gives when the next is due
        self._unsaved: Unsaved | None = None

    def __enter__(self) -> "Writer":
        # The thread is there before the first checkpoint: a Ctrl-C while the pool starts it would make the pool forget
        # it and start another one, and two threads would write into one file.
        self._thread.submit(int).result()
        return self

    def keep(self, row: Row, state: Saved) -> None:
        """The row of one more round, and the state after it when the time has come.

        Raises what went wrong with the checkpoint before.
        """
        self.folder.append(row)
        self._unsaved = Unsaved(row["round"], state)
        if self._under_way is not None and not self._under_way.done():
            return
        due = -math.inf if self._under_way is None else self._under_way.result()
        if monotonic() >= due:
            self._begin(self._unsaved)

    def wait(self) -> None:
        """Until nothing is under way, through any Ctrl-C: half of a file helps nobody, and it is raised afterwards."""
        interrupted: KeyboardInterrupt | None = None
        while self._under_way is not None and not self._under_way.done():
            try:
                futures.wait([self._under_way])  # joining the thread would take it for dead after a Ctrl-C
            except KeyboardInterrupt as error:
                interrupted = error
        if self._under_way is not None:
            self._under_way.result()
        if interrupted is not None:
            raise interrupted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unsaved is not None and not self._failed():
            self._begin(self._unsaved)
        if kind is KeyboardInterrupt and self._under_way is not None and not self._under_way.done():
            self.say("saving the last finished round")
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _failed(self) -> bool:
        return self._under_way is not None and self._under_way.done() and self._under_way.exception() is not None

    def _begin(self, state: Unsaved) -> None:
        """Hands a state to the thread, behind whatever it is writing."""
        self._under_way = self._thread.submit(self._write, state, _beside_the_training(state.state))
        self._unsaved = None

    def _write(self, state: Unsaved, place: AbstractContextManager[object]) -> float:
        """Writes a checkpoint and returns when the next one is due."""
        began = monotonic()
        with place:
            self.folder.save(state.round, state.state)
        ended = monotonic()
        return ended + (ended - began) / SHARE


def _beside_the_training(state: Saved) -> AbstractContextManager[object]:
    """Where to copy tensors of a GPU: in a queue of their own, behind what has made them but before what comes now."""
    device = next((v.device for v in state.values() if v.is_cuda), None) if isinstance(state, dict) else None
    if device is None:
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
