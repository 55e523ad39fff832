"""An experiment whose clients lie on the workers of a cluster; to the loop it is played like any other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.spec import parse
from ..core.tensors import Tensors
from ..measure.rows import Row
from ..measure.shards import joined, whole
from ..store.checkpoint import Checkpoint
from ..training.cluster import Cluster
from ..training.experiment import Experiment, RunState
from ..training.run import Client, client_from
from .assignment import assigned, costs
from .coordinator import Coordinator
from .shard import outline
from .start import connected, workers
from .worker import Job

NOTHING = torch.empty(0)


@dataclass(frozen=True)
class RemoteState:
    """Where all clients stood after a round: references to what lies on the workers."""

    coordinator: Coordinator
    states: list[Any]

    def write(self, stem: Path) -> dict[str, str]:
        """A checkpoint in parts."""
        return self.coordinator.write(self.states, stem)

    def gathered(self) -> Tensors:
        """All of it, here."""
        return self.coordinator.gathered(self.states)


@dataclass(frozen=True)
class RayBackend:
    """Rounds that the workers play."""

    experiment: Experiment  # what is played
    coordinator: Coordinator

    def start(self) -> RunState:
        """Before the first round."""
        self.coordinator.start()
        return self._now()

    def restored(self, saved: Checkpoint) -> RunState:
        """Where a checkpoint has them, whoever wrote it."""
        self.coordinator.restore(saved.round, saved.tensors)
        return self._now()

    def run_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, Row]:
        """Round ``t`` and its row of measurements."""
        parts = self.coordinator.run_round(t, evaluate)
        e = self.experiment
        accuracies, row = joined(parts, t, e.federation, e.program.finetune is not None)
        return self._now()._replace(accuracies=accuracies), row

    def saved(self, now: RunState) -> RemoteState:
        """What the workers write down themselves."""
        scattered: RemoteState = now.state
        return scattered

    def clients(self, state: RemoteState) -> list[Client]:
        """Every client's own model."""
        _, refs = self.coordinator.perform("clients", self.coordinator.round)
        files = self.coordinator.numbered(refs)
        return [client_from(files[i], model) for i, model in enumerate(self.experiment.modules())]

    def accuracies(self, state: RemoteState, after_train: Any, t: int) -> Tensors | None:
        """[n] every client's, by protocol."""
        coordinator = self.coordinator
        each, _ = coordinator.perform("accuracies", coordinator.round)
        if each[0] is None:
            return None
        return {k: whole([(coordinator.local_clients(s), one[k]) for s, one in enumerate(each)]) for k in each[0]}

    def _now(self) -> RunState:
        return RunState(RemoteState(self.coordinator, self.coordinator.states), NOTHING)


@contextmanager
def ray_backend(
    experiment: Experiment, engine: str, wanted: Cluster, say: Callable[[str], object]
) -> Iterator[tuple[RayBackend, str, str]]:
    """An experiment on the workers of a cluster while it lasts, the engine's full name, and why it was chosen.

    ``engine``: ray, or with the engine of a worker, as in ray:serial or ray:vectorized:16.
    """
    if experiment.record:
        raise UserError(f"--record {experiment.record[0]} is not measured on a cluster: leave it out")
    with connected(wanted) as ray:
        hired = workers(ray, wanted, experiment.federation.clients)
        known, owner = outline(experiment), assigned(costs(experiment), len(hired))
        check_store(ray, known.bytes * len(owner), say)
        coordinator = Coordinator(ray, wanted, hired, owner, known.stacked, say)
        try:
            reason = coordinator.prepare(*job_payload(experiment, wanted), str((*parse(engine).args, "auto")[0]))
            yield (
                RayBackend(experiment, coordinator),
                f"ray:{coordinator.engine}",
                f"{len(hired)} workers; {reason}",
            )
        finally:
            coordinator.dismiss()


def check_store(ray: Any, state: int, say: Callable[[str], object]) -> None:
    """Says so where the states of two rounds do not fit: Ray then has some of them on its disk."""
    store = int(ray.cluster_resources().get("object_store_memory", 0))
    if 2 * state > store:
        say(
            f"the clients' states of two rounds ({2 * state / 1e9:.1f} GB) are larger than Ray's object store "
            f"({store / 1e9:.1f} GB): what does not fit is spilled to its disk, which takes time"
        )


def job_payload(experiment: Experiment, wanted: Cluster) -> tuple[Job, list[NDArray[Any]]]:
    """What every worker needs of a run: the job, and the samples as arrays that a machine holds once."""
    fed = experiment.federation
    samples = [v.numpy() for v in (fed.x, fed.y, fed.test_x, fed.test_y)]
    return Job.of(experiment, "cuda" if wanted.gpus_per_worker else "cpu"), samples
