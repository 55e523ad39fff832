"""Mixing matrices of many clients: nothing of size n x n is ever made.

From ``DENSE`` clients on, W is a sparse tensor in coordinate form. These functions read either form alike.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.batches import Integers

DENSE = 2000  # clients up to which a matrix is dense


def from_links(receivers: Tensor, senders: Tensor, n: int) -> Tensor:
    """Equal weights for oneself and every in-neighbor, as ``uniform`` has them; links may be named twice.

    >>> from_links(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), 2).to_dense()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    own = torch.arange(n)
    pairs = torch.unique(torch.cat([receivers, own]) * n + torch.cat([senders, own]))  # merged, in order of rows
    rows, columns = pairs // n, pairs % n
    return sparse(rows, columns, 1 / rows.bincount(minlength=n).double()[rows], n)


def sparse(rows: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    """The matrix with these entries; equal places are added."""
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (n, n), check_invariants=False).coalesce()


def entries(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, columns, values) of what is not zero."""
    if W.is_sparse:
        W = W.coalesce()
        return W.indices()[0], W.indices()[1], W.values()
    rows, columns = W.nonzero(as_tuple=True)
    return rows, columns, W[rows, columns]


def valued(W: Tensor, values: Tensor) -> Tensor:
    """A matrix with other values in the places of ``entries(W)``, and of the same form.

    >>> valued(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [0., 3.]])
    """
    rows, columns, old = entries(W)
    if W.is_sparse:
        return sparse(rows, columns, values.to(old), len(W))
    return torch.zeros_like(W).index_put((rows, columns), values.to(old))


def diagonal(W: Tensor) -> Tensor:
    """What every client keeps."""
    if not W.is_sparse:
        return W.diagonal()
    rows, columns, values = entries(W)
    return values.new_zeros(len(W)).index_add(0, rows[rows == columns], values[rows == columns])


def with_diagonal(W: Tensor, own: Tensor) -> Tensor:
    """W with another diagonal."""
    if not W.is_sparse:
        return W - torch.diag(W.diagonal()) + torch.diag(own)
    rows, columns, values = entries(W)
    off, i = rows != columns, torch.arange(len(W), device=W.device)
    return sparse(
        torch.cat([rows[off], i]), torch.cat([columns[off], i]), torch.cat([values[off], own.to(values)]), len(W)
    )


def support(W: Tensor) -> Tensor:
    """1 where W has a weight, and for oneself."""
    if not W.is_sparse:
        return (W > 0).to(W).fill_diagonal_(1)
    rows, columns, values = entries(W)
    return with_diagonal(sparse(rows, columns, torch.ones_like(values), len(W)), values.new_ones(len(W)))


def circle(n: int, offsets: Sequence[int], place: Integers | None = None) -> Tensor:
    """Everybody hears from i + offset (mod n); ``place``: where each client stands in that circle."""
    i = torch.arange(n)
    senders = torch.cat([(i + offset) % n for offset in offsets] or [i[:0]])
    receivers = i.repeat(len(offsets))
    if place is None:
        return from_links(receivers, senders, n)
    who = torch.from_numpy(np.argsort(place))  # who stands at a place
    return from_links(who[receivers], who[senders], n)


def drawn(n: int, k: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """[n, k] for every client k others, uniformly: rows with a repetition are drawn again."""
    chosen = draw.integers(0, n - 1, (n, k))
    while True:
        ordered = np.sort(chosen, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if not again.any():
            return chosen + (chosen >= np.arange(n)[:, None])  # stepping over oneself
        chosen[again] = draw.integers(0, n - 1, (int(again.sum()), k))
