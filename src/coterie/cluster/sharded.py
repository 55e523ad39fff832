"""The engine of one shard: its own clients run here, mixing and averages reach all the others.

Every shard runs the same program on its own clients, and so comes to the same exchanges in the same order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.tensors import Tensors, Tree
from ..data.batches import Batches, Integers
from ..engines.base import Engine, Grad, Objective, Statistic, Step, statistics
from ..topology.sparse import entries, valued


class Channel(Protocol):
    """How shards reach each other; all of them call the same."""

    def swap(self, out: Mapping[int, Tensors]) -> Mapping[int, Tensors]:
        """To other shards, by number; what others have sent here comes back."""

    def total(self, x: Tensors) -> Tensors:
        """The sum over all shards."""


class Paths(NamedTuple):
    """What a mixing matrix asks of one shard."""

    crossing: bool  # whether any message goes from shard to shard, wherever
    out: dict[int, Tensor]  # shard -> places of the clients it hears
    needed: Integers  # the clients that are heard here, in ascending order
    matrix: Tensor  # [m, len(needed)]


class Sharded:
    """The clients of one shard on an engine of their own."""

    def __init__(self, inner: Engine, link: Channel, shard: int, owner: Integers) -> None:
        self.inner, self.link, self.shard, self.owner = inner, link, shard, owner
        self.local_clients = np.flatnonzero(owner == shard)
        self.shards = int(owner.max()) + 1
        self._known: tuple[Tensor, Paths] | None = None  # of the latest matrix

    @property
    def name(self) -> str:
        """That of the engine inside."""
        return self.inner.name

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """``f`` on every client of this shard."""
        return self.inner.map(f, *clients, keys=keys)

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """``step`` through all batches of every client of this shard."""
        return self.inner.scan(step, given, fixed, batches, keys)

    def gradient(self, objective: Objective) -> Grad:
        """As the engine inside differentiates."""
        return self.inner.gradient(objective)

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """sum_j W[i, j] x_j for the clients of this shard: rows of others come along the edges of W.

        Where W is this shard's piece of a server's row, the sum over all shards.
        """
        if W.dim() == 1:
            return self._served(W, x)
        paths = self._paths(W)
        inbox = self._inbox(paths, x)
        return {
            k: (paths.matrix.to(own) @ _flat(self._heard(paths, k, own, inbox))).view_as(own) for k, own in x.items()
        }

    def pairwise(self, f: Statistic, W: Tensor, x: Tensors) -> Tensor:
        """[n, n] f(x_i, x_j) along every link of W: each shard computes it for its own receivers, and all add up."""
        paths = self._paths(W)
        inbox = self._inbox(paths, x)
        heard = {k: self._heard(paths, k, own, inbox) for k, own in x.items()}
        mine, weights = self.owner[entries(W)[0].cpu().numpy()] == self.shard, entries(W)[2]
        part = torch.zeros_like(weights)
        part[torch.from_numpy(mine)] = statistics(f, x, heard, *entries(paths.matrix)[:2]).to(part)
        return valued(W, self.link.total({"pairwise": part})["pairwise"])

    def _inbox(self, paths: Paths, x: Tensors) -> Mapping[int, Tensors]:
        """What the other shards have sent, by shard: each sends the rows of its clients that are heard elsewhere."""
        if not (x and paths.crossing):
            return {}
        return self.link.swap({d: {k: v[at.to(v.device)] for k, v in x.items()} for d, at in paths.out.items()})

    def _heard(self, paths: Paths, name: str, own: Tensor, inbox: Mapping[int, Tensors]) -> Tensor:
        """[needed] the rows of one tensor that are heard here."""
        heard = own.new_empty(len(paths.needed), *own.shape[1:])
        of = self.owner[paths.needed]
        for shard in (self.shard, *inbox):
            at = np.flatnonzero(of == shard)
            mine = np.searchsorted(self.local_clients, paths.needed[at])
            rows = own[torch.from_numpy(mine)] if shard == self.shard else inbox[shard][name].to(own)
            heard[torch.from_numpy(at)] = rows
        return heard

    def _paths(self, W: Tensor) -> Paths:
        if self._known is None or self._known[0] is not W:
            self._known = W, paths_of(W, self.owner, self.shard)
        return self._known[1]

    def _served(self, row: Tensor, x: Tensors) -> Tensors:
        """sum_j W[j] x_j over the clients of all shards."""
        if not x:
            return {}
        sums = self.link.total({k: (row.to(v) @ _flat(v)).view(v.shape[1:]) for k, v in x.items()})
        return {k: v.to(x[k]) for k, v in sums.items()}

    def all_mean(self, x: Tensors, clients: int) -> Tensors:
        """The mean over all clients of which ``x`` is the mean over those of this shard."""
        if not x:
            return {}
        sums = self.link.total({k: v * clients for k, v in x.items()})
        return {k: (v / len(self.owner)).to(x[k]) for k, v in sums.items()}


def paths_of(W: Tensor, owner: Integers, shard: int) -> Paths:
    """Who must be heard here, and who from here is heard elsewhere: every shard reads it off the same matrix."""
    rows, columns, weights = (v.cpu().numpy() for v in entries(W))
    to, of = owner[rows], owner[columns]
    here = np.flatnonzero(owner == shard)
    away = (of == shard) & (to != shard)
    pairs = np.unique(to[away] * len(owner) + columns[away])  # a client once for each shard that hears it
    targets, senders = pairs // len(owner), np.searchsorted(here, pairs % len(owner))
    mine = to == shard
    needed = np.unique(columns[mine])
    places = torch.from_numpy(np.stack([np.searchsorted(here, rows[mine]), np.searchsorted(needed, columns[mine])]))
    size = (len(here), len(needed))
    matrix = torch.sparse_coo_tensor(places, torch.from_numpy(weights[mine]), size, check_invariants=False).coalesce()
    return Paths(
        bool((to != of).any()),
        {int(d): torch.from_numpy(senders[targets == d]) for d in np.unique(targets)},
        needed,
        (matrix if W.is_sparse else matrix.to_dense()).to(W.device),
    )


def _flat(v: Tensor) -> Tensor:
    """[m, numbers], where m may be 0."""
    return v.reshape(len(v), math.prod(v.shape[1:]))
