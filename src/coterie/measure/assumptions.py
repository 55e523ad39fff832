"""The constants that convergence theorems assume, estimated where a run stands: for models of any size."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import rng
from ..core.tensors import Tensors, add, mul, norm, rows, split
from ..data.batches import Amount, Batches, Samples, Stream
from ..engines.base import Engine
from ..models.model import Model
from .evaluate import Measured, unfused_attention
from .sharpness import every_client, gaussian, gradient_sums, slope, squared, unit

SINGLE = 32  # samples of every client whose gradients are taken one by one
ITERATIONS = 20  # of the power iteration


class Constants(NamedTuple):
    """Estimates of what theorems call F, L, b^2, sigma_u^2 and sigma_v^2."""

    objective: float  # (1/n) sum_i f_i
    smoothness: float  # the largest modulus of an eigenvalue of any client's Hessian
    dissimilarity: float  # (1/n) sum_i |grad_u f_i|^2 - |grad_u f|^2
    noise_shared: float  # E |grad_u F(xi) - grad_u f_i|^2 of a single sample, mean over the clients
    noise_personal: float  # the same of grad_v


def estimate(engine: Engine, model: Model, models: Tensors, samples: Samples, shared: frozenset[str]) -> Constants:
    """Estimate the constants at every client's own model, over all its data; the noise from some single samples.

    A batch of B samples has a B-th of the noise. F_0 is the first objective minus the least one can reach.

    Reference: FedAvg-P/Scaffold-P, Assumptions 2.1 to 2.3.
    """
    sums = gradient_sums(engine, model, models, samples, shared)
    mean = mul(sums.u, 1 / sums.clients)
    apart = max(0.0, sums.u2 / sums.clients - float(sum(float(g.square().sum()) for g in mean.values())))
    curved = _curvature(engine, model, models, samples)
    noise = _noise(engine, model, models, samples, shared)
    return Constants(sums.loss / sums.clients, float(curved[~curved.isnan()].max()), apart, *noise)


def _curvature(engine: Engine, model: Model, models: Tensors, samples: Samples) -> Tensor:
    """Return [n] the modulus of the largest eigenvalue of each client's Hessian; NaN for a client without samples.

    Found by power iteration; H d is a difference of gradients, because not all layers have a second derivative on all
    engines.
    """
    grad = engine.gradient(model.eval_objective)
    start = gaussian({k: models[k][0] for k in model.parameters}, rng.key(0, "power"))

    def top(tensors: Tensors, stream: Stream) -> Tensor:
        x, frozen = split(tensors, model.parameters)
        # Far enough for the digits there are, and no farther: ReLUs have kinks.
        step = norm(x).clamp(min=1.0) * math.sqrt(max(torch.finfo(v.dtype).eps for v in x.values()))

        def times_hessian(d: Tensors) -> Tensors:
            moved = ({k: v + (sign * step * d[k]).to(v) for k, v in x.items()} for sign in (1, -1))
            ahead, behind = (slope(grad, at, frozen, stream).gradient for at in moved)
            return {k: (v - behind[k]) / (2 * step) for k, v in ahead.items()}

        d, length = unit(start), step
        for _ in range(ITERATIONS):
            product = times_hessian(d)
            d, length = unit(product), norm(product)
        return length

    return every_client(engine, top, models, samples)


def _noise(
    engine: Engine, model: Model, models: Tensors, samples: Samples, shared: frozenset[str]
) -> tuple[float, float]:
    """Return the variance of single gradients, of the shared and of the personal part, mean over the clients."""
    grad = engine.gradient(model.eval_objective)

    def one(tensors: Tensors, stream: Stream) -> tuple[Tensor, Tensor]:
        x, frozen = split(tensors, model.parameters)
        total: Tensors = {}
        squares: list[Tensor] = []
        device = stream.index.device
        for k in range(stream.steps):
            g = {name: v.to(torch.float64) for name, v in grad(x, frozen, stream.batch(k))[0].items()}
            total = add(total, g) if total else g
            squares.append(torch.stack([squared(part, device) for part in split(g, shared)]))
        mean = [squared(mul(part, 1 / stream.steps), device) for part in split(total, shared)]
        unbiased = stream.steps / (stream.steps - 1)
        u, v = (torch.stack(squares).mean(0) - torch.stack(mean)) * unbiased
        return u, v

    steps = np.minimum(samples.sizes, SINGLE)
    sums, clients = [0.0, 0.0], int((steps > 1).sum())
    for few in sorted({int(k) for k in steps if k > 1}):  # side by side where equally many are looked at
        which = np.flatnonzero(steps == few)
        batches = Batches(samples, which, Amount(steps=few), 1, key=0)
        mine = rows(models, torch.from_numpy(which).to(samples.y.device))
        with unfused_attention(), torch.enable_grad():
            found = engine.map(one, mine, batches, keys=[0] * len(which))
        sums = [total + float(part.sum()) for total, part in zip(sums, found, strict=True)]
    return sums[0] / max(clients, 1), sums[1] / max(clients, 1)


def record_constants(experiment: Measured, state: Any) -> dict[str, float]:
    """Return the estimates as columns of a row."""
    e = experiment
    return estimate(e.engine, e.model, e.program.models(state), e.train, frozenset(e.program.shared))._asdict()
