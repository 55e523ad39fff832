"""Mixing matrices W[i, j] (i receives, j sends), dense or sparse alike, and the messages that do not arrive.

Above ``DENSE`` clients W is a sparse tensor in coordinate form, and nothing of size n x n is ever made.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.annotations import Fraction
from ..core.arguments import checked
from ..core.tensors import Integers

DENSE = 2000  # clients up to which a matrix is dense


def from_links(receivers: Tensor, senders: Tensor, n: int) -> Tensor:
    """Return equal weights for oneself and every in-neighbor: W[i, j] = 1 / (degree_i + 1).

    A link that is named twice counts once (the two neighbors of a ring of two, for example).

    >>> from_links(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), 2)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    own = torch.arange(n)
    pairs = torch.unique(torch.cat([receivers, own]) * n + torch.cat([senders, own]))  # merged, in order of rows
    rows, columns = pairs // n, pairs % n
    values = 1 / rows.bincount(minlength=n).double()[rows]
    if n > DENSE:
        return sparse(rows, columns, values, n)
    return torch.zeros(n, n, dtype=torch.float64).index_put((rows, columns), values)


def circle(n: int, offsets: Sequence[int], place: Integers | None = None) -> Tensor:
    """Return the W in which the client at place i hears from the places i + offset (mod n).

    ``place``: where each client stands in that circle; None: in order.
    """
    i = torch.arange(n)
    receivers = i.repeat(len(offsets))
    senders = torch.cat([(i + offset) % n for offset in offsets] or [i[:0]])
    if place is None:
        return from_links(receivers, senders, n)
    client = torch.from_numpy(np.argsort(place))  # who stands at a place
    return from_links(client[receivers], client[senders], n)


def sparse(rows: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    """Return the sparse matrix with these entries; values at equal places are added."""
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (n, n), check_invariants=False).coalesce()


def entries(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (rows, columns, values) of the entries that are not zero."""
    if W.is_sparse:
        W = W.coalesce()
        return W.indices()[0], W.indices()[1], W.values()
    rows, columns = W.nonzero(as_tuple=True)
    return rows, columns, W[rows, columns]


def links(W: Tensor) -> tuple[Integers, Integers]:
    """Return (receivers, senders) of all messages of one round.

    >>> links(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    (array([1]), array([0]))
    """
    rows, columns, _ = entries(W)
    apart = rows != columns
    return rows[apart].cpu().numpy(), columns[apart].cpu().numpy()


def with_values(W: Tensor, values: Tensor) -> Tensor:
    """Return a matrix of the same form with other values in the places of ``entries(W)``.

    >>> with_values(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [0., 3.]])
    """
    rows, columns, old = entries(W)
    if W.is_sparse:
        return sparse(rows, columns, values.to(old), len(W))
    return torch.zeros_like(W).index_put((rows, columns), values.to(old))


def diagonal(W: Tensor) -> Tensor:
    """Return [n] the weight that every client gives to itself."""
    if not W.is_sparse:
        return W.diagonal()
    rows, columns, values = entries(W)
    return values.new_zeros(len(W)).index_add(0, rows[rows == columns], values[rows == columns])


def with_diagonal(W: Tensor, own: Tensor) -> Tensor:
    """Return W with another diagonal."""
    if not W.is_sparse:
        return W - torch.diag(W.diagonal()) + torch.diag(own)
    rows, columns, values = entries(W)
    off, i = rows != columns, torch.arange(len(W), device=W.device)
    return sparse(
        torch.cat([rows[off], i]), torch.cat([columns[off], i]), torch.cat([values[off], own.to(values)]), len(W)
    )


def support(W: Tensor) -> Tensor:
    """Return 1 where W has a weight, and on the diagonal."""
    if not W.is_sparse:
        return (W > 0).to(W).fill_diagonal_(1)
    values = entries(W)[2]
    return with_diagonal(with_values(W, torch.ones_like(values)), values.new_ones(len(W)))


@checked("function")
def drop_messages(W: Tensor, probability: Fraction, weight_stays_with: str, rng: np.random.Generator) -> Tensor:
    """Return W of a round in which every message is dropped with that probability.

    weight_stays_with "receiver": a receiver gives the missing weight to itself, so rows still sum to 1;
    "sender": a sender keeps what was not delivered, so columns still sum to 1 and push-sum loses no mass.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> drop_messages(W, 1.0, "receiver", np.random.default_rng(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    weights = entries(W)[2]
    return _without(W, torch.from_numpy(rng.random(len(weights)) < probability).to(W.device), weight_stays_with)


def without_absent(W: Tensor, online: Integers, weight_stays_with: str) -> Tensor:
    """Return W of a round in which only the clients of ``online`` take part; the others keep what they have.

    >>> W = torch.full((2, 2), 0.5, dtype=torch.float64)
    >>> without_absent(W, np.array([1]), "sender").tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rows, columns, _ = entries(W)
    absent = torch.ones(len(W), dtype=torch.bool, device=W.device)
    absent[torch.from_numpy(online).to(W.device)] = False
    return _without(W, absent[rows] | absent[columns], weight_stays_with)


def _without(W: Tensor, missing: Tensor, weight_stays_with: str) -> Tensor:
    """Return W without the marked entries; those of the diagonal stay."""
    rows, columns, weights = entries(W)
    lost = missing & (rows != columns)
    keeper = (rows if weight_stays_with == "receiver" else columns)[lost]
    own = diagonal(W).index_add(0, keeper, weights[lost])
    left = sparse(rows[~lost], columns[~lost], weights[~lost], len(W))
    return with_diagonal(left if W.is_sparse else left.to_dense(), own)
