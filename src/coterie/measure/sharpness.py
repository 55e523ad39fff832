"""The loss around the clients' models, over all their data: slopes, sharpness, curvature, slices.

Models are in evaluation mode. Means go over all samples of a client, gathered in float64 from its batches, so that
the size of a batch changes nothing but the memory. Measuring changes nothing: no buffers, no random draws.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import rng
from ..core.tensors import Integers, Tensors, Tree, add, dot, entries, mul, norm, rows, split, tree_map
from ..data.batches import ANSWERS, Amount, Batch, Batches, Samples, Stream
from ..engines.base import Engine, Grad
from ..models.model import Model
from .evaluate import unfused_attention

NUMBERS = 2**26  # gradient entries that are held at a time


class Slope(NamedTuple):
    """The loss of one client and its gradient."""

    loss: Tensor
    gradient: Tensors


def data_mean(f: Callable[[Batch], Tree], stream: Stream) -> Tree:
    """Return the mean over all samples of a client, in float64, of what ``f`` gives as the mean of a batch."""

    def weighted(k: int) -> tuple[Tree, Tensor | int]:
        batch = stream.batch(k)
        size = len(batch.y) if batch.mask is None else batch.mask.sum()
        return tree_map(lambda v: v.to(torch.float64) * size, f(batch)), size

    total, seen = weighted(0)
    for k in range(1, stream.steps):
        part, size = weighted(k)
        total, seen = tree_map(torch.add, total, part), seen + size
    return tree_map(lambda v: v / seen, total)


def slope(grad: Grad, x: Tensors, frozen: Tensors, stream: Stream) -> Slope:
    """Return the loss and its gradient in ``x`` over all samples of one client."""

    def of_batch(batch: Batch) -> Slope:
        g, seen = grad(x, frozen, batch)
        return Slope(seen.loss, g)

    mean: Slope = data_mean(of_batch, stream)
    return mean


def on_clients(
    engine: Engine, f: Callable[..., Tree], models: Tensors, samples: Samples
) -> Iterator[tuple[Integers, Tree]]:
    """Apply ``f`` to the model and the batches of all clients with samples: yield (which, results), some at a time."""
    known = np.flatnonzero(samples.sizes)
    at_a_time = max(1, NUMBERS // entries(v[0] for v in models.values()))
    for start in range(0, len(known), at_a_time):
        which = known[start : start + at_a_time]
        batches = Batches(samples, which, Amount(epochs=1), ANSWERS, key=None)
        mine = rows(models, torch.from_numpy(which).to(samples.y.device))
        with unfused_attention(), torch.enable_grad():
            results = engine.map(f, mine, batches, keys=[0] * len(which))
        yield which, results


def every_client(engine: Engine, f: Callable[..., Tensor], models: Tensors, samples: Samples) -> Tensor:
    """Return [n, ...] what ``f`` gives for each client; NaN for a client without samples."""
    which, results = zip(*on_clients(engine, f, models, samples), strict=True)
    values = torch.cat(results).cpu()
    out = torch.full((len(samples.owned), *values.shape[1:]), torch.nan, dtype=torch.float64)
    return out.index_copy(0, torch.from_numpy(np.concatenate(which)), values)


class GradientSums(NamedTuple):
    """Sums over all clients that have samples."""

    clients: int
    loss: float  # f_i
    u: Tensors  # grad_u f_i
    u2: float  # |grad_u f_i|^2
    v2: float  # |grad_v f_i|^2


def gradient_sums(
    engine: Engine, model: Model, models: Tensors, samples: Samples, shared: Collection[str]
) -> GradientSums:
    """Sum the losses and gradients over all clients; u: the trained parameters in ``shared``, v: the others."""
    grad = engine.gradient(model.eval_objective)

    def one(tensors: Tensors, stream: Stream) -> tuple[Tensor, Tensors, Tensor, Tensor]:
        x, frozen = split(tensors, model.parameters)
        here = slope(grad, x, frozen, stream)
        u, v = split(here.gradient, shared)
        return here.loss, u, squared(u, stream.index.device), squared(v, stream.index.device)

    sums = GradientSums(0, 0.0, {}, 0.0, 0.0)
    for which, (loss, u, u2, v2) in on_clients(engine, one, models, samples):
        some = {k: g.sum(0) for k, g in u.items()}
        sums = GradientSums(
            sums.clients + len(which),
            sums.loss + float(loss.sum()),
            add(sums.u, some) if sums.u else some,
            sums.u2 + float(u2.sum()),
            sums.v2 + float(v2.sum()),
        )
    return sums


def sharpness(engine: Engine, model: Model, models: Tensors, samples: Samples, rho: float) -> Tensor:
    """Return [n] F_i(x + rho g/|g|) - F_i(x) with g = grad F_i(x): 0 where g is 0, NaN for a client without samples.

    Reference: Foret et al., "Sharpness-Aware Minimization", 2021, equation 2.
    """
    grad = engine.gradient(model.eval_objective)

    def rise(tensors: Tensors, stream: Stream) -> Tensor:
        x, frozen = split(tensors, model.parameters)
        here = slope(grad, x, frozen, stream)
        length = norm(here.gradient)
        scale = torch.where(length > 0, rho / length, 0.0)
        worst = {k: v + (scale * here.gradient[k]).to(v) for k, v in x.items()}
        there: Tensor = data_mean(lambda batch: model.eval_objective(worst, frozen, batch)[0], stream)
        return torch.where(length > 0, there - here.loss, 0.0)

    return every_client(engine, rise, models, samples)


def top_eigenvalue(engine: Engine, model: Model, models: Tensors, samples: Samples, iterations: int = 50) -> Tensor:
    """Return [n] the eigenvalue of largest magnitude of each client's Hessian, by power iteration; NaN without samples.

    d <- H d / |H d| from a fixed Gaussian vector; the answer is <d, H d> after the last iteration.
    """
    start = gaussian({k: models[k][0] for k in model.parameters}, rng.key(0, "power"))

    def curved(x: Tensors, frozen: Tensors, d: Tensors, batch: Batch) -> Tree:
        def along(at: Tensors) -> Tensor:
            return dot(torch.func.grad(lambda y: model.eval_objective(y, frozen, batch)[0])(at), d)

        return torch.func.grad(along)(x)

    def top(tensors: Tensors, stream: Stream) -> Tensor:
        x, frozen = split(tensors, model.parameters)

        def times_hessian(d: Tensors) -> Tensors:
            rounded = {k: v.to(x[k]) for k, v in d.items()}
            hd: Tensors = data_mean(lambda batch: curved(x, frozen, rounded, batch), stream)
            return hd

        d = start
        for _ in range(iterations):
            d = unit(times_hessian(d))
        return dot(d, times_hessian(d))

    return every_client(engine, top, models, samples)


def loss_slice(
    engine: Engine, model: Model, models: Tensors, samples: Samples, grid: Sequence[float], seed: int = 0
) -> Tensor:
    """Return [n, A, A] F_i(x + a d + b e) for a and b in ``grid``, along two Gaussian directions; NaN without samples.

    Each filter of d and e is as long as the filter of x in its place; what is no matrix (biases, norms) stays.

    Reference: Li et al., "Visualizing the Loss Landscape of Neural Nets", 2018, section 4.
    """
    one = {k: models[k][0] for k in model.parameters}
    drawn = [gaussian(one, rng.key(seed, "slice", j)) for j in range(2)]

    def values(tensors: Tensors, stream: Stream) -> Tensor:
        x, frozen = split(tensors, model.parameters)
        d, e = (filterwise(direction, x) for direction in drawn)

        def loss_at(a: float, b: float) -> Tensor:
            at = add(add(x, d, a), e, b)
            loss: Tensor = data_mean(lambda batch: model.eval_objective(at, frozen, batch)[0], stream)
            return loss

        return torch.stack([loss_at(a, b) for a in grid for b in grid]).view(len(grid), len(grid))

    return every_client(engine, values, models, samples)


def filterwise(d: Tensors, x: Tensors) -> Tensors:
    """Return d with every filter (row) scaled to the length it has in x, and 0 for whatever has no rows."""

    def scaled(direction: Tensor, weight: Tensor) -> Tensor:
        if weight.dim() < 2:
            return torch.zeros_like(weight)
        wanted, given = (v.flatten(1).square().sum(1).sqrt() for v in (weight, direction))
        return (direction * (wanted / given).view(-1, *[1] * (weight.dim() - 1))).to(weight)

    return {k: scaled(v, x[k]) for k, v in d.items()}


def gaussian(x: Tensors, key: int) -> Tensors:
    """Draw standard normal numbers in the shapes of x, in float64, the same for the same key."""
    draw = torch.Generator().manual_seed(key)
    return {k: torch.randn(v.shape, generator=draw, dtype=torch.float64).to(v.device) for k, v in x.items()}


def unit(x: Tensors) -> Tensors:
    """Return x / |x|, and zeros for zeros."""
    return mul(x, 1 / norm(x).clamp(min=1e-300))


def squared(x: Tensors, device: torch.device) -> Tensor:
    """Return the squared L2 norm over all tensors together in float64, 0 for none."""
    return sum((v.square().sum() for v in x.values()), start=torch.zeros((), dtype=torch.float64, device=device))
