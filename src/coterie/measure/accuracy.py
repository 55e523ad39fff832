"""How often models are right. Measuring changes nothing: no gradients, no buffers, no random draws."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tensors, replicate
from ..data.batches import Amount, Batch, Batches, Integers, Samples
from ..engines.base import Engine
from ..models.model import Model

BATCH = 256  # answers at a time


class Measured(Protocol):
    """What a measure sees of an experiment, which stands above it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def model(self) -> Model: ...

    @property
    def train(self) -> Samples: ...

    @property
    def tests(self) -> Samples: ...

    @property
    def program(self) -> Any: ...

    def agreed(self, state: Any) -> Tensors: ...


def batch_size(targets: Tensor) -> int:
    """Return how many samples a batch has: fewer where a sample has many answers, each with a score for every class.

    >>> batch_size(torch.zeros(1000)), batch_size(torch.zeros(1000, 64))
    (256, 4)
    """
    return max(1, BATCH // max(1, targets.shape[1:].numel()))


@contextmanager
def plain_inference() -> Iterator[None]:
    """Compute no gradients, and attention without its fused inference kernel, which cannot be lifted over clients."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@dataclass(frozen=True)
class Count:
    """Right answers of one client's model, batch by batch."""

    model: Model
    rates: tuple[float, ...] = ()
    independent: bool = True  # in evaluation mode

    def at(self, rates: Sequence[float | Tensor]) -> "Count":
        """Return the step itself: it has no rates."""
        return self

    def begin(self, given: Tensor) -> Tensor:
        """Return the answers that were counted before."""
        return given

    def __call__(self, right: Tensor, tensors: Tensors, batch: Batch) -> Tensor:
        """Count a batch; a sample with several targets, as a row of tokens, counts with each of them."""
        # The largest output along dimension 1, where ``cross_entropy`` has the classes.
        correct = self.model.outputs(tensors, batch.x).argmax(1) == batch.y
        if batch.mask is not None:  # what holds for a sample holds for all its answers
            correct = correct & batch.mask.view(-1, *[1] * (correct.dim() - 1))
        return right + correct.sum()

    def end(self, right: Tensor) -> Tensor:
        """Return the count."""
        return right


def count_right(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """Return [m] how many answers of each client's model are right on its own test samples."""
    batches = Batches(tests, clients, Amount(epochs=1), batch_size(tests.y), key=None)
    none = torch.zeros(len(clients), dtype=torch.int64, device=tests.x.device)
    with plain_inference():
        right: Tensor = engine.scan(Count(model), none, models, batches, keys=[0] * len(clients))
    return right.cpu()


def personal_accuracies(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """Return [m] the accuracy of each client's own model on its own test samples; NaN for a client without any."""
    right = count_right(engine, model, models, tests, clients)
    return right.to(torch.float64) / torch.from_numpy(tests.sizes[clients] * tests.y.shape[1:].numel())


class Correct(NamedTuple):
    """Right answers of one model."""

    each: Tensor  # [m] on the test samples of each local client
    together: int  # on this shard's share of all test samples


def count_correct(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> Correct:
    """Count how often one model is right on every client's own test samples, and on all there are.

    Where every sample has one owner these are the same answers, and they are counted once.
    """
    each = count_right(engine, model, replicate(tensors, len(clients)), tests, clients)
    if tests.divided:
        return Correct(each, int(each.sum()))
    return Correct(each, count_correct_global(engine, model, tensors, tests, clients))


def count_correct_global(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> int:
    """Count how many answers of one model are right, over all test samples there are, whoever owns them.

    The samples are dealt out in parts as large as the largest client's own, so that an engine that builds programs has
    this one already. A shard tries its share of them: part b falls to the shard of client b mod n.
    """
    pooled = tests.dealt(max(1, int(tests.sizes.max())))
    mine = np.flatnonzero(np.isin(np.arange(len(pooled.owned)) % len(tests.owned), clients))
    if not len(mine):
        return 0
    return int(count_right(engine, model, replicate(tensors, len(mine)), pooled, mine).sum())


def global_accuracy(engine: Engine, model: Model, tensors: Tensors, tests: Samples) -> float:
    """Return the accuracy of one model on all test samples together."""
    return count_correct_global(engine, model, tensors, tests, np.arange(len(tests.owned))) / tests.y.numel()


def record_train_accuracy(experiment: Measured, state: Any) -> dict[str, float]:
    """Measure the one model that all clients agree on, on all training samples as stored: none is augmented."""
    e = experiment
    if e.train.y.is_floating_point():
        raise UserError("train-accuracy needs classes to get right: leave it out for targets that are no classes")
    return {"global_accuracy_train": global_accuracy(e.engine, e.model, e.agreed(state), e.train)}
