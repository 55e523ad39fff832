"""How often models are right. Measuring changes nothing: no gradients, no buffers, no random draws."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..batches import Amount, Batches, Integers, Samples, Stream
from ..engines.base import Engine
from ..problem import Model
from ..tensors import Tensors

BATCH = 256  # samples at a time


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
    """[m] the accuracy of each client's own model on its own test samples; NaN for a client without any."""

    def count(tensors: Tensors, stream: Stream) -> Tensor:
        right = torch.zeros((), dtype=torch.int64, device=stream.x.device)
        for k in range(stream.steps):
            batch = stream.batch(k)
            correct = hits(model.outputs(tensors, batch.x), batch.y)
            right = right + (correct if batch.mask is None else correct & batch.mask).sum()
        return right

    batches = Batches(tests, clients, Amount(epochs=1), BATCH, key=None)
    with quietly():
        right: Tensor = engine.map(count, models, batches, keys=[0] * len(clients))
    return right.cpu().to(torch.float64) / torch.from_numpy(tests.sizes[clients])


def global_accuracy(model: Model, tensors: Tensors, x: Tensor, y: Tensor) -> float:
    """The accuracy of one model on all test samples together."""
    with quietly():
        right = [hits(model.outputs(tensors, x[i : i + BATCH]), y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    return float(torch.cat(right).to(torch.float64).mean())
