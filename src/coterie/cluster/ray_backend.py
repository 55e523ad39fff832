"""An experiment whose clients are on the workers of a Ray cluster; ``fit`` runs it like any other."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.schema import Row
from ..core.spec import parse
from ..core.tensors import Integers, Tensors
from ..measure.convergence import BY_CLIENT
from ..measure.rows import joined, whole
from ..models.model import Model
from ..store.checkpoint import Checkpoint
from ..training.client import Client, common_parts, unfolded
from ..training.experiment import Experiment, RunState
from ..training.settings import Cluster
from .coordinator import Coordinator
from .shard import COMMON, outline
from .start import connected, workers_for
from .worker import job_payload


@dataclass(frozen=True)
class RemoteState:
    """The states of all clients after a round: references to the workers' memory."""

    coordinator: Coordinator
    states: list[Any]

    def write(self, stem: Path) -> dict[str, str]:
        """Write a checkpoint in parts."""
        return self.coordinator.write(self.states, stem)

    def gathered(self) -> Tensors:
        """Return the whole state, in this process."""
        return self.coordinator.gathered(self.states)


@dataclass(frozen=True)
class RayBackend:
    """Rounds that the workers run."""

    experiment: Experiment
    coordinator: Coordinator

    def start(self) -> RunState:
        """Return the state before the first round."""
        self.coordinator.start()
        return self._now()

    def restored(self, saved: Checkpoint) -> RunState:
        """Continue from a checkpoint, whichever engine wrote it."""
        self.coordinator.restore(saved.round, saved.tensors)
        return self._now()

    def run_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, Row]:
        """Run round ``t``; return the state after it and its row of measurements."""
        measures = self.coordinator.run_round(t, evaluate)
        e = self.experiment
        values, row = joined(measures, t, e.metrics, e.federation, e.program.finetune is not None)
        return self._now()._replace(values=values), row

    def saved(self, now: RunState) -> RemoteState:
        """Return what a checkpoint consists of; the workers write it themselves."""
        state: RemoteState = now.state
        return state

    def clients(self, state: RemoteState, t: int) -> Sequence[Client]:
        """Return every client's own model after round ``t``, the latest."""
        _, refs = self.coordinator.call("clients", self.coordinator.round)
        return gathered_clients(self.coordinator.by_owner(refs), self.coordinator.shard_of, self.experiment.modules(t))

    def values(self, state: RemoteState, after_train: Any, t: int) -> Tensors | None:
        """Return [n, metrics] of every client, by protocol."""
        coordinator = self.coordinator
        each, _ = coordinator.call("values", coordinator.round)
        if each[0] is None:
            return None
        return {k: whole([(coordinator.local_clients(s), one[k]) for s, one in enumerate(each)]) for k in each[0]}

    def _now(self) -> RunState:
        return RunState(RemoteState(self.coordinator, self.coordinator.states), torch.empty(0))


def gathered_clients(shards: Sequence[dict[str, Tensors]], shard_of: Integers, models: Sequence[Model]) -> list[Client]:
    """Return all clients; what several shards have sent the same, as a server's model, is in memory once."""
    known: list[Tensors] = []
    clients = []
    parts = [{k: _once(part, known) for k, part in common_parts(s.get(COMMON, {})).items()} for s in shards]
    for i, (shard, model) in enumerate(zip(shard_of.tolist(), models, strict=True)):
        client = unfolded(shards[shard].get(str(i), {}), parts[shard], model)
        same = next((k for k, part in enumerate(known) if part is client.shared), None)
        clients.append(replace(client, same=same))
    return clients


def _once(part: Tensors, known: list[Tensors]) -> Tensors:
    """Return the equal one among those that are ``known``, or this one, which is known from now on."""
    for other in known:
        if part.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in part.items()):
            return other
    known.append(part)
    return part


@contextmanager
def ray_backend(
    experiment: Experiment, engine: str, cluster: Cluster, say: Callable[[str], object]
) -> Iterator[tuple[RayBackend, str, str]]:
    """Yield a backend on a cluster, the engine's full name, and why that engine was chosen.

    ``engine``: ray, or with the engine of a worker, as in ray:serial or ray:vectorized:16.
    """
    if elsewhere := [name for name in experiment.settings.record if name not in BY_CLIENT]:
        raise UserError(f"--record {elsewhere[0]} is not measured on a cluster: leave it out")
    graph = experiment.program.topology
    if graph is not None and graph.uses:
        raise UserError(
            f"the topology {graph.name} uses all clients' {' and '.join(sorted(graph.uses))}, which no worker of a "
            "cluster has: choose another engine, or a topology of the round alone"
        )
    with connected(cluster) as ray:
        workers = workers_for(ray, cluster, experiment.federation.clients)
        shape, shard_of = outline(experiment), assign_shards(costs(experiment), len(workers))
        check_store(ray, shape.bytes * len(shard_of), say)
        coordinator = Coordinator(ray, cluster, workers, shard_of, shape.stacked, say)
        try:
            payload = job_payload(experiment, "cuda" if cluster.gpus_per_worker else "cpu")
            reason = coordinator.prepare(*payload, str((*parse(engine).args, "auto")[0]))
            backend = RayBackend(experiment, coordinator)
            yield backend, f"ray:{coordinator.engine}", f"{len(workers)} workers; {reason}"
        finally:
            coordinator.shut_down()


def check_store(ray: Any, state: int, say: Callable[[str], object]) -> None:
    """Say so where the states of two rounds do not fit into the object store: Ray then keeps some on its disk."""
    store = int(ray.cluster_resources().get("object_store_memory", 0))
    if 2 * state > store:
        say(
            f"the clients' states of two rounds ({2 * state / 1e9:.1f} GB) are larger than Ray's object store "
            f"({store / 1e9:.1f} GB): what does not fit is spilled to its disk, which takes time"
        )


def costs(experiment: Experiment) -> NDArray[np.float64]:
    """Return [n] the cost of one pass over each client's samples: their number times the FLOPs of its model.

    The models are those of the first round: variants that change over the rounds change for all clients alike, and
    only ratios matter.
    """
    e = experiment
    flops = np.full(e.federation.clients, float(e.flops_per_sample(e.model)))
    submodels = e.program.submodels
    for a in [] if submodels is None else submodels(e.everybody(0)):
        flops[a.places] = e.flops_per_sample(a.submodel.model)
    return flops * e.train.sizes


def assign_shards(cost: NDArray[np.float64], shards: int) -> Integers:
    """Return [n] the shard of each client: the costliest client first, each to the shard with the least work so far.

    >>> assign_shards(np.array([1.0, 4.0, 2.0, 3.0]), 2).tolist()
    [0, 0, 1, 1]
    """
    shard_of = np.empty(len(cost), np.int64)
    least = [(0.0, 0, shard) for shard in range(shards)]  # the work of a shard, its clients, its number
    for client in np.argsort(-cost, kind="stable").tolist():
        work, clients, shard = heapq.heappop(least)
        shard_of[client] = shard
        heapq.heappush(least, (work + float(cost[client]), clients + 1, shard))
    return shard_of
