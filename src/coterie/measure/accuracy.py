"""How often models are right. Measuring changes nothing: no gradients, no buffers, no random draws."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tensors, replicate
from ..data.batches import Amount, Batch, Batches, Integers, Samples
from ..engines.base import Engine
from ..models.model import Model
from .measured import Measured

BATCH = 256  # answers at a time


def at_a_time(targets: Tensor) -> int:
    """How many samples a batch has: fewer where a sample has many answers, each with a score for every class.

    >>> at_a_time(torch.zeros(1000)), at_a_time(torch.zeros(1000, 64))
    (256, 4)
    """
    return max(1, BATCH // max(1, targets.shape[1:].numel()))


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Which answers are right: the largest output along dimension 1, where ``cross_entropy`` has the classes."""
    return outputs.argmax(1) == targets


@contextmanager
def plain_inference() -> Iterator[None]:
    """No gradients, and attention without its fused inference kernel, which cannot be lifted over clients."""
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
        """There are none."""
        return self

    def begin(self, given: Tensor) -> Tensor:
        """How many there were already."""
        return given

    def __call__(self, right: Tensor, tensors: Tensors, batch: Batch) -> Tensor:
        """A sample with several targets, as a row of tokens, counts with each of them."""
        correct = hits(self.model.outputs(tensors, batch.x), batch.y)
        return right + (correct if batch.mask is None else correct & _along(batch.mask, correct)).sum()

    def end(self, right: Tensor) -> Tensor:
        """All there are."""
        return right


def count_right(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """[m] how many answers of each client's model are right on its own test samples."""
    batches = Batches(tests, clients, Amount(epochs=1), at_a_time(tests.y), key=None)
    none = torch.zeros(len(clients), dtype=torch.int64, device=tests.x.device)
    with plain_inference():
        right: Tensor = engine.scan(Count(model), none, models, batches, keys=[0] * len(clients))
    return right.cpu()


def personal_accuracies(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """[m] the accuracy of each client's own model on its own test samples; NaN for a client without any."""
    right = count_right(engine, model, models, tests, clients)
    return right.to(torch.float64) / torch.from_numpy(tests.sizes[clients] * tests.y.shape[1:].numel())


def _along(mask: Tensor, answers: Tensor) -> Tensor:
    """[B] as [B, 1, ...]: what holds for a sample holds for all its answers."""
    return mask.view(-1, *[1] * (answers.dim() - 1))


class Correct(NamedTuple):
    """Right answers of one model."""

    each: Tensor  # [m] on the test samples of each client that lies here
    together: int  # on this place's share of all test samples


def count_correct(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> Correct:
    """How often one model is right on every client's own test samples, and on all there are.

    Where every sample has one owner these are the same answers, and they are counted once.
    """
    each = count_right(engine, model, replicate(tensors, len(clients)), tests, clients)
    if tests.divided:
        return Correct(each, int(each.sum()))
    return Correct(each, count_correct_global(engine, model, tensors, tests, clients))


def count_correct_global(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> int:
    """How many answers of one model are right, over all test samples there are, whoever owns them.

    They are dealt out in parts as large as the largest client's own, so that an engine that builds programs has this
    one already. Where several places hold clients, each tries its share: part b falls to who holds client b mod n.
    """
    pooled = tests.dealt(max(1, int(tests.sizes.max())))
    mine = np.flatnonzero(np.isin(np.arange(len(pooled.owned)) % len(tests.owned), clients))
    if not len(mine):
        return 0
    return int(count_right(engine, model, replicate(tensors, len(mine)), pooled, mine).sum())


def global_accuracy(engine: Engine, model: Model, tensors: Tensors, tests: Samples) -> float:
    """The accuracy of one model on all test samples together."""
    return count_correct_global(engine, model, tensors, tests, np.arange(len(tests.owned))) / tests.y.numel()


def record_train_accuracy(experiment: Measured, state: Any) -> dict[str, float]:
    """Of the one model that all clients agree on, on all training samples as they are stored: none is augmented."""
    e = experiment
    if e.train.y.is_floating_point():
        raise UserError("train-accuracy needs classes to get right: leave it out for targets that are no classes")
    return {"global_accuracy_train": global_accuracy(e.engine, e.model, e.agreed(state), e.train)}
