"""A problem small enough to compute: quadratic losses, one minimum per client, gradient noise of known size.

    f_i(u, v) = 1/2 sum_k a_k (u - b_i)_k^2 + 1/2 sum_k c_k (v - d_i)_k^2 + sum_k e_k (u - b_i)_k (v - d_i)_k

Clients differ in (b_i, d_i) alone, so the Hessian is the same for all and every constant of the theorems has a closed
form. A sample adds -<xi, (u, v)>: its gradient is that of f_i minus xi, wherever it is taken. The xi of a client have
mean 0 and mean squared norms sigma_u^2 and sigma_v^2 exactly. A round draws its batches without replacement, unless the
method has ``replacement``.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...core import rng
from ...core.annotations import NonNegative, Positive, Range
from ...core.arguments import checked
from ...core.errors import UserError
from ...data import Federation, from_tensors
from ...data.batches import Amount
from ...models.model import Model

SAMPLES = 64  # of every client


class Quadratic(nn.Module):
    """A module whose sample is (b_i, d_i, xi_u, xi_v) and whose output is its loss."""

    def __init__(self, a: Tensor, c: Tensor, e: Tensor) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros_like(a))
        self.v = nn.Parameter(torch.zeros_like(c))
        self.curves = (a, c, e)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B], the loss of every sample."""
        b, d, xi_u, xi_v = x.chunk(4, dim=1)
        a, c, e = self.curves
        u, v = self.u - b, self.v - d
        curved = (a * u**2 / 2 + c * v**2 / 2 + e * u * v).sum(1)
        return curved - (xi_u * self.u).sum(1) - (xi_v * self.v).sum(1)


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a module whose outputs are losses."""
    return outputs.mean()


class QuadraticProblem(NamedTuple):
    """The quadratic problem of some clients."""

    model: Model
    federation: Federation
    a: Tensor  # [d] the curvature in u
    c: Tensor  # [d] in v
    e: Tensor  # [d] between them
    minima: Tensor  # [n, 2d] (b_i, d_i)
    noise: float  # sigma_u = sigma_v of one sample

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.minima)

    def hessian(self) -> Tensor:
        """Return [2d, 2d], the same for every client."""
        a, c, e = (torch.diag(x) for x in (self.a, self.c, self.e))
        return torch.cat([torch.cat([a, e], 1), torch.cat([e, c], 1)])

    def gradients(self, w: Tensor, minima: Tensor | None = None) -> Tensor:
        """Return the gradients [..., 2d] of f_i at w_i, of f with the given ``minima`` in place of the clients' own."""
        return (w - (self.minima if minima is None else minima)) @ self.hessian()

    def value(self, w: Tensor) -> float:
        """Return (1/n) sum_i f_i(w_i) at w [n, 2d]."""
        away = w - self.minima
        return float((away @ self.hessian() * away).sum() / 2 / self.clients)

    def least(self, personal: bool) -> float:
        """Return the minimum over one u and one v_i per client; over one (u, v) where nothing is personal."""
        if not personal:
            return self.value(self.minima.mean(0).expand_as(self.minima))
        b = (self.minima - self.minima.mean(0))[:, : len(self.a)]
        return float(((self.a - self.e**2 / self.c) * b**2).sum() / 2 / self.clients)

    def variance(self, batch_size: int | None, replacement: bool = False) -> float:
        """Return sigma_u^2 = sigma_v^2 of a batch."""
        return batch_variance(self.noise, batch_size, replacement)


def batch_variance(noise: float, batch_size: int | None, replacement: bool = False) -> float:
    """Return sigma^2 of a batch, drawn from the samples of a client.

    >>> batch_variance(2.0, 4, replacement=True)
    1.0
    """
    size = SAMPLES if batch_size is None else min(batch_size, SAMPLES)
    if replacement:
        return noise**2 / size
    return noise**2 * (SAMPLES - size) / (size * (SAMPLES - 1))


@checked("problem")
def quadratic(
    clients: int,
    seed: int = 0,
    *,
    dim: Annotated[int, Range(1, 10_000)] = 4,
    noise: NonNegative = 0.5,
    spread: NonNegative = 1.0,
    coupling: Annotated[float, Range(0, 1, below=True)] = 0.2,
    smoothness: Positive = 1.0,
    start: float = 2.0,
) -> QuadraticProblem:
    """Return the problem with ``dim`` shared and ``dim`` personal numbers.

    noise: sigma_u and sigma_v of one sample; spread: how far the clients' minima scatter around their mean, which
    lies ``start`` away from the first model, 0, in every coordinate; coupling: e_k / sqrt(a_k c_k), below 1, because
    the losses have no minimum otherwise; smoothness: the largest curvature, the smallest being half of it.

    >>> problem = quadratic(clients=4, noise=0.0)
    >>> problem.variance(1), problem.model.parameters
    (0.0, ('u', 'v'))
    """
    a = c = torch.linspace(smoothness, smoothness / 2, dim, dtype=torch.float64)
    e = coupling * (a * c).sqrt()
    g = torch.Generator().manual_seed(rng.key(seed, "quadratic") % 2**63)
    minima = start + spread * torch.randn(clients, 2 * dim, generator=g, dtype=torch.float64)
    pairs = []
    for own in minima:
        xi = torch.randn(SAMPLES, 2, dim, generator=g, dtype=torch.float64)
        xi = xi - xi.mean(0)
        xi = noise * xi / xi.square().sum(2).mean(0).sqrt()[:, None]
        pairs.append((torch.cat([own.expand(SAMPLES, -1), xi.flatten(1)], 1), torch.zeros(SAMPLES)))
    model = Model(Quadratic(a, c, e), mean_output)
    return QuadraticProblem(model, from_tensors(train=pairs, test=pairs), a, c, e, minima, float(noise))


def steps_unless_epochs(name: str, steps: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return so many steps as a setting, unless epochs are asked for."""
    return {} if name.replace("steps", "epochs") in given else {name: steps}


def requested_steps(asked: dict[str, Any], part: str = "") -> int:
    """Return how many steps a client would take in a round, before there is a program; part="personal_": there."""
    amount = Amount(asked.get(f"{part}epochs"), asked.get(f"{part}steps"))
    if amount.steps is None and not isinstance(amount.epochs, int):
        raise UserError(f"the theorems give all clients equally many steps: set {part}steps")
    return local_steps(amount, asked.get("batch_size"))


def local_steps(amount: Amount, batch_size: int | None) -> int:
    """Return how many steps every client takes in a phase.

    >>> local_steps(Amount(epochs=2), batch_size=SAMPLES // 4)
    8
    """
    (steps,) = amount.of(np.array([-(-SAMPLES // (batch_size or SAMPLES))]), np.zeros(1, np.int64), 1)
    return int(steps)
