"""What models are evaluated by: what metrics say of their answers, and how far apart they are.

Measuring changes nothing: no gradients, no buffers, no random draws.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import UserError
from ..core.process_wide import ProcessWide
from ..core.rng import torch_draws
from ..core.tensors import Integers, Tensors, Tree, count, floating, pick, replicate, split, to_device
from ..data.batches import Amount, Batch, Batches, Samples
from ..engines.base import Engine
from ..models.model import Model, products
from .metric import MetricLike, Metrics, natural, task_of

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
def plain_inference(model: Model) -> Iterator[None]:
    """Compute no gradients, and attention without its fused inference kernel, which cannot be lifted over clients."""
    with unfused_attention() if model.attends else nullcontext(), torch.no_grad():
        yield


@ProcessWide
@contextmanager
def unfused_attention() -> Iterator[None]:
    """Compute attention without the kernel that torch has for inference."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@dataclass(frozen=True)
class Answers:
    """What metrics keep of a model's answers, place by place of a batch."""

    model: Model
    metrics: Metrics
    rates: tuple[float, ...] = ()
    pace: None = None
    independent: bool = True  # padding has no part in what is kept

    def at(self, rates: Sequence[float | Tensor]) -> "Answers":
        """Return the step itself: it has no rates."""
        return self

    def begin(self, given: Tensor) -> Tensor:
        """Return what was kept before."""
        return given

    def __call__(self, kept: Tensor, tensors: Tensors, batch: Batch) -> Tensor:
        """Add the statistics of every sample of a batch."""
        each = self.metrics.statistics(self.model.outputs(tensors, batch.x, batch.mask), batch.y)
        each = each if batch.mask is None else torch.where(batch.mask[:, None] > 0, each, 0.0)
        return kept + F.pad(each, (0, 0, 0, len(kept) - len(each)))

    def end(self, kept: Tensor) -> Tensor:
        """Return what is kept."""
        return kept


