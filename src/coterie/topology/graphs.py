"""Topologies that are the same every round, and the type they all share."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from math import isqrt
from typing import Annotated

import torch
from torch import Tensor

from ..core.annotations import Example, PositiveInt, Range
from ..core.arguments import checked, checked_class
from ..core.errors import UserError
from .facts import Stochastic
from .sparse import DENSE, circle, from_links, sparse, with_diagonal


@checked_class("class")
@dataclass(frozen=True)
class Topology:
    """A function from the round to the mixing matrix W[n, n] in float64, rows for receivers; sparse for many clients.

    ``name`` is the text that rebuilds it, ``stochastic`` says which sums of W are one, and ``fixed`` that every
    round has the same W (one and the same tensor: do not write into it).

    >>> ring(3)
    Topology(name='ring', n=3, stochastic='doubly', fixed=True)
    """

    name: str
    n: int
    stochastic: Stochastic
    fixed: bool
    matrix: Callable[..., Tensor] = field(repr=False)
    uses: frozenset[str] = field(
        default=frozenset(), repr=False
    )  # of what the clients have trained in the round: "losses", "models"

    def __call__(self, t: int, **trained: Tensor) -> Tensor:
        """Return W of round t; ``trained``: what ``uses`` names, all clients alike unless it is given."""
        return self.matrix(t, **(trained or alike(self.uses, self.n)))


def alike(uses: Collection[str], n: int) -> dict[str, Tensor]:
    """Return losses and models of n clients that do not differ."""
    values = {"losses": torch.zeros(n, dtype=torch.float64), "models": torch.zeros(n, 1, dtype=torch.float64)}
    return {name: values[name] for name in uses}


TopologyLike = Annotated[str | Topology | Callable[..., Tensor], Example('"ring" or lambda t: W')]
"""What a topology is made of: a string such as "ring", a Topology, or a function from the round to its matrix."""


def _constant(W: Tensor, t: int) -> Tensor:
    return W


def _fixed(name: str, W: Tensor) -> Topology:
    # A partial of a module's function, and not a closure, so that a topology can be sent to other processes.
    return Topology(name, len(W), "doubly", True, partial(_constant, W))


@checked("topology")
def ring(n: PositiveInt) -> Topology:
    """Return a circle: W[i, i-1] = W[i, i] = W[i, i+1] = 1/3 (mod n); λ = max over k of |1 + 2 cos(2πk/n)| / 3.

    >>> ring(2)(0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    return _fixed("ring", circle(n, (-1, 1)))


def _square_rows(n: int) -> int:
    """Return the greatest divisor of n that is not above its root."""
    return next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)


def _rows(n: int, rows: int | None) -> int:
    """Return the rows of a grid; refuse those that leave no grid."""
    best = _square_rows(n)
    larger = next(m for m in range(n + 1, n + 4) if _square_rows(m) > 1)
    fix = f"grid:rows={best}" if best > 1 else f"grid with {larger} clients"
    rows = rows or best
    if n % rows:
        raise UserError(f"{n} clients do not fill {rows} equal rows: use {fix if best > 1 else 'ring, or ' + fix}")
    if n > 1 and rows in (1, n):
        raise UserError(f"a grid of {rows} x {n // rows} clients is no more than a ring: use ring, or {fix}")
    return rows


