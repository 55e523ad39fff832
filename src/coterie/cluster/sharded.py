"""The engine of one shard: it runs the shard's own clients, while mixing and means include the clients of all shards.

Every shard runs the same program on its own clients, so all shards reach the same exchanges in the same order.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.tensors import Integers, Tensors, concatenate
from ..engines.base import Engine, MixingRule, Moved, Statistic, combined, moved, statistics
from ..topology.sparse import diagonal, entries, with_values
from .shard_thread import ShardThread

ROW = "/row"  # stands beside what members send; no tensor of a model has that name


class Paths(NamedTuple):
    """What a mixing matrix means for one shard."""

    crossing: bool  # whether any message goes from one shard to another, not only to or from this one
    out: dict[int, Tensor]  # receiving shard -> rows of the local clients that it needs
    needed: Integers  # the clients that local clients receive from, in ascending order
    matrix: Tensor  # [m, len(needed)]


class Sharded:
    """An engine around the engine that runs the clients of one shard."""

    def __init__(self, inner: Engine, thread: ShardThread, shard: int, shard_of: Integers) -> None:
        self.inner, self.thread, self.shard, self.shard_of = inner, thread, shard, shard_of
        self.name, self.map, self.scan, self.gradient = inner.name, inner.map, inner.scan, inner.gradient
        self.local_clients = np.flatnonzero(shard_of == shard)
        self._latest: tuple[Tensor, Paths] | None = None  # the latest matrix and its paths

    def mix(self, W: Tensor, x: Tensors) -> Tensors:
        """Return sum_j W[i, j] x_j for the clients of this shard; rows of other clients come along the edges of W.

        Where W is this shard's piece of a server's row, return the sum over all shards.
        """
        if W.dim() == 1:
            return self._serve(W, x)
        paths, inbox = self._exchange(W, x)
        return {k: (paths.matrix.to(v) @ _flat(self._rows(paths, k, v, inbox))).view_as(v) for k, v in x.items()}

    def combine(self, rule: MixingRule, W: Tensor, x: Tensors, own: Tensors | None = None) -> Tensors:
        """Return what ``rule`` makes of the rows that the clients of this shard hear, wherever they come from.

        Where W is this shard's piece of a server's row, every shard gets all rows and makes the same of them.
        """
        if W.dim() == 1:
            assert own is not None
            return rule(own, *self._gather(W, x))
        paths, received = self._receive(W, x)
        i, j, weights = entries(paths.matrix)
        others = torch.from_numpy(self.local_clients[i.cpu().numpy()] != paths.needed[j.cpu().numpy()]).to(i.device)
        return combined(rule, x, received, i[others], j[others], weights[others])

    def push(self, P: Tensor, x: Tensors, mass: Tensor) -> Moved:
        """Return what stays with every client of this shard, and what comes to it."""
        return moved(self.mix, diagonal(P)[torch.from_numpy(self.local_clients)], P, x, mass)

    def pairwise(self, f: Statistic, W: Tensor, x: Tensors) -> Tensor:
        """Return [n, n] f(x_i, x_j) along every link of W: each shard computes its own receivers', and all add up."""
        paths, received = self._receive(W, x)
        receivers, _, weights = entries(W)
        part = torch.zeros_like(weights)
        mine = torch.from_numpy(self.shard_of[receivers.cpu().numpy()] == self.shard)
        part[mine] = statistics(f, x, received, *entries(paths.matrix)[:2]).to(part)
        return with_values(W, self.thread.total({"pairwise": part})["pairwise"])

    def _receive(self, W: Tensor, x: Tensors) -> tuple[Paths, Tensors]:
        """Return the paths of W and the rows that come along them, this shard's own included."""
        paths, inbox = self._exchange(W, x)
        return paths, {k: self._rows(paths, k, v, inbox) for k, v in x.items()}

    def _exchange(self, W: Tensor, x: Tensors) -> tuple[Paths, Mapping[int, Tensors]]:
        """Send the rows that other shards need along the edges of W; return the paths and what others send here."""
        if self._latest is None or self._latest[0] is not W:
            self._latest = W, paths_of(W, self.shard_of, self.shard)
        paths = self._latest[1]
        if not (x and paths.crossing):
            return paths, {}
        out = {d: {k: v[at.to(v.device)] for k, v in x.items()} for d, at in paths.out.items()}
        return paths, self.thread.swap(out)

    def _rows(self, paths: Paths, name: str, own: Tensor, inbox: Mapping[int, Tensors]) -> Tensor:
        """Return [needed] the rows of one tensor, from this shard's own and from the others' messages."""
        found = own.new_empty(len(paths.needed), *own.shape[1:])
        sender = self.shard_of[paths.needed]
        for shard in (self.shard, *inbox):
            at = np.flatnonzero(sender == shard)
            mine = np.searchsorted(self.local_clients, paths.needed[at])
            rows = own[torch.from_numpy(mine)] if shard == self.shard else inbox[shard][name].to(own)
            found[torch.from_numpy(at)] = rows
        return found

    def _serve(self, row: Tensor, x: Tensors) -> Tensors:
        """Return sum_j W[j] x_j over the clients of all shards."""
        if not x:
            return {}
        sums = self.thread.total({k: (row.to(v) @ _flat(v)).view(v.shape[1:]) for k, v in x.items()})
        return {k: v.to(x[k]) for k, v in sums.items()}

    def _gather(self, row: Tensor, x: Tensors) -> tuple[Tensor, Tensors]:
        """Return a server's whole row and the rows of all its members, in the order of the shards that have some."""
        mine = {ROW: row, **x}
        shards = range(int(self.shard_of.max()) + 1)
        inbox = self.thread.swap({d: mine for d in shards if d != self.shard} if len(row) else {})
        rows = {d: {k: inbox[d][k].to(v) for k, v in mine.items()} for d in inbox} | {self.shard: mine}
        everything: Tensors = concatenate([rows[d] for d in shards if d in rows])
        return everything.pop(ROW), everything

    def all_mean(self, x: Tensors, clients: int) -> Tensors:
        """Return the mean over all clients, where ``x`` is the mean over the clients of this shard."""
        if not x:
            return {}
        sums = self.thread.total({k: v * clients for k, v in x.items()})
        return {k: (v / len(self.shard_of)).to(x[k]) for k, v in sums.items()}


