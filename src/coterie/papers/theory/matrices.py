"""FedLMT's small problem: two layers, each with a matrix of its own to reach; and the points of a run on it.

    f_i(W_1, W_2) = s/2 |W_1 - A_i|^2 + s/2 |W_2 - B_i|^2

The module applies its layers to the identity, so that it may hold factors in place of a matrix, W = U V^T, without
being told. A sample adds -<Xi, W>, as in ``quadratic``. Both matrices are square; g is f of the products.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from ...algorithms import builder
from ...algorithms.base import Algorithm
from ...core import rng
from ...core.annotations import NonNegative, Positive, Range
from ...core.arguments import checked
from ...core.tensors import Tensors
from ...data import Federation, from_tensors
from ...models.model import Model
from ...submodels import factor_pairs, recover_tensors
from .quadratic import SAMPLES, batch_variance, local_steps, mean_output
from .trajectory import experiment_of

LAYERS = ("front", "back")


class TwoLayers(nn.Module):
    """A module whose sample is (A_i, B_i, Xi_A, Xi_B) and whose output is its loss; it begins as two identities."""

    def __init__(self, dim: int, smoothness: float) -> None:
        super().__init__()
        self.dim, self.smoothness = dim, smoothness
        for name in LAYERS:
            layer = nn.Linear(dim, dim, bias=False, dtype=torch.float64)
            nn.init.eye_(layer.weight)
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B], the loss of every sample."""
        each = x.view(len(x), 4, self.dim, self.dim)
        one = torch.eye(self.dim, dtype=x.dtype, device=x.device)
        W = torch.stack([self.get_submodule(name)(one).T for name in LAYERS])
        curved = self.smoothness / 2 * (W - each[:, :2]).square()
        return (curved - each[:, 2:] * W).flatten(1).sum(1)


class MatrixProblem(NamedTuple):
    """The problem of some clients."""

    model: Model
    federation: Federation
    targets: Tensor  # [n, 2, d, d] (A_i, B_i)
    xi: Tensor  # [n, N, 2, d, d] what the samples add to the gradient
    smoothness: float
    noise: float  # sigma of one sample, over both layers

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.targets)

    def value(self, W: Tensor) -> float:
        """Return (1/n) sum_i f_i(W) at W [2, d, d]."""
        return float(self.smoothness / 2 * (W - self.targets).square().sum() / self.clients)

    def least(self) -> float:
        """Return the minimum over all matrices."""
        return self.value(self.targets.mean(0))

    def variance(self, batch_size: int | None, replacement: bool = False) -> float:
        """Return sigma^2 of a batch."""
        return batch_variance(self.noise, batch_size, replacement)


@checked("problem")
def matrices(
    clients: int,
    seed: int = 0,
    *,
    dim: Annotated[int, Range(1, 10_000)] = 4,
    noise: NonNegative = 0.1,
    spread: NonNegative = 0.1,
    smoothness: Positive = 1.0,
    start: float = 2.0,
) -> MatrixProblem:
    """Return the problem with ``dim`` x ``dim`` matrices, whose targets scatter around ``start`` times the identity.

    >>> matrices(clients=3).model.parameters
    ('front.weight', 'back.weight')
    """
    g = torch.Generator().manual_seed(rng.key(seed, "matrices") % 2**63)
    scatter = torch.randn(clients, 2, dim, dim, generator=g, dtype=torch.float64)
    targets = start * torch.eye(dim, dtype=torch.float64) + spread * scatter
    xi = torch.randn(clients, SAMPLES, 2, dim, dim, generator=g, dtype=torch.float64)
    xi = xi - xi.mean(1, keepdim=True)
    xi = noise * xi / xi.square().sum((2, 3, 4)).mean(1).sqrt().view(-1, 1, 1, 1, 1)
    pairs = []
    for own, mine in zip(targets, xi, strict=True):
        x = torch.cat([own.flatten().expand(SAMPLES, -1), mine.flatten(1)], 1)
        pairs.append((x, torch.zeros(SAMPLES)))
    model = Model(TwoLayers(dim, smoothness), mean_output)
    return MatrixProblem(model, from_tensors(train=pairs, test=pairs), targets, xi, smoothness, float(noise))


class FactorTrajectory(NamedTuple):
    """The points of a run at every local step, of which the theorem counts each; T steps, l layers in factors."""

    mean: list[Tensors]  # [T] the mean over the clients of what they train
    own: list[Tensors]  # [T] stacked: what they train
    W: Tensor  # [T, 2, d, d] the matrices of the mean
    everybody: Tensor  # [T, n, 2, d, d] of everybody
    pairs: tuple[tuple[str, str, int], ...]  # [l] the names of U and V, and which layer they are

    def factors(self, where: list[Tensors]) -> list[tuple[Tensor, Tensor, int]]:
        """Return [l] U and V, stacked over ``where``, and which layer they are."""
        return [(torch.stack([x[u] for x in where]), torch.stack([x[v] for x in where]), at) for u, v, at in self.pairs]


FactorRuns = Sequence[FactorTrajectory]


def run_factors(problem: MatrixProblem, algorithm: Algorithm, rounds: int, seed: int) -> FactorTrajectory:
    """Run the problem; between two exchanges a client is where a round of fewer steps would have ended."""
    model, federation = problem.model, problem.federation
    whole = experiment_of(model, federation, algorithm, rounds, seed)
    steps = local_steps(whole.program.phases[0].amount, whole.program.training.batch_size)
    parts = []
    for k in range(1, steps):
        shorter = builder(algorithm.name)(**{**algorithm.settings, "steps": k})
        parts.append(experiment_of(model, federation, shorter, rounds, seed))
    now, own = whole.start(), []
    for t in range(rounds):
        own.append(whole.program.models(now.state))
        own += [e.program.train(now.state, e.round(t)).models for e in parts]
        now, _ = whole.run_round(now, t, evaluate=False)
    mean = [{k: v.mean(0) for k, v in x.items()} for x in own]
    module = whole.model.module
    recovered = [torch.stack([recover_tensors(module, x)[f"{name}.weight"] for name in LAYERS]) for x in mean]
    everybody = torch.stack([_recover_everybody(module, x) for x in own])
    pairs = tuple((p.U, p.V, LAYERS.index(p.weight.removesuffix(".weight"))) for p in factor_pairs(module))
    return FactorTrajectory(mean, own, torch.stack(recovered), everybody, pairs)


def _recover_everybody(module: nn.Module, x: Tensors) -> Tensor:
    """Return everybody's matrices [n, 2, d, d]."""
    full: Tensors = torch.func.vmap(lambda one: recover_tensors(module, one))(x)
    return torch.stack([full[f"{name}.weight"] for name in LAYERS], 1)
