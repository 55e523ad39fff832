"""Leads the shards of a run from exchange to exchange, and puts lost ones onto the workers that are left.

What passes between shards goes from machine to machine through Ray's object store: here are only references to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from ..core.errors import UserError
from ..core.tensors import Tensors
from ..data.batches import Integers
from ..measure.shards import whole
from ..store.parts import save_part
from ..training.cluster import Cluster
from .packed import pack, unpack
from .shard import tree
from .start import IO, PATIENCE, PING, WorkerHandle, start_workers
from .worker import DONE, FAILED, SWAP, Failure, Job

ATTEMPTS = 3  # workers started anew, where all were lost, before a round is finished


T = TypeVar("T")


class WorkerLost(Exception):  # noqa: N818
    """A worker, or what it had, is gone."""


def starved(error: BaseException) -> bool:
    """Whether there was not enough memory; torch says that of a CPU's in words only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@dataclass
class Coordinator:
    """The workers of a run, and which of them has which shard."""

    ray: Any
    wanted: Cluster
    workers: list[WorkerHandle]
    owner: Integers  # [n] the shard of each client
    stacked: frozenset[str]  # names in a state that have a row a client
    say: Callable[[str], object]
    engine: str = ""
    hosts: list[WorkerHandle] = field(default_factory=list)  # the worker of each shard
    round: int = 0
    states: list[Any] = field(default_factory=list)  # references: each shard after ``round`` rounds
    revived: int = 0

    @property
    def shards(self) -> int:
        """How many there are."""
        return int(self.owner.max()) + 1

    def local_clients(self, shard: int) -> Integers:
        """The clients of a shard."""
        return np.flatnonzero(self.owner == shard)

    def prepare(self, job: Job, samples: Sequence[Any], engine: str) -> str:
        """Brings the run to the workers, the samples once to every machine; returns why the engine was chosen."""
        self.job = [self.ray.put(job), *(self.ray.put(v) for v in samples)]
        self.hosts = [self.workers[s % len(self.workers)] for s in range(self.shards)]
        largest = int(np.bincount(self.owner).max())
        try:
            self._get([w.actor.prepare.remote(*self.job) for w in self.workers])
            self.engine, reason = self._get([self.workers[0].actor.choose.remote(engine, largest)])[0]
            self._get([self._hosted(s) for s in range(self.shards)])
        except WorkerLost as lost:
            raise UserError(f"a worker was lost before the run began ({lost}): give it more memory") from lost
        return str(reason)

    def _hosted(self, shard: int) -> Any:
        state = (self.round, self.states[shard]) if self.states else ()
        return self.hosts[shard].actor.host.remote(shard, self.owner, self.engine, *state)

    def restore(self, round: int, tensors: Tensors) -> None:
        """All shards where a checkpoint has them."""
        self.round, self.states = round, []
        for s in range(self.shards):
            mine = torch.from_numpy(self.local_clients(s))
            own = {k: v[mine] if k in self.stacked else v for k, v in tensors.items()}
            self.states.append(self.ray.put(pack(own)))
        self._surely(lambda: self._get([self._hosted(s) for s in range(self.shards)]))

    def start(self) -> None:
        """Before the first round."""
        _, self.states = self.perform("start")

    def run_round(self, t: int, evaluate: bool) -> list[Any]:
        """Round ``t``: what every shard has measured. It is finished when its states lie on two machines each."""

        def once() -> tuple[list[Any], list[Any]]:
            parts, states = self._attempt("run_round", t, evaluate)
            self._copied(states)
            return parts, states

        parts, states = self._surely(once)
        self.states, self.round, self.revived = states, t + 1, 0
        return parts

    def perform(self, name: str, *args: Any) -> tuple[list[Any], list[Any]]:
        """One work of all shards: (results, references to the tensors), whoever is lost meanwhile."""
        return self._surely(lambda: self._attempt(name, *args))

    def _surely(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except WorkerLost as lost:
                self._recover(str(lost))

    def _attempt(self, name: str, *args: Any) -> tuple[list[Any], list[Any]]:
        answers = [self._advance(s, (name, *args), None, []) for s in range(self.shards)]
        while True:
            replies = self._get([answer[0] for answer in answers])
            kinds = {reply.kind for reply in replies}
            if FAILED in kinds:
                self._fail({s: reply.result for s, reply in enumerate(replies) if reply.kind == FAILED})
            assert len(kinds) == 1, f"the shards are at different places: {kinds}"
            if kinds == {DONE}:
                return [reply.result for reply in replies], [answer[1] for answer in answers]
            if kinds == {SWAP}:
                answers = [self._swapped(d, replies, answers) for d in range(self.shards)]
            else:
                total = tree([answer[1] for answer in answers], self._combined)
                answers = [self._advance(s, None, None, [total]) for s in range(self.shards)]

    def _swapped(self, shard: int, replies: Sequence[Any], answers: Sequence[Any]) -> Any:
        senders = [s for s, reply in enumerate(replies) if shard in reply.to]
        return self._advance(shard, None, senders, [answers[s][1 + shard] for s in senders])

    def _advance(self, shard: int, call: Any, senders: Any, inbox: Sequence[Any]) -> Any:
        step = self.hosts[shard].actor.advance.options(num_returns=1 + self.shards)
        return step.remote(shard, self.shards, call, senders, *inbox)

    def _combined(self, shard: int, one: Any, other: Any) -> Any:
        return self.hosts[shard].actor.combine.remote(one, other)

    def _copied(self, states: Sequence[Any]) -> None:
        """Each state on a second machine, where there is one: the object store of a machine dies with it."""
        acks = []
        for shard, state in enumerate(states):
            own = self.hosts[shard].node
            away = next((w for w in self.workers if w.node != own), None)
            if away is not None:
                acks.append(away.actor.hold.options(concurrency_group=IO).remote(shard, state))
        self._get(acks)

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """The values; Lost where a worker or a machine is gone."""
        errors = self.ray.exceptions
        gone = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError, errors.NodeDiedError)
        try:
            found: list[Any] = self.ray.get(list(refs))
        except (*gone, errors.OutOfMemoryError, errors.ActorUnschedulableError) as error:
            raise WorkerLost(type(error).__name__) from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, (*gone, errors.OutOfMemoryError)):
                raise WorkerLost(type(error.cause).__name__) from error
            if isinstance(error.cause, UserError):
                raise error.cause from None
            missing = re.search(r"No module named '(\S+)'", str(error))
            if missing:
                raise UserError(
                    f"the workers have no module {missing[1]!r}, which the model, its loss or the method is from: "
                    "install it on every machine of the cluster"
                ) from error
            raise
        return found

    def _fail(self, failures: Mapping[int, Failure]) -> NoReturn:
        """Raises what went wrong on a shard, with its own traceback; a worker that ran out of memory is lost."""
        for shard, failure in failures.items():
            if starved(failure.error):
                self.ray.kill(self.hosts[shard].actor)
                raise WorkerLost("out of memory") from failure.error
        error, trace = min(failures.values(), key=lambda f: str(f.error))  # of several clients the same one every time
        if not isinstance(error, UserError):
            error.add_note(f"It happened on a worker:\n{trace}")
        raise error

    def _recover(self, why: str) -> None:
        """Every shard of a lost worker goes to one that is left, as it was after the last finished round."""
        self.say(f"a worker was lost ({why}): the others go on after round {self.round}")
        self.workers = [w for w in self.workers if self._answers(w)]
        if not self.workers:
            self._revive(why)
        left = {id(w) for w in self.workers}
        orphans = [s for s in range(self.shards) if id(self.hosts[s]) not in left]
        for shard in orphans:
            load = [sum(host is w for host in self.hosts) for w in self.workers]
            self.hosts[shard] = self.workers[load.index(min(load))]
        try:
            self._get([self._hosted(s) for s in orphans])
        except WorkerLost as lost:
            self._recover(str(lost))

    def _answers(self, w: WorkerHandle) -> bool:
        """Whether a worker is still there; one that does not answer is ended, so that nobody waits for it."""
        try:
            self.ray.get(w.actor.about.options(concurrency_group=PING).remote(), timeout=PATIENCE)
        except self.ray.exceptions.RayError:
            self.ray.kill(w.actor)
            return False
        return True

    def _revive(self, why: str) -> None:
        """A new worker where none is left."""
        self.revived += 1
        if self.revived > ATTEMPTS:
            raise UserError(
                f"every worker was lost in round {self.round + 1} ({why}): give them more memory, or take more of them"
            )
        self.workers = start_workers(self.ray, self.wanted, 1)
        self._get([w.actor.prepare.remote(*self.job) for w in self.workers])

    def write(self, states: Sequence[Any], stem: Path) -> dict[str, str]:
        """Every shard's part of a checkpoint, all at a time; returns the files with their SHA-256."""
        paths = [stem.with_name(f"{stem.name}.part-{s:03d}.safetensors") for s in range(self.shards)]
        under_way = [self._written(s, states[s], path) for s, path in enumerate(paths)]
        sums = [
            self._secured(s, states[s], path, ref) for (s, path), ref in zip(enumerate(paths), under_way, strict=True)
        ]
        return {path.name: sha for path, sha in zip(paths, sums, strict=True)}

    def _written(self, shard: int, state: Any, path: Path) -> Any:
        write = self.hosts[shard].actor.write.options(concurrency_group=IO)
        return write.remote(str(path.resolve()), self.local_clients(shard), self.stacked, state)

    def _secured(self, shard: int, state: Any, path: Path, under_way: Any) -> str:
        """The SHA-256 of a part; where a worker was lost, or has another disk than this process, it is written here."""
        try:
            sha: str = self._get([under_way])[0]
            if path.exists():
                return sha
        except WorkerLost:
            pass
        try:
            return save_part(path, unpack(self._get([state])[0]), self.local_clients(shard), self.stacked)
        except WorkerLost as lost:
            raise UserError(
                f"what {len(self.local_clients(shard))} clients had was lost with several machines at once "
                f"({lost}): go on from the last checkpoint with --resume"
            ) from lost

    def numbered(self, refs: Sequence[Any]) -> dict[int, Tensors]:
        """Tensors that lie under clients' numbers, client by client."""
        found: dict[int, Tensors] = {}
        for packed in self._get(refs):
            for name, v in unpack(packed).items():
                client, _, own = name.partition("/")
                found.setdefault(int(client), {})[own] = v
        return found

    def dismiss(self) -> None:
        """Nobody is needed any more."""
        for w in self.workers:
            self.ray.kill(w.actor)

    def gathered(self, states: Sequence[Any]) -> Tensors:
        """The state of all clients, here."""
        parts = [unpack(packed) for packed in self._get(states)]
        rows = {k: whole([(self.local_clients(s), part[k]) for s, part in enumerate(parts)]) for k in self.stacked}
        return {k: rows.get(k, v) for k, v in parts[0].items()}
