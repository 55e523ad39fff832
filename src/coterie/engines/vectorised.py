"""Many clients at once: the one-client function lifted by ``torch.func.vmap``."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..batches import Batch, Batches, Integers
from ..tensors import Tensors, Tree, rows, tree_map
from .base import Grad, InMemory, Objective, Seen, own_randomness
from .buckets import buckets


class Vectorised(InMemory):
    """Clients side by side, ``chunk`` of them at a time.

    Clients are grouped so that a group makes equally many steps and little of it is padding. ``exact`` pads nothing:
    needed where one sample's output depends on the others in its batch (BatchNorm).
    """

    def __init__(self, chunk: int, exact: bool = False, device: torch.device | None = None) -> None:
        self.chunk, self.exact = chunk, exact
        self.device = device or torch.device("cpu")

    @property
    def name(self) -> str:
        """The text that chooses this engine again, chunk included: rounding may depend on it."""
        return f"vectorised:{self.chunk}"

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """``f`` on every client, a chunk of clients of equal shape at a time."""
        chunks = list(self._chunks([c for c in clients if isinstance(c, Batches)], len(keys)))
        together: Tree = None
        with own_randomness(self.device) as seed:
            for which in chunks:
                seed(keys[int(which[0])])
                part = _lifted(f, clients, which)
                if len(which) == len(keys) and _consecutive(which):
                    return part
                if together is None:
                    together = tree_map(lambda v: v.new_empty(len(keys), *v.shape[1:]), part)
                write(together, which, part)
        return together

    def gradient(self, objective: Objective) -> Grad:
        """Autograd inside ``torch.func.vjp``, which ``vmap`` can lift; what does not move stays out of its slow hands.

        ``torch.func.grad`` would keep what a second derivative needs, and load the compiler first, for a second.
        """

        def grad(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            def value(moving: Tensors) -> tuple[Tensor, tuple[Tensors, Seen]]:
                loss, seen = objective(moving, held, batch)
                g = torch.autograd.grad(loss, list(moving.values()), materialize_grads=True)
                return loss, (dict(zip(moving, g, strict=True)), seen)

            answer: Any = torch.func.vjp(value, x, has_aux=True)
            g, seen = answer[2]
            return g, seen

        return grad

    def _chunks(self, batches: Sequence[Batches], clients: int) -> Iterator[Integers]:
        for bucket in buckets(batches, self.exact) if batches else [np.arange(clients)]:
            for start in range(0, len(bucket), self.chunk):
                yield np.sort(bucket[start : start + self.chunk])  # in order: neighbours are seen without a copy


def _lifted(f: Callable[..., Tree], clients: Sequence[Tree | Batches], which: Integers) -> Tree:
    """``f`` on the clients ``which`` as one program over stacked tensors."""
    blocks = [(c.block(which), c.samples) for c in clients if isinstance(c, Batches)]

    def one(mine: tuple[Tree, ...], drawn: tuple[Tensors, ...]) -> Tree:
        trees = iter(mine)
        streams = (block.stream(samples, tensors) for (block, samples), tensors in zip(blocks, drawn, strict=True))
        return f(*(next(streams) if isinstance(c, Batches) else next(trees) for c in clients))

    mine = tuple(pick(c, which) for c in clients if not isinstance(c, Batches))
    return lift(one, mine, tuple(block.tensors for block, _ in blocks))


def lift(f: Callable[..., Tree], *stacked: Tree) -> Tree:
    """``f`` along the leading dimension of stacked trees; attention in its plain form, the only one that lifts."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.func.vmap(f, randomness="different")(*stacked)


def _consecutive(which: Integers) -> bool:
    return bool((np.diff(which) == 1).all())


def write(x: Tree, which: Integers, part: Tree) -> None:
    """Into the places of some clients: results of many chunks are never held twice."""
    first, place = int(which[0]), torch.from_numpy(which)
    if _consecutive(which):
        tree_map(lambda v, new: v[first : first + len(which)].copy_(new), x, part)
    else:
        tree_map(lambda v, new: v.index_copy_(0, place.to(v.device), new), x, part)


def pick(x: Tree, which: Integers) -> Tree:
    """Some clients; a view, not a copy, where they lie one after another."""
    first, place = int(which[0]), torch.from_numpy(which)
    if _consecutive(which):
        return tree_map(lambda v: v[first : first + len(which)], x)
    return tree_map(lambda v: rows(v, place.to(v.device)), x)
