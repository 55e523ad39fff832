"""Messages that do not arrive: dropped on their way, or to and from clients that are offline."""

import numpy as np
import torch
from torch import Tensor

from ..data.batches import Integers
from .sparse import diagonal, entries, sparse, with_diagonal


def drop_messages_of(W: Tensor, probability: float, weight_stays_with: str, draw: np.random.Generator) -> Tensor:
    """The mixing matrix of a round in which every message is dropped with that probability.

    keeps "receiver": it gives the missing weight to itself, so rows go on summing to 1.
    keeps "sender": what was not delivered stays where it was, so columns do: push-sum loses no mass.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> drop_messages_of(W, 1.0, "receiver", np.random.default_rng(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    weights = entries(W)[2]
    return _without(W, torch.from_numpy(draw.random(len(weights)) < probability).to(W.device), weight_stays_with)


def without_absent(W: Tensor, online: Integers, weight_stays_with: str) -> Tensor:
    """The mixing matrix of a round in which only these clients are there; the others keep what they have.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> without_absent(W, np.array([1]), "sender").tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns, _ = entries(W)
    absent = torch.ones(len(W), dtype=torch.bool, device=W.device)
    absent[torch.from_numpy(online).to(W.device)] = False
    return _without(W, absent[rows] | absent[columns], weight_stays_with)


def _without(W: Tensor, missing: Tensor, weight_stays_with: str) -> Tensor:
    """W without the marked ones of its entries, but for what clients keep of their own."""
    rows, columns, weights = entries(W)
    lost = missing & (rows != columns)
    keeper = (rows if weight_stays_with == "receiver" else columns)[lost]
    own = diagonal(W).index_add(0, keeper, weights[lost])
    left = sparse(rows[~lost], columns[~lost], weights[~lost], len(W))
    return with_diagonal(left if W.is_sparse else left.to_dense(), own)