def sample_statistics(
    engine: Engine, model: Model, models: Tensors, tests: Samples, clients: Integers, metrics: Metrics
) -> Tensor:
    """Return [samples, width] what is kept of each client's model on its own samples, one client after another.

    A pass of the engine takes one batch of every client that has so many: what it carries is one batch wide, however
    many samples the largest client has, and an engine that builds programs has one for all of them.

    NumPy puts the few numbers of each sample in order, here and where they are read: torch would wake a thread for
    every core and wait for all of them, which took up to 35 ms where cores are virtual.
    """
    wide, sizes = tests.evaluation_batch, tests.sizes[clients]
    width = min(wide, int(tests.sizes.max(initial=0)))
    starts = np.cumsum(sizes) - sizes
    kept = torch.empty(int(sizes.sum()), metrics.width, dtype=metrics.task.dtype)
    with products(model.precision), plain_inference(model):
        for step in range(-(-int(sizes.max(initial=0)) // wide)):
            who = np.flatnonzero(sizes > step * wide)
            batches = Batches(tests, clients[who], Amount(steps=1), wide, key=None, first=step)
            none = torch.zeros(len(who), width, metrics.width, dtype=metrics.task.dtype, device=tests.y.device)
            mine = models if len(who) == len(clients) else chosen_rows(models, who)
            found: Tensor = engine.scan(Answers(model, metrics), none, mine, batches, keys=[0] * len(who))
            place = step * wide + np.arange(width)
            own = place < np.minimum(sizes[who], (step + 1) * wide)[:, None]
            kept.numpy()[(starts[who][:, None] + place)[own]] = found.cpu().numpy()[own]
    return kept


def chosen_rows(models: Tensors, which: Integers) -> Tensors:
    """Return the models of some clients; one model that all have is not copied for each of them."""
    return {
        k: v[:1].expand(len(which), *v.shape[1:]) if v.stride(0) == 0 else pick(v, which) for k, v in models.items()
    }


class CommonModel(NamedTuple):
    """One model for all, and what it is worth."""

    model: Tensors
    each: Tensor  # [m, metrics] on the test samples of each local client
    places: Tensor  # [s] this shard's share of all test samples
    statistics: Tensor  # [s, width] what is kept of them


def personal_values(
    engine: Engine,
    model: Model,
    models: Tensors,
    tests: Samples,
    clients: Integers,
    metrics: Metrics,
    known: CommonModel | None = None,
) -> Tensor:
    """Return [m, metrics] of each client's own model on its own test samples; NaN where a metric is not defined.

    ``known``: what one model is worth, which is not tried again where everybody has that model.
    """
    one = {} if known is None or len(known.each) != len(clients) else known.model
    same = (k in one and v.stride(0) == 0 and v.data_ptr() == one[k].data_ptr() for k, v in models.items())
    if known is not None and all(same):
        return known.each
    return metrics.values(sample_statistics(engine, model, models, tests, clients, metrics), tests.sizes[clients])


def measure_common(
    engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers, metrics: Metrics
) -> CommonModel:
    """Measure one model on every client's own test samples, and keep its statistics on all there are.

    Every sample is answered once, whoever owns it, where one process has all clients; unless the company of a client's
    own samples matters to the answers.
    """
    few = torch.arange(min(len(tests.y), 4), device=tests.y.device)
    if len(clients) == len(tests.owned) and model.is_batch_independent(tests.batch(few, None, None).x):
        places, kept = pooled_statistics(engine, model, tensors, tests, clients, metrics)
        own = torch.from_numpy(kept.numpy()[tests.flat])
        return CommonModel(tensors, metrics.values(own, tests.sizes), places, kept)
    kept = sample_statistics(engine, model, replicate(tensors, len(clients)), tests, clients, metrics)
    each = metrics.values(kept, tests.sizes[clients])
    if tests.divided:
        return CommonModel(tensors, each, torch.cat([tests.owned[i].cpu() for i in clients]), kept)
    return CommonModel(tensors, each, *pooled_statistics(engine, model, tensors, tests, clients, metrics))


def pooled_statistics(
    engine: Engine, model: Model, tensors: Tensors, tests: Samples, clients: Integers, metrics: Metrics
) -> tuple[Tensor, Tensor]:
    """Return what is kept of one model over all test samples there are, whoever owns them: which, and [s, width].

    A shard tries its share of them: part b of those dealt out falls to the shard of client b mod n.
    """
    pooled = tests.dealt
    mine = np.flatnonzero(np.isin(np.arange(len(pooled.owned)) % len(tests.owned), clients))
    kept = sample_statistics(engine, model, replicate(tensors, len(mine)), pooled, mine, metrics)
    return torch.cat([pooled.owned[b] for b in mine] or [torch.empty(0, dtype=torch.int64)]), kept


def global_accuracy(engine: Engine, model: Model, tensors: Tensors, tests: Samples) -> float:
    """Return the accuracy of one model on all test samples together."""
    metrics = metrics_for(model, tests.batch(torch.arange(1, device=tests.y.device)).x, tests.y, ["accuracy"])
    _, kept = pooled_statistics(engine, model, tensors, tests, np.arange(len(tests.owned)), metrics)
    return float(metrics.value(kept))


def metrics_for(model: Model, x: Tree, y: Tensor, given: Sequence[MetricLike]) -> Metrics:
    """Return metrics for what a model answers to the first inputs ``x``, and for all targets ``y``.

    Those that do not fit are refused. Without any given it is the one that suits the task and the loss, or none.
    """
    device = next(iter(model.start.values())).device  # also where there are shapes alone
    with plain_inference(model), torch_draws(device=device):
        outputs = model.outputs(model.start, to_device(x, device))
    task = task_of(outputs, y, model.loss)
    return Metrics.of(given or natural(task, model.loss), task, outputs, y[: count(x)].to(device))


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
        if center is None and v.stride(0) == 0:  # one tensor shown n times, as with a server: nothing to copy
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
