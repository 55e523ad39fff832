"""The process that Ray runs on a machine of the cluster: it has some shards."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from .. import __version__
from ..algorithms.base import Algorithm
from ..core.errors import UserError
from ..core.memory import retain_freed_memory
from ..core.tensors import Integers, Tensors, Tree, add, leaves, tree_map, with_leaves
from ..data import Federation
from ..models.model import Model
from ..store.checkpoint import save_part
from ..training.experiment import Experiment
from ..training.prepare import prepared_elsewhere
from ..training.select_engine import Choice, select_engine
from .packed import Packed, pack, unpack
from .shard import Shard
from .shard_thread import DONE, FAILED, Request

DIVISION = ("train", "test", "classes", "origin", "transform", "validation")  # of a federation, beside its samples
# Of an experiment, equal on all workers.
FIELDS = ("metrics", "settings", "first")


class Reply(NamedTuple):
    """A request of a shard without its messages, which travel beside it."""

    kind: str
    to: tuple[int, ...]  # the shards that it has a message for
    result: Any


class WorkerInfo(NamedTuple):
    """The first answer of a worker."""

    versions: dict[str, str]  # must be the same everywhere
    node: str  # the machine it is on
    process: int


@dataclass(frozen=True)
class Job:
    """An experiment without its samples, of which every machine has one copy for all its workers."""

    model: Model
    federation: Callable[..., Federation]  # takes the samples
    forms: Tree  # of training and test samples and their targets: inputs may be several
    algorithm: Algorithm
    fields: Mapping[str, Any]  # FIELDS of the experiment
    device: str

    def experiment(self, samples: Sequence[NDArray[Any]]) -> Experiment:
        """Return the experiment with all clients."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and nobody writes to them
            tensors = [torch.from_numpy(v) for v in samples]
        federation = self.federation(*with_leaves(self.forms, tensors)).to(self.device)
        model = replace(self.model, module=self.model.module.to(self.device))
        return prepared_elsewhere(model, federation, self.algorithm, self.fields)


def job_payload(e: Experiment, device: str) -> tuple[Job, list[NDArray[Any]]]:
    """Return what every worker needs: the job, and the samples as arrays."""
    fed = e.federation
    division = {name: getattr(fed, name) for name in DIVISION}
    fields = {name: getattr(e, name) for name in FIELDS} | {"settings": e.settings.computing()}
    model = replace(e.model)  # a copy has no cached properties
    samples = fed.x, fed.y, fed.test_x, fed.test_y
    forms = tree_map(lambda v: v.new_empty(0), samples)
    job = Job(model, partial(Federation, **division), forms, e.algorithm, fields, device)
    return job, [v.numpy() for v in leaves(samples)]


class Worker:
    """Some shards of a run, and copies of other machines' states."""

    def __init__(self, search: Sequence[str] = ()) -> None:
        """Extend the module path by that of the program that began the run; some of it may not exist here."""
        sys.path.extend(path for path in search if path not in sys.path)
        self.retained = ExitStack()  # memory that one round frees, for the next
        self.shards: dict[int, Shard] = {}
        self.copies: dict[int, list[Packed]] = {}

    def about(self) -> WorkerInfo:
        """Return the versions and the machine of this worker."""
        ray = sys.modules.get("ray")
        node = ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""
        return WorkerInfo({"coterie": __version__, "torch": torch.__version__}, node, os.getpid())

    def prepare(self, job: Job, *samples: NDArray[Any]) -> None:
        """Take on a run in place of the one before."""
        for shard in self.shards.values():
            shard.thread.close()
        self.shards, self.copies = {}, {}
        self.retained.close()
        self.retained.enter_context(retain_freed_memory())
        self.experiment = job.experiment(samples)

    def choose(self, text: str, clients: int) -> tuple[str, str]:
        """Return the full name of the engine for shards of that size, and why it was chosen."""
        choice = self._choice(text, clients)
        return choice.engine.name, choice.reason

    def _choice(self, text: str, clients: int) -> Choice:
        return select_engine(text, self.experiment, clients)

    def host(self, number: int, shard_of: Integers, engine: str, round: int = 0, state: Packed | None = None) -> None:
        """Take on a shard: before the first round, or with its state after ``round`` rounds."""
        inner = self._choice(engine, int((shard_of == number).sum())).engine
        tensors = None if state is None else unpack(state, self.experiment.federation.y.device)
        self.shards[number] = Shard(self.experiment, inner, shard_of, number, round, tensors)

    def advance(
        self, number: int, shards: int, call: tuple[Any, ...] | None, senders: Sequence[int] | None, *inbox: Packed
    ) -> list[Any]:
        """Bring a shard to its next exchange: begin ``call``, or go on with what the other shards have sent.

        ``senders``: the shards that the inbox is from; None: it is a sum. Returns the reply and a message, or None,
        for each of the ``shards``.
        """
        shard = self.shards[number]
        if call is not None:
            request = shard.begin(*call)
        else:
            parts = [unpack(packed) for packed in inbox]
            answer: Any = parts[0] if senders is None else dict(zip(senders, parts, strict=True))
            request = shard.thread.proceed(answer)
        result, messages = _result(request)
        packed = {d: pack(tensors) for d, tensors in messages.items()}
        return [Reply(request.kind, tuple(packed), result), *(packed.get(d) for d in range(shards))]

    def combine(self, one: Packed, other: Packed) -> Packed:
        """Add two parts of a sum."""
        return pack(add(unpack(one), unpack(other)))

    def copy(self, number: int, state: Packed) -> None:
        """Keep a copy of the latest two states of another machine's shard."""
        self.copies[number] = [*self.copies.get(number, [])[-1:], state]

    def write(self, path: str, clients: Integers, stacked: frozenset[str], state: Packed) -> str:
        """Write a shard's part of a checkpoint; return its SHA-256."""
        return save_part(Path(path), unpack(state), clients, stacked)


def _result(request: Request) -> tuple[Any, Mapping[int, Tensors]]:
    """Return what a request has beside its messages, as it can travel, and the messages."""
    if request.kind == DONE:
        result, tensors = request.result
        return result, {0: tensors}
    if request.kind == FAILED:
        error: BaseException = request.result
        if not isinstance(error, UserError):
            error.add_note("It happened on a worker:\n" + "".join(traceback.format_exception(error)))
        return error.with_traceback(None), {}
    return None, request.messages
