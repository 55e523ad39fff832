"""Messages that do not arrive."""

import numpy as np
import torch
from torch import Tensor


def silenced(W: Tensor, probability: float, keeps: str, draw: np.random.Generator) -> Tensor:
    """The mixing matrix of a round in which every message is dropped with that probability.

    keeps "receiver": it gives the missing weight to itself, so rows go on summing to 1.
    keeps "sender": what was not delivered stays where it was, so columns do: push-sum loses no mass.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> silenced(W, 1.0, "receiver", np.random.default_rng(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    lost = torch.from_numpy(draw.random(W.shape) < probability).to(W.device)
    missing = torch.where(lost.fill_diagonal_(False), W, 0.0)
    return W - missing + torch.diag(missing.sum(1 if keeps == "receiver" else 0))
