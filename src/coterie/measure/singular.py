"""How close the factors of low-rank layers come to losing a rank, layer by layer, block by block, over all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.tensors import Tensors, rows
from ..submodels import Pair, factor_pairs
from .measured import Measured


def smallest_singular_value(factors: Sequence[Tensor]) -> Tensor:
    """The smallest of all singular values of some matrices; [n] where each of them is stacked over n clients.

    >>> smallest_singular_value([torch.eye(3), torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.0, 0.0]])])
    tensor(0.5000, dtype=torch.float64)

    Reference: FedLMT, Assumption 4.4, where the factors of a layer have as many columns as its rank.
    """
    return torch.stack([torch.linalg.svdvals(f.to(torch.float64))[..., -1] for f in factors]).amin(0)


def smallest_of_layer(pair: Pair, clients: Sequence[Tensors]) -> float:
    """Of both factors of a layer and all clients; columns of zeros pad a smaller rank and do not count."""
    found = []
    for tensors in clients:
        both = [f[:, f.any(0)] for f in pair.matrices(tensors)]
        found.append(smallest_singular_value([f for f in both if f.numel()]))
    return float(torch.stack(found).min())


def block_of(weight: str) -> str:
    """The part of the model a layer stands in; one that stands in no part is a block by itself.

    >>> block_of("stages.0.1.conv2.weight"), block_of("7.weight")
    ('stages.0.1', '7')
    """
    layer = weight.removesuffix(".weight")
    return layer.rpartition(".")[0] or layer


def record_singular_values(experiment: Measured, state: Any) -> dict[str, float]:
    """The smallest over all factors of all clients, and that of every block, counted from 1 in the model's order."""
    models = experiment.program.models(state)
    clients = [rows(models, i) for i in range(len(next(iter(models.values()))))]
    blocks: dict[str, list[float]] = {}
    for pair in factor_pairs(experiment.model.module):
        blocks.setdefault(block_of(pair.weight), []).append(smallest_of_layer(pair, clients))
    each = {f"smallest_singular_value_block_{i}": min(found) for i, found in enumerate(blocks.values(), 1)}
    return {"smallest_singular_value": min(each.values()), **each}
