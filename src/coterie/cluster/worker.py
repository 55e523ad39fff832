"""The process that has some shards: what Ray runs on a machine of the cluster."""

import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import __version__
from ..algorithms.base import Algorithm, Problem
from ..algorithms.bind import bind
from ..core.tensors import add
from ..data import Federation
from ..data.batches import Integers
from ..engines import Serial
from ..engines.base import Engine
from ..measure import MeasureName
from ..models.model import Model
from ..store.parts import save_part
from ..training import memory
from ..training.experiment import Experiment
from ..training.first import First
from ..training.select_engine import Choice, select_engine
from .packed import Packed, pack, unpack
from .shard import Shard, ShardContext
from .shard_thread import Done, Failed, Request, Swap

SWAP, TOTAL, DONE, FAILED = "swap", "total", "done", "failed"


class Reply(NamedTuple):
    """What a shard has come to; what it sends lies beside it."""

    kind: str
    to: tuple[int, ...] = ()  # the shards it has something for
    result: Any = None


class Failure(NamedTuple):
    """An error as it travels: its traceback as a text."""

    error: BaseException
    trace: str


class WorkerInfo(NamedTuple):
    """What is asked of a worker first."""

    versions: dict[str, str]  # must be the same everywhere
    node: str  # the machine it is on


@dataclass(frozen=True)
class Job:
    """A run, without the samples, which lie once on every machine."""

    model: Model
    federation: Callable[..., Federation]  # of the samples
    algorithm: Algorithm
    seed: int
    rounds: int
    drop_messages: float
    record: Sequence[MeasureName]
    evaluate_every: int
    offline: float
    first: First | None
    device: str

    @classmethod
    def of(cls, e: Experiment, device: str) -> "Job":
        """The same experiment, to be sent."""
        fed, model = e.federation, replace(e.model)  # without what it has found out for itself
        train, test, classes, origin, transform = fed.train, fed.test, fed.classes, fed.origin, fed.transform

        def federation(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Federation:
            return Federation(x, y, test_x, test_y, train, test, classes, origin, transform)

        plan = e.seed, e.rounds, e.drop_messages, e.record, e.evaluate_every, e.offline, e.first
        return cls(model, federation, e.algorithm, *plan, device)

    def experiment(self, samples: Sequence[NDArray[Any]]) -> Experiment:
        """With all clients."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they may not be written, and nobody does
            tensors = [torch.from_numpy(v) for v in samples]
        federation = self.federation(*tensors).to(self.device)
        model = replace(self.model, module=self.model.module.to(self.device))
        program = bind(self.algorithm, Problem(model, federation.clients, self.rounds, self.seed), self.offline > 0)
        plan = (
            self.seed,
            self.rounds,
            self.drop_messages,
            self.record,
            self.evaluate_every,
            None,
            self.offline,
            self.first,
        )
        return Experiment(model, federation, self.algorithm, program, Serial(), *plan)


class Worker:
    """Some shards of a run, and copies of what others have."""

    def __init__(self, search: Sequence[str] = ()) -> None:
        """``search``: where the program that began the run finds its own modules; some of it may not exist here."""
        sys.path.extend(path for path in search if path not in sys.path)
        self.keeping = ExitStack()  # memory that one round frees, for the next
        self.shards: dict[int, Shard] = {}
        self.copies: dict[int, list[Packed]] = {}

    def about(self) -> WorkerInfo:
        """Who it is."""
        ray = sys.modules.get("ray")
        node = ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""
        return WorkerInfo({"coterie": __version__, "torch": torch.__version__}, node)

    def prepare(self, job: Job, *samples: NDArray[Any]) -> None:
        """For a run; what was before is forgotten."""
        self.close()
        self.keeping.enter_context(memory.retain_freed_memory())
        self.experiment = job.experiment(samples)

    def close(self) -> None:
        """Forgets the run."""
        for shard in self.shards.values():
            shard.script.close()
        self.shards, self.copies = {}, {}
        self.keeping.close()

    def choose(self, text: str, clients: int) -> tuple[str, str]:
        """The engine for shards of that size, by its full name, and why."""
        choice = self._choice(text, clients)
        return choice.engine.name, choice.reason

    def _choice(self, text: str, clients: int) -> Choice:
        e = self.experiment
        return select_engine(text, e.model, e.federation, e.program, e.rounds, clients)

    def host(self, number: int, owner: Integers, engine: str, round: int = 0, state: Packed | None = None) -> None:
        """Takes on a shard, where it begins or where it stood after ``round`` rounds."""
        inner: Engine = self._choice(engine, int((owner == number).sum())).engine
        at = self.experiment.federation.x.device
        known = None if state is None else unpack(state, at)
        self.shards[number] = Shard(ShardContext(self.experiment, owner, inner), number, round, known)

    def advance(
        self, number: int, others: int, call: tuple[Any, ...] | None, senders: Sequence[int] | None, *inbox: Packed
    ) -> list[Any]:
        """A shard to its next exchange: from the beginning of a call, or on with what others have sent.

        ``senders``: who has sent what is in the box; None: it is a sum. Returns the reply and a message for each
        of ``others`` shards.
        """
        shard = self.shards[number]
        if call is not None:
            said = shard.begin(*call)
        else:
            parts = [unpack(packed) for packed in inbox]
            answer: Any = parts[0] if senders is None else dict(zip(senders, parts, strict=True))
            said = shard.script.proceed(answer)
        return _replied(said, others)

    def combine(self, one: Packed, other: Packed) -> Packed:
        """Two parts of a sum."""
        return pack(add(unpack(one), unpack(other)))

    def hold(self, number: int, state: Packed) -> None:
        """A copy of what a shard of another machine came to, and the one before."""
        self.copies[number] = [*self.copies.get(number, [])[-1:], state]

    def write(self, path: str, clients: NDArray[np.int64], stacked: frozenset[str], state: Packed) -> str:
        """A shard's part of a checkpoint; returns its SHA-256."""
        return save_part(Path(path), unpack(state), clients, stacked)


def _replied(said: Request, others: int) -> list[Any]:
    """What a shard has said, as it travels."""
    if isinstance(said, Failed):
        return [Reply(FAILED, result=_failure(said.error)), *[None] * others]
    if isinstance(said, Done):
        result, tensors = said.result
        return [Reply(DONE, result=result), pack(tensors), *[None] * (others - 1)]
    if isinstance(said, Swap):
        packed = {d: pack(tensors) for d, tensors in said.out.items()}
        return [Reply(SWAP, tuple(packed)), *(packed.get(d) for d in range(others))]
    return [Reply(TOTAL), pack(said.part), *[None] * (others - 1)]


def _failure(error: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(error))
    error.__traceback__ = None
    return Failure(error, trace)
