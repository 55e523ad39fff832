"""Where clients run: three verbs and a way to differentiate, whatever is behind them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..batches import Batch, Batches
from ..tensors import Tensors, Tree


class Seen(NamedTuple):
    """What a gradient evaluation saw on its way."""

    loss: Tensor
    buffers: Tensors  # running statistics after the forward pass


Grad = Callable[[Tensors, Tensors, Batch], tuple[Tensors, Seen]]
"""(what moves, what is held, batch) -> (direction, seen). Corrections are functions Grad -> Grad."""

Objective = Callable[[Tensors, Tensors, Batch], tuple[Tensor, Seen]]
"""(what moves, what is held, batch) -> (loss, seen)."""


class Engine(Protocol):
    """Runs functions that are written for ONE client on all of them."""

    @property
    def name(self) -> str:
        """The text that chooses this engine again."""

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """``f`` on every client: stacked trees and batches in, stacked trees out; ``keys`` seed its dropout."""

    def gradient(self, objective: Objective) -> Grad:
        """The gradient of an objective in what moves."""

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """x_i <- sum_j W[i, j] x_j."""

    def mean(self, x: Tensors, weight: Tensor) -> Tensors:
        """sum_i q_i x_i with q = weight / sum(weight)."""


class InMemory:
    """The two verbs of the exchange where all clients lie in the memory of one process."""

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """x_i <- sum_j W[i, j] x_j."""
        return {k: (W.to(v) @ v.reshape(len(v), -1)).view_as(v) for k, v in x.items()}

    def mean(self, x: Tensors, weight: Tensor) -> Tensors:
        """sum_i q_i x_i with q = weight / sum(weight)."""
        q = weight / weight.sum()
        return {k: (q.to(v) @ v.reshape(len(v), -1)).view(v.shape[1:]) for k, v in x.items()}


@contextmanager
def own_randomness(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Torch's global generators, to be seeded at will and given back as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield torch.manual_seed if device.type == "cuda" else torch.default_generator.manual_seed
