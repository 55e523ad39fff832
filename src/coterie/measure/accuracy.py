"""How often models are right. Measuring changes nothing: no gradients, no buffers, no random draws."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..batches import Amount, Batches, Integers, Samples, Stream
from ..engines.base import Engine
from ..problem import Model
from ..tensors import Tensors

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
def quietly() -> Iterator[None]:
    """No gradients, and attention without its fused inference kernel, which cannot be lifted over clients."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def personal_accuracies(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """[m] the accuracy of each client's own model on its own test samples; NaN for a client without any.

    A sample with several targets, as a row of tokens, counts with the share of them that is right.
    """

    def count(tensors: Tensors, stream: Stream) -> Tensor:
        right = torch.zeros((), dtype=torch.int64, device=stream.index.device)
        for k in range(stream.steps):
            batch = stream.batch(k)
            correct = hits(model.outputs(tensors, batch.x), batch.y)
            right = right + (correct if batch.mask is None else correct & _along(batch.mask, correct)).sum()
        return right

    batches = Batches(tests, clients, Amount(epochs=1), at_a_time(tests.y), key=None)
    with quietly():
        right: Tensor = engine.map(count, models, batches, keys=[0] * len(clients))
    return right.cpu().to(torch.float64) / torch.from_numpy(tests.sizes[clients] * tests.y.shape[1:].numel())


def _along(mask: Tensor, answers: Tensor) -> Tensor:
    """[B] as [B, 1, ...]: what holds for a sample holds for all its answers."""
    return mask.view(-1, *[1] * (answers.dim() - 1))


def global_accuracy(model: Model, tensors: Tensors, tests: Samples) -> float:
    """The accuracy of one model on all test samples together."""
    with quietly():
        right = [hits(model.outputs(tensors, batch.x), batch.y) for batch in tests.parts(at_a_time(tests.y))]
    return float(torch.cat(right).to(torch.float64).mean())
