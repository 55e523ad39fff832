"""The engine for a run: what ``choose`` wants to know, from the model, the data and the method."""

from typing import Any

from ..algorithms.base import Program
from ..data import Federation
from ..data.batches import Batch
from ..models.model import Model
from .choose import Choice, Work, choose

PROBE = 8  # samples to try a model with


def suited(
    engine: str, model: Model, federation: Federation, program: Program[Any], rounds: int, clients: int
) -> Choice:
    """The engine that a text asks for, to run so many of the clients."""
    largest = int(federation.sizes.max())
    batch = min(program.training.batch_size or largest, largest)
    probe = Batch(federation.sample(PROBE), federation.y[:PROBE], None)
    work = Work(clients, batch, rounds * clients * -(-largest // batch))
    return choose(engine, model, probe, work, federation.x.device)
