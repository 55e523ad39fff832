"""The regularized logistic regression of FedAvg-P and Scaffold-P: half of its weights are personal."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from ..core.annotations import Range
from ..core.errors import UserError


class SplitLogistic(nn.Module):
    """A classifier of two classes by a.u + b.v, where a is the first half of a sample and b the rest.

    f(u, v) = mean log(1 + exp(-c (a.u + b.v))) + rho (R(u) + R(v)), c = -1 or 1, R(x) = |x|^2 / (1 + |x|^2)

    The first term is the cross entropy of the scores (0, a.u + b.v). u is shared, v is personal.
    """

    def __init__(self, entries: int, rho: float) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(entries - entries // 2))
        self.v = nn.Parameter(torch.zeros(entries // 2))
        self.rho = rho

    def forward(self, x: Tensor) -> Tensor:
        """The scores of both classes."""
        a, b = x.flatten(1).tensor_split([len(self.u)], dim=1)
        margin = a @ self.u[:, None] + b @ self.v[:, None]  # matrices: their products are counted as costs
        return torch.cat([torch.zeros_like(margin), margin], dim=1)

    def penalty(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return rho (R(u) + R(v)), which pulls small weights to 0 and not large ones, so that f is not convex."""
        squares = torch.stack([tensors[k].square().sum() for k in ("u", "v")])
        return self.rho * (squares / (1 + squares)).sum()


def split_logreg(shape: Sequence[int], classes: int, rho: Annotated[float, Range()] = 0.01) -> nn.Module:
    """Build a classifier of two classes with shared and personal weights and a regularizer of strength ``rho``."""
    if classes != 2:
        raise UserError(f"split-logreg tells two classes apart, not {classes}: take mnist-halves, or logreg")
    return SplitLogistic(math.prod(shape), rho)
