"""Properties of a mixing matrix W[i, j] (i receives, j sends)."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.arguments import checked
from ..core.errors import UserError
from .sparse import DENSE, links

Stochastic = Literal["doubly", "row", "column"]

# Loose enough for matrices computed in float32, far tighter than any wrong weight.
_TOLERANCE = 1e-6


@checked("function")
def stochasticity(W: Tensor) -> Stochastic:
    """Return which sums are one: those of the rows (W1 = 1), of the columns (1ᵀW = 1ᵀ), or both.

    >>> stochasticity(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    'row'
    """
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise UserError(f"a mixing matrix must be square, not {list(W.shape)}: use one row and column a client")
    sums = [W.sum(axis) for axis in (1, 0)]
    rows, columns = (bool(((s.to_dense() - 1).abs() <= _TOLERANCE).all()) for s in sums)
    if rows or columns:
        return "doubly" if rows and columns else "row" if rows else "column"
    raise UserError("neither the rows nor the columns of the mixing matrix sum to 1: divide each row by its sum")


@checked("function")
def spectral_gap(W: Tensor) -> float:
    """Return how fast mixing brings everybody together: 1 - λ, between 0 (never) and 1 (at once).

    For doubly stochastic W, λ = ‖W - J‖₂ with J = 11ᵀ/n: one mix leaves at most λ of the distance to the
    mean. For a W that is only row- or column-stochastic, λ is the second largest modulus of the eigenvalues: the rate
    in the long run when this W is repeated; a single mix may leave more.

    >>> from coterie.topology import ring
    >>> round(spectral_gap(ring(4)(0)), 6)
    0.666667
    """
    W = dense(W).double()
    n = len(W)
    if stochasticity(W) == "doubly":
        λ = float(torch.linalg.matrix_norm(W - 1 / n, ord=2))
    else:
        λ = float(torch.linalg.eigvals(W).abs().sort(descending=True).values[1])
    return max(0.0, 1 - λ)


def dense(W: Tensor) -> Tensor:
    """Return a dense W; refuse one that is too large for that."""
    check_dense(len(W))
    return W


def check_dense(clients: int) -> None:
    """Refuse so many clients that their W is sparse."""
    if clients > DENSE:
        raise UserError(f"a graph of {clients:,} clients is too large for this: look at one of {DENSE:,} or fewer")


def _links(W: Tensor) -> Tensor:
    """Return True where a message travels: at nonzero weights off the diagonal."""
    links = dense(W) != 0
    links.fill_diagonal_(False)
    return links


@checked("function")
def in_neighbors(W: Tensor) -> list[list[int]]:
    """Return for every client those whose messages it receives, ascending and without itself.

    >>> in_neighbors(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    [[], [0]]
    """
    return [row.nonzero().flatten().tolist() for row in _links(W)]


@checked("function")
def degree(W: Tensor) -> tuple[int, float, int]:
    """Return the least, mean and greatest number of in-neighbors.

    >>> from coterie.topology import star
    >>> degree(star(5)(0))
    (1, 1.6, 4)
    """
    counts = _links(W).sum(1)
    return int(counts.min()), float(counts.double().mean()), int(counts.max())


@checked("function")
def edges(W: Tensor) -> int:
    """Return the number of messages of one round, one for every directed link.

    >>> from coterie.topology import ring
    >>> edges(ring(5)(0))
    10
    """
    return len(links(W)[0])


@checked("function")
def degrees(W: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ([n] how many messages each client sends in one round, [n] how many it gets).

    >>> from coterie.topology import star
    >>> degrees(star(4)(0))
    (array([3, 1, 1, 1]), array([3, 1, 1, 1]))
    """
    receivers, senders = links(W)
    return np.bincount(senders, minlength=len(W)), np.bincount(receivers, minlength=len(W))


@checked("function")
def diameter(W: Tensor) -> int | None:
    """Return after how many exchanges over W everybody has heard from everybody, directly or not; None if never.

    This is the longest of the shortest paths in the direction of the messages, found by doubling: with A the links and
    self loops, it is the least d for which A^d has no zero.

    >>> from coterie.topology import none, ring
    >>> diameter(ring(6)(0)), diameter(none(2)(0))
    (3, None)
    """
    n = len(W)
    if n == 1:
        return 0
    powers = [(_links(W) | torch.eye(n, dtype=torch.bool)).float()]
    while not powers[-1].all():
        if 2 ** (len(powers) - 1) >= n - 1:
            return None
        powers.append((powers[-1] @ powers[-1] > 0).float())
    reached, steps = torch.eye(n), 0
    for exponent in reversed(range(len(powers) - 1)):
        further = (reached @ powers[exponent] > 0).float()
        if not further.all():
            reached, steps = further, steps + 2**exponent
    return steps + 1