@checked("topology")
def grid(n: PositiveInt, rows: PositiveInt | None = None, apart: Annotated[int, Range(2)] | None = None) -> Topology:
    """Return a torus of rows x columns, numbered row by row: 1/5 for oneself and those above, below and beside.

    λ = max over (p, q) of |1 + 2 cos(2πp/rows) + 2 cos(2πq/columns)| / 5 when both sides are at least 3.
    Without `rows` it is as square as n allows. With `apart` the rows continue into each other: those above and below
    are so many clients before and after (mod n), as in the code released with DisPFL, where they are 9 apart.

    >>> grid(12).name, grid(9)(0)[4].nonzero().flatten().tolist(), grid(20, apart=4)(0)[0].nonzero().flatten().tolist()
    ('grid:rows=3', [1, 3, 4, 5, 7], [0, 1, 4, 16, 19])
    """
    if apart is not None:
        if rows is not None:
            raise UserError("a grid has rows or neighbors that are so many apart: give one of rows and apart")
        if n <= 2 * apart:
            raise UserError(f"grid:apart={apart} needs more than {2 * apart} clients, there are {n}: use grid or ring")
        return _fixed(f"grid:apart={apart}", circle(n, (-apart, -1, 1, apart)))
    rows = _rows(n, rows)
    columns, i = n // rows, torch.arange(n)
    row, column = i // columns, i % columns
    beside = [row * columns + (column + d) % columns for d in (-1, 1)]
    above = [(row + d) % rows * columns + column for d in (-1, 1)]
    return _fixed(f"grid:rows={rows}", from_links(i.repeat(4), torch.cat([*beside, *above]), n))


@checked("topology")
def exponential(n: PositiveInt) -> Topology:
    """Return one-way links over powers of two: i receives from i + 1, i + 2, i + 4, ... (mod n), all below n.

    With q = ⌈log₂ n⌉ links each, every weight is 1/(q+1) and λ = (q-1)/(q+1) for even n (Ying et al. 2021).

    >>> exponential(8)(0)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.0000, 0.2500, 0.0000, 0.0000, 0.0000],
           dtype=torch.float64)
    """
    return _fixed("exponential", circle(n, [2**k for k in range((n - 1).bit_length())]))


@checked("topology")
def full(n: PositiveInt) -> Topology:
    """Connect every client with every other: W = J, every weight 1/n; λ = 0.

    >>> full(4)(0)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    if n > DENSE:
        raise UserError(
            f"full with {n} clients has {n * (n - 1):,} links: take a method with a server, which has the same mean"
        )
    return _fixed("full", torch.full((n, n), 1 / n, dtype=torch.float64))


@checked("topology")
def none(n: PositiveInt) -> Topology:
    """Connect no client with another: W = I; λ = 1.

    >>> none(2)(0)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    return _fixed("none", circle(n, ()))


@checked("function")
def metropolis(adjacency: Tensor) -> Tensor:
    """Return Metropolis-Hastings weights, which make any undirected graph symmetric and doubly stochastic.

    W[i, j] = 1 / (1 + max(degree_i, degree_j)) on links, W[i, i] = 1 - Σ_j W[i, j]. The diagonal of the
    adjacency does not matter.

    >>> metropolis(torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    tensor([[0.6667, 0.3333, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.3333, 0.6667]], dtype=torch.float64)
    """
    links = adjacency != 0
    if links.ndim != 2 or links.shape[0] != links.shape[1] or not torch.equal(links, links.T):
        raise UserError("metropolis needs an undirected graph: pass a square, symmetric adjacency matrix")
    links.fill_diagonal_(False)
    degrees = links.sum(1).double()
    W = links / (1 + torch.maximum(degrees[:, None], degrees[None, :]))
    return W + torch.diag(1 - W.sum(1))


@checked("topology")
def star(n: PositiveInt) -> Topology:
    """Connect client 0 with every other client, weighted by `metropolis`.

    W is 1/n on the links and for the hub itself, 1 - 1/n for each leaf itself; λ = 1 - 1/n from n = 3 on.

    >>> star(5)(0).diagonal()
    tensor([0.2000, 0.8000, 0.8000, 0.8000, 0.8000], dtype=torch.float64)
    """
    if n > DENSE:
        leaves, hub = torch.arange(1, n), torch.zeros(n - 1, dtype=torch.int64)
        rows, columns = torch.cat([leaves, hub]), torch.cat([hub, leaves])
        spokes = sparse(rows, columns, torch.full((2 * (n - 1),), 1 / n, dtype=torch.float64), n)
        own = torch.full((n,), 1 - 1 / n, dtype=torch.float64)
        own[0] = 1 / n
        return _fixed("star", with_diagonal(spokes, own))
    links = torch.zeros(n, n, dtype=torch.bool)
    links[0, :] = links[:, 0] = True
    return _fixed("star", metropolis(links))
