"""One client after another: the reference the other engines are tested against."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..batches import Batch, Batches
from ..tensors import Tensors, Tree, rows, stack
from .base import Grad, InMemory, Objective, Seen, own_randomness


class Serial(InMemory):
    """A plain loop with ordinary autograd: easy to step through, errors name their line."""

    name = "serial"

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """``f`` on every client, in order."""
        results = []
        with own_randomness(self.device) as seed:
            for i, key in enumerate(keys):
                seed(key)
                results.append(f(*(c.one(i) if isinstance(c, Batches) else rows(c, i) for c in clients)))
        return stack(results)

    def gradient(self, objective: Objective) -> Grad:
        """Ordinary reverse-mode autograd: less overhead per call than ``torch.func.grad``."""

        def grad(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            leaves = {k: _layout(v.detach()).requires_grad_() for k, v in x.items()}
            loss, seen = objective(leaves, held, batch)
            g = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            return dict(zip(leaves, g, strict=True)), Seen(seen.loss.detach(), seen.buffers)

        return grad


def _layout(weight: Tensor) -> Tensor:
    """Convolutions of single precision run a quarter faster on a CPU with their channels last."""
    if weight.dim() == 4 and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return weight.to(memory_format=torch.channels_last)
    return weight
