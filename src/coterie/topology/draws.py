"""Topologies that change from round to round; a draw of round t depends on (seed, t) and on nothing else."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.rng import generator
from ..core.spec import PositiveInt, checked
from .graphs import Topology, circle_of, circulant, uniform
from .sparse import DENSE, circle, drawn, from_links


def _one_peer(n: int, powers: int, t: int) -> Tensor:
    return circle_of(n, (-(2 ** (t % powers)),))


@checked("topology")
def one_peer_exponential(n: PositiveInt) -> Topology:
    """In round t everybody sends to one other, i to i + 2^(t mod q) (mod n), with q = ⌈log₂ n⌉; weights 1/2.

    Every W is doubly stochastic. For n = 2^q the product of q rounds in a row is exactly J: everybody has the mean.

    >>> one_peer_exponential(4)(1)[3]
    tensor([0.0000, 0.5000, 0.0000, 0.5000], dtype=torch.float64)

    Reference: the default graph of the code of Assran et al., "Stochastic Gradient Push for Distributed Deep Learning",
    2019; Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training", 2021.
    """
    powers = max(1, (n - 1).bit_length())
    return Topology("one-peer-exponential", n, "doubly", False, partial(_one_peer, n, powers))


def _check_neighbors(name: str, n: int, k: int) -> None:
    """Refuse more neighbors than n clients can have."""
    if n == 1:
        raise UserError(f"{name}:{k} needs more than one client: use none, or {k + 1} clients")
    if k >= n:
        raise UserError(
            f"{name}:{k} needs more than {k} clients, there are {n}: "
            f"use {name}:{n - 1} or fewer, or at least {k + 1} clients"
        )


def _relabeled(n: int, offsets: tuple[int, ...], seed: int, t: int) -> Tensor:
    """The same circle with the clients' places drawn anew."""
    place = generator(seed, "topology", t).permutation(n)
    if n > DENSE:
        return circle(n, offsets, place)
    return uniform(circulant(n, offsets))[place][:, place]


@checked("topology")
def random(n: PositiveInt, k: PositiveInt, seed: int = 0) -> Topology:
    """An undirected graph in which everybody has k neighbors, new every round; weights 1/(k+1), W symmetric.

    The circulant {±1, ..., ±⌊k/2⌋}, for odd k with n/2 besides, under a random permutation of the clients.
    E‖Wx - x̄‖² = α ‖x - x̄‖² with α = (n/(k+1) - 1) / (n - 1).

    >>> W = random(20, 4, seed=1)(0)
    >>> (W > 0).sum(1).unique().item(), torch.equal(W, W.T)
    (5, True)
    """
    _check_neighbors("random", n, k)
    if k % 2 and n % 2:
        fewer = f"random:{k - 1} or " if k > 1 else ""
        raise UserError(
            f"random:{k} needs an even number of clients, there are {n}: use {fewer}random:{k + 1}, or {n + 1} clients"
        )
    reach = k // 2
    offsets = [offset for offset in range(-reach, reach + 1) if offset] + [n // 2] * (k % 2)
    return Topology(f"random:{k}", n, "doubly", False, partial(_relabeled, n, tuple(offsets), seed))


def _pull(n: int, k: int, seed: int, t: int) -> Tensor:
    if n > DENSE:
        senders = torch.from_numpy(drawn(n, k, generator(seed, "topology", t)))
        return from_links(torch.arange(n).repeat_interleave(k), senders.flatten(), n)
    # The places of the k smallest of n - 1 uniforms are a uniform set of k; stepping over i leaves i out.
    scores = generator(seed, "topology", t).random((n, n - 1))
    chosen = torch.from_numpy(np.argpartition(scores, k - 1, axis=1)[:, :k])
    i = torch.arange(n)[:, None]
    links = torch.zeros(n, n, dtype=torch.bool)
    links[i, chosen + (chosen >= i)] = True
    return uniform(links)


def _push(n: int, k: int, seed: int, t: int) -> Tensor:
    W = _pull(n, k, seed, t).T
    return W.coalesce() if W.is_sparse else W.contiguous()


@checked("topology")
def random_pull(n: PositiveInt, k: PositiveInt, seed: int = 0) -> Topology:
    """Every client receives from k others it draws each round: W[i, j] = 1/(k+1), rows sum to 1.

    E W = I/(k+1) + k/((k+1)(n-1)) (11ᵀ - I), but a single draw does not preserve the mean.

    >>> (random_pull(10, 3)(0) > 0).sum(1).tolist()
    [4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    """
    _check_neighbors("random-pull", n, k)
    return Topology(f"random-pull:{k}", n, "row", False, partial(_pull, n, k, seed))


@checked("topology")
def random_push(n: PositiveInt, k: PositiveInt, seed: int = 0) -> Topology:
    """Every client sends to k others it draws each round: W[j, i] = 1/(k+1), columns sum to 1.

    The sum over the clients is preserved; how much one client receives varies, which push-sum corrects.

    >>> (random_push(10, 3)(0) > 0).sum(0).tolist()
    [4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    """
    _check_neighbors("random-push", n, k)
    return Topology(f"random-push:{k}", n, "column", False, partial(_push, n, k, seed))


def _cliques(n: int, size: int, count: int, turns: int, seed: int, t: int) -> Tensor:
    # Everybody gets a clique; those beyond the last one of this turn, or before its first, get one of their own.
    draw, turn = divmod(t, turns)
    member = torch.from_numpy(generator(seed, "topology", draw).permutation(n))
    group = torch.arange(n) // size
    mine = (group >= turn * count) & (group < (turn + 1) * count)
    group = torch.where(mine, group, torch.arange(n) + n)[member]
    if n > DENSE:
        inside = member.argsort()[turn * size * count :][: size * count].view(count, size)
        receivers, senders = inside[:, :, None].expand(-1, -1, size), inside[:, None, :].expand(-1, size, -1)
        return from_links(receivers.flatten(), senders.flatten(), n)
    return uniform(group[:, None] == group[None, :])


@checked("topology")
def clique(
    n: PositiveInt, size: PositiveInt, count: PositiveInt = 1, turns: PositiveInt = 1, seed: int = 0
) -> Topology:
    """Each round `count` disjoint random sets of `size` clients average among themselves; the rest is idle.

    W[i, j] = 1/size inside a set, W[i, i] = 1 for the idle. With `turns` nobody is drawn again before so many rounds,
    or gossip steps where each has a graph of its own, are over: the sets of all of them are disjoint.

    >>> (clique(7, size=3, count=2)(0) > 0).sum(1).sort().values.tolist()
    [1, 3, 3, 3, 3, 3, 3]
    """
    given = {"count": count, "turns": turns}
    name = f"clique:{size}" + "".join(f",{k}={v}" for k, v in given.items() if v > 1)
    needed = size * count * turns
    if needed > n:
        fewer = f"clique:{size},count={n // size}" if turns == 1 else f"clique:{size},turns={n // size}"
        fix = fewer if size <= n else f"clique:{n} or smaller"
        raise UserError(f"{name} needs {needed} clients, there are {n}: use {fix}")
    return Topology(name, n, "doubly", False, partial(_cliques, n, size, count, turns, seed))
