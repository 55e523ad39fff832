"""What runs the rounds of an experiment: this process, or the workers of a cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from ..core.schema import Row
from ..core.tensors import Tensors
from ..store.checkpoint import Checkpoint, Saved
from .client import Client
from .cluster import Cluster
from .experiment import Experiment
from .select_engine import Choice
from .state import RunState


class Backend(Protocol):
    """What runs the rounds: an experiment in this process, or one on a cluster."""

    def start(self) -> RunState:
        """Return the state before the first round."""

    def restored(self, saved: Checkpoint) -> RunState:
        """Return the state that a checkpoint holds."""

    def run_round(self, before: RunState, t: int, evaluate: bool) -> tuple[RunState, Row]:
        """Run a round, and return its row of measurements."""

    def saved(self, now: RunState) -> Saved:
        """Return the state as a checkpoint holds it."""

    def clients(self, state: Any, t: int) -> Sequence[Client]:
        """Return every client's own model after round ``t``, the latest."""

    def values(self, state: Any, after_train: Tensor, t: int) -> Tensors | None:
        """Return [n, metrics] of every client, by protocol."""


@contextmanager
def backend_of(
    experiment: Experiment, chosen: Choice | None, engine: str, there: Cluster | None, say: Callable[[str], object]
) -> Iterator[tuple[Backend, str, str]]:
    """Yield what runs the rounds of an experiment, the name of its engine, and why it is that one."""
    if chosen is not None:
        yield experiment, chosen.engine.name, chosen.reason
    elif there is not None:
        from ..cluster.ray_backend import ray_backend  # of no use to anybody else

        with ray_backend(experiment, engine, there, say) as found:
            yield found
