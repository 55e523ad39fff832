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
from torch.nn import functional as F

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
class Answers:
    """How many answers of a model are right, place by place of its batches."""

    model: Model
    rates: tuple[float, ...] = ()
    independent: bool = True  # padding has no part in what is right

    def at(self, rates: Sequence[float | Tensor]) -> "Answers":
        """Return the step itself: it has no rates."""
        return self

    def begin(self, given: Tensor) -> Tensor:
        """Return the answers that were right before."""
        return given

    def __call__(self, right: Tensor, tensors: Tensors, batch: Batch) -> Tensor:
        """Add those of a batch; a sample with several targets, as a row of tokens, counts with each of them."""
        # The largest output along dimension 1, where ``cross_entropy`` has the classes.
        correct = self.model.outputs(tensors, batch.x, batch.mask).argmax(1) == batch.y
        each = correct.flatten(1).sum(1) if correct.dim() > 1 else correct.to(torch.int64)
        each = each if batch.mask is None else each * batch.mask
        return right + F.pad(each, (0, len(right) - len(each)))

    def end(self, right: Tensor) -> Tensor:
        """Return the answers."""
        return right


def right_answers(engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers) -> Tensor:
    """Return [m, B] the right answers of each client's model to its own samples, by their place in its batches."""
    batches = Batches(tests, clients, Amount(epochs=1), tests.evaluation_batch, key=None)
    width = min(tests.evaluation_batch, int(tests.sizes.max(initial=0)))
    none = torch.zeros(len(clients), width, dtype=torch.int64, device=tests.x.device)
    with products(model.precision), plain_inference():
        right: Tensor = engine.scan(Answers(model), none, models, batches, keys=[0] * len(clients))
    return right.cpu()


class Correct(NamedTuple):
    """Right answers of one model."""

    model: Tensors
    each: Tensor  # [m] on the test samples of each local client
    together: int  # on this shard's share of all test samples


def personal_accuracies(
    engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers, known: Correct | None = None
) -> Tensor:
    """Return [m] the accuracy of each client's own model on its own test samples; NaN for a client without any.

    ``known``: the answers of one model, which are not asked for again where everybody has that model.
    """
    one = {} if known is None or len(known.each) != len(clients) else known.model
    same = (k in one and v.stride(0) == 0 and v.data_ptr() == one[k].data_ptr() for k, v in models.items())
    if known is not None and all(same):
        right = known.each
    else:
        right = right_answers(engine, model, models, tests, clients).sum(1)
    return right.to(torch.float64) / torch.from_numpy(tests.sizes[clients] * tests.y.shape[1:].numel())


def count_correct(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> Correct:
    """Count how often one model is right on every client's own test samples, and on all there are.

    Every sample is answered once, whoever owns it, where one process has all clients; unless the company of a client's
    own samples matters to the answers.
    """
    few = torch.arange(min(len(tests.y), 4), device=tests.x.device)
    if len(clients) == len(tests.owned) and model.answers_alone(tests.batch(few, None, None).x):
        everyone = np.arange(len(tests.dealt.owned))
        right = right_answers(engine, model, replicate(tensors, len(everyone)), tests.dealt, everyone)
        right = right.flatten()[: len(tests.y)]  # all parts but the last one are full
        before = F.pad(right[torch.from_numpy(tests.flat)].cumsum(0), (1, 0))
        starts, ends = torch.from_numpy(tests.starts), torch.from_numpy(tests.starts + tests.sizes)
        return Correct(tensors, (before[ends] - before[starts])[clients], int(right.sum()))
    each = right_answers(engine, model, replicate(tensors, len(clients)), tests, clients).sum(1)
    if tests.divided:
        return Correct(tensors, each, int(each.sum()))
    return Correct(tensors, each, count_correct_global(engine, model, tensors, tests, clients))


def count_correct_global(engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers) -> int:
    """Count how many answers of one model are right, over all test samples there are, whoever owns them.

    A shard tries its share of them: part b of those dealt out falls to the shard of client b mod n.
    """
    pooled = tests.dealt
    mine = np.flatnonzero(np.isin(np.arange(len(pooled.owned)) % len(tests.owned), clients))
    if not len(mine):
        return 0
    return int(right_answers(engine, model, replicate(tensors, len(mine)), pooled, mine).sum())


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
    """Return one model: the mean over the clients; integer buffers are the first client's.

    One model that everybody has is its own mean, to the last digit and in the same memory.
    """
    return {k: v.mean(0) if v.is_floating_point() and v.stride(0) else v[0] for k, v in models.items()}
