"""A topology from what people have at hand: a text, a Topology, or a function of the round."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..core.annotations import PositiveInt
from ..core.arguments import checked
from ..core.errors import UserError, noted, unknown
from ..core.spec import bind, parameters, parse, spelled
from .draws import clique, one_peer_exponential, random, random_pull, random_push
from .facts import Stochastic, stochasticity
from .graphs import Topology, TopologyLike, exponential, full, grid, none, ring, star
from .sparse import DENSE, diagonal, entries

BUILDERS: dict[str, Callable[..., Topology]] = {
    "ring": ring,
    "grid": grid,
    "exponential": exponential,
    "one-peer-exponential": one_peer_exponential,
    "full": full,
    "random": random,
    "random-pull": random_pull,
    "random-push": random_push,
    "clique": clique,
    "star": star,
    "none": none,
}


@checked("function")
def build(topology: TopologyLike, n: PositiveInt, seed: int = 0) -> Topology:
    """Return the topology for n clients that a text, a Topology or a function round -> W stands for.

    The seed is for texts of random topologies; the other two bring their own randomness. The matrix that a function
    returns is checked in every round.

    >>> build("random:10", n=100, seed=3).name
    'random:10'
    >>> build(lambda t: torch.eye(2), n=2).stochastic
    'doubly'
    """
    if isinstance(topology, str):
        return _from_text(topology, n, seed)
    if isinstance(topology, Topology):
        if topology.n != n:
            raise UserError(
                f"the topology {topology.name} is made for {topology.n} clients, there are {n}: make it with n={n}"
            )
        return topology
    kind = stochasticity(_checked(topology, n, 0))
    return Topology("custom", n, kind, False, partial(_same_kind, topology, n, kind))


def _from_text(text: str, n: int, seed: int) -> Topology:
    spec = parse(spelled(text, BUILDERS))
    if spec.name not in BUILDERS:
        raise unknown("topology", spec.name, BUILDERS)
    make = BUILDERS[spec.name]
    takes = parameters(make)
    seeded = {"seed": seed} if "seed" in takes else {}
    return make(n, **bind("topology", spec, {k: p for k, p in takes.items() if k not in ("n", "seed")}), **seeded)


def _checked(function: Callable[[int], Tensor], n: int, t: int) -> Tensor:
    """Return W of round t in float64; refuse what cannot be a mixing matrix of n clients."""
    with noted(f"It happened in the function of the topology, with t={t}."):
        returned = function(t)
    try:
        W = torch.as_tensor(returned, dtype=torch.float64, device="cpu")
        W = W.to_dense() if n <= DENSE else W.to_sparse().coalesce()
    except (RuntimeError, TypeError, ValueError) as error:
        raise _wrong(t, f"a {type(returned).__name__}", f"return a tensor of {n} x {n}") from error
    if W.shape != (n, n):
        shape = " x ".join(map(str, W.shape)) or "a single number"
        raise _wrong(t, shape, f"return {n} x {n}, one row and column a client")
    if not (entries(W)[2] >= 0).all():
        raise _wrong(t, "negative or no number in places", "return weights of 0 or more")
    if not (diagonal(W) > 0).all():
        raise _wrong(t, "zero on the diagonal", "let every client keep a share of its own")
    return W


def _same_kind(function: Callable[[int], Tensor], n: int, kind: Stochastic, t: int) -> Tensor:
    W = _checked(function, n, t)
    if stochasticity(W) not in (kind, "doubly"):
        raise _wrong(t, f"not {kind} stochastic as that of round 0", "return the same kind every round")
    return W


def _wrong(t: int, what: str, fix: str) -> UserError:
    return UserError(f"the topology's matrix of round {t} is {what}: {fix}")
