"""Leads the shards of a run from exchange to exchange, and moves the shards of lost workers to those that are left.

Messages between shards go from machine to machine through Ray's object store: this process has only references.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from ..core.errors import UserError
from ..core.tensors import Integers, Tensors
from ..measure.rows import whole
from ..store.checkpoint import save_part
from ..training.settings import Cluster
from .packed import pack, unpack
from .shard import tree
from .shard_thread import DONE, FAILED, SWAP
from .start import IO, PING, TIMEOUT, WorkerHandle, check_running, start_workers
from .worker import Job

GLANCE = 5.0  # seconds without an answer, after which Ray's own processes are looked at
PATIENCE = 60.0  # seconds without an answer, after which workers are asked whether they are alive
ATTEMPTS = 3  # how often a worker is started anew within one round, where all were lost


T = TypeVar("T")


class WorkerLost(Exception):  # noqa: N818
    """A worker, or a state that only it had, is gone."""


@dataclass
class Coordinator:
    """The workers of a run, and which of them has which shard."""

    ray: Any
    cluster: Cluster
    workers: list[WorkerHandle]
    shard_of: Integers  # [n] the shard of each client
    stacked: frozenset[str]  # names in a state that have one row per client
    say: Callable[[str], object]
    engine: str = ""
    hosts: list[WorkerHandle] = field(default_factory=list)  # the worker of each shard
    round: int = 0
    states: list[Any] = field(default_factory=list)  # references: each shard's state after ``round`` rounds
    revived: int = 0
    silent: set[int] = field(default_factory=set)  # processes of workers that were told of

    @property
    def shards(self) -> int:
        """The number of shards."""
        return int(self.shard_of.max()) + 1

    def local_clients(self, shard: int) -> Integers:
        """Return the clients of a shard."""
        return np.flatnonzero(self.shard_of == shard)

    def prepare(self, job: Job, samples: Sequence[Any], engine: str) -> str:
        """Send the run to the workers, and the samples once to every machine; return why the engine was chosen."""
        self.job = [self.ray.put(job), *(self.ray.put(v) for v in samples)]
        self.hosts = [self.workers[s % len(self.workers)] for s in range(self.shards)]
        largest = int(np.bincount(self.shard_of).max())
        try:
            self._get([w.actor.prepare.remote(*self.job) for w in self.workers])
            self.engine, reason = self._get([self.workers[0].actor.choose.remote(engine, largest)])[0]
            self._host(range(self.shards))
        except WorkerLost as lost:
            raise UserError(f"a worker was lost before the run began ({lost}): give it more memory") from lost
        return str(reason)

    def _host(self, shards: Sequence[int]) -> None:
        """Give shards to their workers, with their states after the latest round where there are any."""
        calls = []
        for s in shards:
            state = (self.round, self.states[s]) if self.states else ()
            calls.append(self.hosts[s].actor.host.remote(s, self.shard_of, self.engine, *state))
        self._get(calls)

    def restore(self, round: int, tensors: Tensors) -> None:
        """Continue all shards from a checkpoint."""
        self.round, self.states = round, []
        for s in range(self.shards):
            clients = torch.from_numpy(self.local_clients(s))
            own = {k: v[clients] if k in self.stacked else v for k, v in tensors.items()}
            self.states.append(self.ray.put(pack(own)))
        self._retry(lambda: self._host(range(self.shards)))

    def start(self) -> None:
        """Compute the states before the first round."""
        _, self.states = self.call("start")

    def run_round(self, t: int, evaluate: bool) -> list[Any]:
        """Run round ``t``; return every shard's measurements. It is finished when each state is on two machines."""

        def once() -> tuple[list[Any], list[Any]]:
            check_running()
            measures, states = self._attempt("run_round", t, evaluate)
            self._copy_away(states)
            return measures, states

        measures, states = self._retry(once)
        self.states, self.round, self.revived = states, t + 1, 0
        return measures

    def call(self, name: str, *args: Any) -> tuple[list[Any], list[Any]]:
        """Call a method of all shards; return (results, references to tensors), even if workers are lost meanwhile."""
        return self._retry(lambda: self._attempt(name, *args))

    def _retry(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except WorkerLost as lost:
                self._recover(str(lost))

    def _attempt(self, name: str, *args: Any) -> tuple[list[Any], list[Any]]:
        shards = range(self.shards)
        answers = [self._advance(s, (name, *args), None, []) for s in shards]
        while True:
            replies = self._get([answer[0] for answer in answers])
            kinds = {reply.kind for reply in replies}
            if FAILED in kinds:
                self._fail({s: reply.result for s, reply in enumerate(replies) if reply.kind == FAILED})
            assert len(kinds) == 1, f"the shards are at different places: {kinds}"
            if kinds == {DONE}:
                return [reply.result for reply in replies], [answer[1] for answer in answers]
            if kinds == {SWAP}:
                senders = [[s for s in shards if receiver in replies[s].to] for receiver in shards]
                inboxes = [[answers[s][1 + receiver] for s in senders[receiver]] for receiver in shards]
                answers = [self._advance(s, None, senders[s], inboxes[s]) for s in shards]
            else:
                parts = [answer[1] for answer in answers]
                total = tree(parts, lambda s, one, other: self.hosts[s].actor.combine.remote(one, other))
                answers = [self._advance(s, None, None, [total]) for s in shards]

    def _advance(self, shard: int, call: Any, senders: Any, inbox: Sequence[Any]) -> Any:
        step = self.hosts[shard].actor.advance.options(num_returns=1 + self.shards)
        return step.remote(shard, self.shards, call, senders, *inbox)

    def _copy_away(self, states: Sequence[Any]) -> None:
        """Copy each state to a second machine if there is one: the object store of a machine dies with it."""
        copies = []
        for shard, state in enumerate(states):
            other = next((w for w in self.workers if w.node != self.hosts[shard].node), None)
            if other is not None:
                copies.append(other.actor.copy.options(concurrency_group=IO).remote(shard, state))
        self._get(copies)

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """Return the values; raise ``WorkerLost`` where a worker or a machine is gone."""
        errors = self.ray.exceptions
        gone = (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError, errors.NodeDiedError)
        try:
            self._wait([*dict.fromkeys(refs)])
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

    def _wait(self, refs: Sequence[Any]) -> None:
        """Wait for values, and look meanwhile whether those who make them are alive."""
        waited, glance = 0.0, min(GLANCE, PATIENCE)
        while refs and self.ray.wait(refs, num_returns=len(refs), timeout=glance)[1]:
            check_running()
            waited += glance
            if waited >= PATIENCE:
                self._tell_of_silent()

    def _tell_of_silent(self) -> None:
        """Say which workers do not even answer that they are alive, each one once: nobody would know why all wait."""
        for w in self.workers:
            asked = w.actor.about.options(concurrency_group=PING).remote()
            if self.ray.wait([asked], timeout=TIMEOUT / 6)[1] and w.process not in self.silent:
                self.silent.add(w.process)
                self.say(
                    f"the worker of process {w.process} has not answered for {PATIENCE:g} s, and all wait for it: let "
                    "it go on if it was stopped, or kill it, and the others take over its clients"
                )

    def _fail(self, errors: dict[int, BaseException]) -> NoReturn:
        """Raise what went wrong on a shard; a worker that ran out of memory is lost."""
        for shard, error in errors.items():
            out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if out_of_memory or "can't allocate memory" in str(error):  # torch says that of a CPU's in words only
                self.ray.kill(self.hosts[shard].actor)
                raise WorkerLost("out of memory") from error
        raise min(errors.values(), key=str)  # of several clients the same one every time

    def _recover(self, why: str) -> None:
        """Move the shards of lost workers to those that are left, with their states after the last finished round."""
        self.say(f"a worker was lost ({why}): the others go on after round {self.round}")
        self.workers = [w for w in self.workers if self._alive(w)]
        if not self.workers:
            self._revive(why)
        left = {id(w) for w in self.workers}
        orphans = [s for s in range(self.shards) if id(self.hosts[s]) not in left]
        for shard in orphans:
            load = [sum(host is w for host in self.hosts) for w in self.workers]
            self.hosts[shard] = self.workers[load.index(min(load))]
        try:
            self._host(orphans)
        except WorkerLost as lost:
            self._recover(str(lost))

    def _alive(self, w: WorkerHandle) -> bool:
        """Return whether a worker answers; one that does not is killed, so that nobody waits for it."""
        try:
            self.ray.get(w.actor.about.options(concurrency_group=PING).remote(), timeout=TIMEOUT)
        except self.ray.exceptions.RayError:
            self.ray.kill(w.actor)
            return False
        return True

    def _revive(self, why: str) -> None:
        """Start a new worker where none is left."""
        self.revived += 1
        if self.revived > ATTEMPTS:
            raise UserError(
                f"every worker was lost in round {self.round + 1} ({why}): give them more memory, or take more of them"
            )
        self.workers = start_workers(self.ray, self.cluster, 1)
        self._get([w.actor.prepare.remote(*self.job) for w in self.workers])

    def write(self, states: Sequence[Any], stem: Path) -> dict[str, str]:
        """Write every shard's part of a checkpoint, all at the same time; return the files with their SHA-256."""
        paths = [stem.with_name(f"{stem.name}.part-{s:03d}.safetensors") for s in range(self.shards)]
        sums = []
        for shard, path in enumerate(paths):
            write = self.hosts[shard].actor.write.options(concurrency_group=IO)
            clients = self.local_clients(shard)
            sums.append(write.remote(str(path.resolve()), clients, self.stacked, states[shard]))
        return {path.name: self._checksum(s, states[s], path, sums[s]) for s, path in enumerate(paths)}

    def _checksum(self, shard: int, state: Any, path: Path, written: Any) -> str:
        """Return the SHA-256 of a part; write it here if its worker is lost or has another disk than this process."""
        try:
            checksum: str = self._get([written])[0]
            if path.exists():
                return checksum
        except WorkerLost:
            pass
        clients = self.local_clients(shard)
        try:
            return save_part(path, unpack(self._get([state])[0]), clients, self.stacked)
        except WorkerLost as lost:
            raise UserError(
                f"what {len(clients)} clients had was lost with several machines at once "
                f"({lost}): go on from the last checkpoint with --resume"
            ) from lost

    def by_owner(self, refs: Sequence[Any]) -> list[dict[str, Tensors]]:
        """Return the tensors of each shard that are named ``owner/name``, by their owner."""
        shards: list[dict[str, Tensors]] = []
        for packed in self._get(refs):
            shards.append({})
            for name, v in unpack(packed).items():
                owner, _, own = name.partition("/")
                shards[-1].setdefault(owner, {})[own] = v
        return shards

    def gathered(self, states: Sequence[Any]) -> Tensors:
        """Return the state of all clients, in this process."""
        parts = [unpack(packed) for packed in self._get(states)]
        rows = {k: whole([(self.local_clients(s), part[k]) for s, part in enumerate(parts)]) for k in self.stacked}
        return {k: rows.get(k, v) for k, v in parts[0].items()}

    def shut_down(self) -> None:
        """End all workers."""
        for w in self.workers:
            self.ray.kill(w.actor)
