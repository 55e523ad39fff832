"""Settings, constants and closed forms of the quadratic toy problem."""

from typing import Any

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.engines import Serial, Vectorized
from toys import PLAIN, U0, A, B, C, D, Quadratic

ENGINES = pytest.mark.parametrize("engine", [Serial(), Vectorized(3)], ids=["serial", "vectorized"])
ETA_U, ETA_V, K_U, K_V = 0.1, 0.2, 2, 1
a, b, c, d, u0 = (torch.tensor(x, dtype=torch.float64) for x in (A, B, C, D, U0))
s = (1 - ETA_U * a) ** K_U  # what is left of u - b after the shared phase
RING = ct.topology.ring(4)(0)


def close(x: Any, expected: Any) -> None:
    torch.testing.assert_close(x, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def printed(x: torch.Tensor, expected: list[float]) -> None:
    """Equal to a golden value of ten printed digits."""
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5.1e-11)


def plain(name: str, **settings: Any) -> Algorithm:
    return ct.algorithms.build(name, **{**PLAIN, "lr": ETA_U, "steps": K_U, **settings})


# Directed: 0 -> {1, 2}, 1 -> {2}, 2 -> {0, 3}, 3 -> {0}, everybody keeps a share; columns sum to 1.
PUSH = torch.tensor(
    [[1 / 3, 0, 1 / 3, 1 / 2], [1 / 3, 1 / 2, 0, 0], [1 / 3, 1 / 2, 1 / 3, 0], [0, 0, 1 / 3, 1 / 2]],
    dtype=torch.float64,
)
OWN = {"personal": "v", "personal_lr": ETA_V, "personal_steps": K_V}


def shared_only(u: float = 0.5) -> Quadratic:
    """The toy problem with v frozen at where it does no harm."""
    module = Quadratic(u)
    module.v.requires_grad_(False)
    return module


def column(t: int) -> Tensor:
    return PUSH
