"""What models are evaluated by: how often they are right, and how far apart they are.

Measuring changes nothing: no gradients, no buffers, no random draws.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tensors, floating, replicate, split
from ..data.batches import Amount, Batch, Batches, Integers, Samples
from ..engines.base import Engine
from ..models.model import Model, products

AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # numbers that are looked at together: they stay in the cache, or fill a GPU


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

    def consensus_model(self, state: Any) -> Tensors: ...


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
        correct = self.model.outputs(tensors, batch.x, batch.mask).argmax(1) == batch.y
        if batch.mask is not None:  # what holds for a sample holds for all its answers
            correct = correct & batch.mask.view(-1, *[1] * (correct.dim() - 1))
        return right + correct.sum()

    def end(self, right: Tensor) -> Tensor:
        """Return the count."""
        return right


def count_right(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """Return [m] how many answers of each client's model are right on its own test samples."""
    batches = Batches(tests, clients, Amount(epochs=1), tests.evaluation_batch, key=None)
    none = torch.zeros(len(clients), dtype=torch.int64, device=tests.x.device)
    with products(model.precision), plain_inference():
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
    pooled = tests.dealt
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
    return {"global_accuracy_train": global_accuracy(e.engine, e.model, e.consensus_model(state), e.train)}


def consensus_distance(models: Tensors, shared: Collection[str], center: Tensors | None = None) -> float | None:
    """Return (1/n) sum_i |u_i - c|^2 over the shared part, summed in float64; None where nothing is shared.

    ``center``: c, where it is another point than the mean of the u_i. Some numbers of a tensor are looked at together:
    a copy of all of them is too much. They are seen from the first client: differences of near numbers are exact, and
    zero where all are equal.

    >>> consensus_distance({"u": torch.tensor([[1.0], [3.0]])}, {"u"})
    1.0
    """
    u = floating(split(models, shared)[0])
    if not u:
        return None
    distance = 0.0
    for name, v in u.items():
        if center is None and v.stride(0) == 0:  # one tensor shown n times, as around a server: nothing to copy
            continue
        flat, kind = v.reshape(len(v), -1), torch.promote_types(v.dtype, torch.float32)
        width = max(1, AT_ONCE[v.device.type] // len(v))
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        for start in range(0, flat.shape[1], width):
            columns = slice(start, start + width)
            some = flat[:, columns].to(kind)
            offset = some - some[0]
            middle = offset.mean(0) if center is None else center[name].reshape(-1)[columns].to(kind) - some[0]
            total += offset.sub_(middle).square_().sum(dtype=torch.float64)
        distance += float(total) / len(v)
    return distance


def averaged(models: Tensors) -> Tensors:
    """Return one model: the mean over the clients; integer buffers are the first client's."""
    return {k: v.mean(0) if v.is_floating_point() else v[0] for k, v in models.items()}