def paths_of(W: Tensor, shard_of: Integers, shard: int) -> Paths:
    """Return whose rows this shard needs and which of its rows others need: every shard reads it off the same W."""
    rows, columns, weights = (v.cpu().numpy() for v in entries(W))
    receiver, sender = shard_of[rows], shard_of[columns]
    local = np.flatnonzero(shard_of == shard)
    outgoing = (sender == shard) & (receiver != shard)
    pairs = np.unique(receiver[outgoing] * len(shard_of) + columns[outgoing])  # a client once for each shard
    targets, senders = pairs // len(shard_of), np.searchsorted(local, pairs % len(shard_of))
    mine = receiver == shard
    needed = np.unique(columns[mine])
    places = torch.from_numpy(np.stack([np.searchsorted(local, rows[mine]), np.searchsorted(needed, columns[mine])]))
    size = (len(local), len(needed))
    matrix = torch.sparse_coo_tensor(places, torch.from_numpy(weights[mine]), size, check_invariants=False).coalesce()
    return Paths(
        bool((receiver != sender).any()),
        {int(d): torch.from_numpy(senders[targets == d]) for d in np.unique(targets)},
        needed,
        (matrix if W.is_sparse else matrix.to_dense()).to(W.device),
    )


def _flat(v: Tensor) -> Tensor:
    """Return [m, numbers], where m may be 0."""
    return v.reshape(len(v), math.prod(v.shape[1:]))
