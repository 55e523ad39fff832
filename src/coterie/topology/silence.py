"""Messages that do not arrive."""

import numpy as np
import torch
from torch import Tensor

from .sparse import diagonal, entries, sparse, with_diagonal


def silenced(W: Tensor, probability: float, keeps: str, draw: np.random.Generator) -> Tensor:
    """The mixing matrix of a round in which every message is dropped with that probability.

    keeps "receiver": it gives the missing weight to itself, so rows go on summing to 1.
    keeps "sender": what was not delivered stays where it was, so columns do: push-sum loses no mass.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> silenced(W, 1.0, "receiver", np.random.default_rng(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns, weights = entries(W)
    lost = torch.from_numpy(draw.random(len(weights)) < probability).to(W.device) & (rows != columns)
    keeper = (rows if keeps == "receiver" else columns)[lost]
    own = diagonal(W).index_add(0, keeper, weights[lost])
    left = sparse(rows[~lost], columns[~lost], weights[~lost], len(W))
    return with_diagonal(left if W.is_sparse else left.to_dense(), own)
