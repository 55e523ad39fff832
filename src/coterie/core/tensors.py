"""Arithmetic on named tensors.

One client's model is a flat ``dict[str, Tensor]``. *Stacked* tensors carry the clients along a leading dimension;
only the engines and the exchange know about that dimension.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tensors = dict[str, Tensor]
Integers = NDArray[np.int64]  # numbers of clients or samples
Tree = Any  # Tensor | Tensors | a (named) tuple of trees
T = TypeVar("T", bound=Tree)

SIMD_WIDTH = 16  # numbers a CPU works on at a time, if as many lie beside each other


def tree_map(f: Callable[..., Tensor], x: Tree, *rest: Tree) -> Tree:
    """Apply ``f`` to every tensor of ``x`` and the tensors in the same places of ``rest``.

    >>> tree_map(torch.add, {"a": torch.tensor(1)}, {"a": torch.tensor(2)})
    {'a': tensor(3)}
    """
    if isinstance(x, dict):
        return {k: tree_map(f, v, *(r[k] for r in rest)) for k, v in x.items()}
    if isinstance(x, tuple):
        mapped = [tree_map(f, *places) for places in zip(x, *rest, strict=True)]
        return type(x)(*mapped) if hasattr(x, "_fields") else tuple(mapped)
    return f(x, *rest)


def leaves(x: Tree) -> list[Tensor]:
    """Return the tensors of a tree, in the order of ``tree_map``."""
    return aligned(x, x)


def aligned(x: Tree, y: Tree) -> list[Tensor]:
    """Return the tensors of ``y`` in the order of ``x``, which may list the same names in another order.

    >>> aligned({"a": 1, "b": 2}, {"b": torch.tensor(2), "a": torch.tensor(1)})
    [tensor(1), tensor(2)]
    """
    if isinstance(x, dict):
        return [v for k, inner in x.items() for v in aligned(inner, y[k])]
    if isinstance(x, tuple):
        return [v for inner, other in zip(x, y, strict=True) for v in aligned(inner, other)]
    return [y]


def with_leaves(x: Tree, tensors: Iterable[Tensor]) -> Tree:
    """Return a tree like ``x`` with other tensors.

    >>> with_leaves({"a": torch.tensor(1)}, [torch.tensor(2)])
    {'a': tensor(2)}
    """
    new = iter(tensors)
    return tree_map(lambda _: next(new), x)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees: the tensors of one tree have them along a new leading dimension."""
    return tree_map(lambda *rows: torch.stack(rows), *trees)


def concatenate(trees: Sequence[Tree]) -> Tree:
    """Concatenate the tensors of ``trees`` along the leading dimension."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: torch.cat(parts), *trees)


def rows(x: Tree, where: Tensor | slice | int) -> Tree:
    """Return the clients ``where`` of stacked tensors."""
    return tree_map(lambda v: v[where], x)


def pick(x: Tree, which: NDArray[np.int64]) -> Tree:
    """Return the clients at the places ``which`` of stacked tensors: a view if the places are consecutive."""
    if consecutive(which):
        return rows(x, slice(int(which[0]), int(which[0]) + len(which)))
    place = torch.from_numpy(which)
    return tree_map(lambda v: v[to_device(place, v.device)], x)


def consecutive(which: NDArray[np.int64]) -> bool:
    """Tell whether each place follows the one before it."""
    return len(which) == 1 or bool((np.diff(which) == 1).all())


def to_device(x: T, device: torch.device) -> T:
    """Return tensors on a device, where it will have them before what it is asked next; nobody waits until it is idle.

    >>> to_device({"a": torch.ones(2)}, torch.device("cpu"))
    {'a': tensor([1., 1.])}
    """
    there: T = tree_map(lambda v: v.to(device, non_blocking=True), x)
    return there


def put(x: Tree, where: Tensor, new: Tree) -> Tree:
    """Return stacked tensors with the clients ``where`` replaced; ``x`` itself stays as it is."""
    return tree_map(lambda v, n: v.index_copy(0, where, n), x, new)


def replicate(x: Tree, clients: int) -> Tree:
    """Show the same values to every client, without copying them."""
    return tree_map(lambda v: v.expand(clients, *v.shape), x)


def count(x: Tree) -> int:
    """Return the length of the leading dimension: how many clients stacked tensors have, or samples a batch.

    >>> count(replicate({"a": torch.tensor(1)}, 3))
    3
    """
    return len(first_of(x))


def first_of(x: Tree) -> Tensor:
    """Return the first tensor of a tree."""
    while not isinstance(x, Tensor):
        x = next(iter(x.values() if isinstance(x, dict) else x))
    return x


def split(x: Tensors, names: Collection[str]) -> tuple[Tensors, Tensors]:
    """Return (the named ones, the others); ``a | b`` puts them together again.

    >>> split({"u": torch.tensor(1), "v": torch.tensor(2)}, {"v"})
    ({'v': tensor(2)}, {'u': tensor(1)})
    """
    return {k: v for k, v in x.items() if k in names}, {k: v for k, v in x.items() if k not in names}


def add(x: Tensors, y: Tensors, scale: float | Tensor = 1.0) -> Tensors:
    """Return x + scale * y."""
    if isinstance(scale, Tensor):
        return {k: torch.addcmul(v, y[k], scale) for k, v in x.items()}
    return {k: torch.add(v, y[k], alpha=scale) for k, v in x.items()}


def sub(x: Tensors, y: Tensors) -> Tensors:
    """Return x - y."""
    return {k: v - y[k] for k, v in x.items()}


def mul(x: Tensors, scale: float | Tensor) -> Tensors:
    """Return scale * x."""
    return {k: v * scale for k, v in x.items()}


def norm(x: Tensors) -> Tensor:
    """Return the L2 norm over all tensors together."""
    return torch.stack([v.square().sum() for v in x.values()]).sum().sqrt()


def dot(x: Tensors, y: Tensors) -> Tensor:
    """Return the inner product over all tensors together."""
    return torch.stack([(v * y[k]).sum() for k, v in x.items()]).sum()


def zeros_like(x: Tensors) -> Tensors:
    """Return zeros of the same shapes, in memory of their own."""
    return {k: torch.zeros(v.shape, dtype=v.dtype, device=v.device) for k, v in x.items()}


def floating(x: Tensors) -> Tensors:
    """Return the tensors that can be averaged; integer buffers (counters) stay with whoever holds them."""
    return {k: v for k, v in x.items() if v.is_floating_point()}


def finite(x: Tensors) -> Tensor:
    """Tell which clients of stacked tensors hold finite numbers only."""
    return torch.stack([torch.isfinite(v).view(len(v), -1).all(1) for v in x.values()]).all(0)


def entries(tensors: Iterable[Tensor]) -> int:
    """Count the numbers in all tensors."""
    return sum(v.numel() for v in tensors)


def size_in_bytes(tensors: Iterable[Tensor]) -> int:
    """Count the bytes that tensors take as they are stored and sent."""
    return sum(v.numel() * v.element_size() for v in tensors)


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the values of a tensor in order, as they are in memory: what a fingerprint is taken of.

    >>> as_bytes(torch.tensor([1, 2], dtype=torch.int16)).hex(), len(as_bytes(torch.zeros(0, 3)))
    ('01000200', 0)
    """
    values = tensor.detach().cpu().contiguous().flatten()
    # An empty tensor may have a stride that cannot be seen as bytes.
    return values.view(torch.uint8).numpy().data if len(values) else memoryview(b"")
