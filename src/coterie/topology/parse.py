"""A topology from what people have at hand: a text, a Topology, or a function of the round."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core.annotations import PositiveInt
from ..core.arguments import checked
from ..core.custom import import_function, own_name
from ..core.errors import UserError, noted, unknown
from ..core.spec import Spec, bind, parameters, parse, spelled
from .draws import clique, one_peer_exponential, random, random_pull, random_push
from .facts import Stochastic, stochasticity
from .graphs import Topology, TopologyLike, alike, exponential, full, grid, none, ring, star
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
    returns is checked in every round. A function may also take ``losses`` [n], ``models`` [n, numbers] or both, which
    are what the clients have trained in the round before they mix.

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
    uses = _used(topology)
    kind = stochasticity(_checked(topology, n, 0, **alike(uses, n)))
    return Topology("custom", n, kind, False, partial(_same_kind, topology, n, kind), uses)


def _used(function: Callable[..., Tensor]) -> frozenset[str]:
    """Return what a function takes of the clients' training beside the round."""
    takes = inspect.signature(function)
    uses = frozenset({"losses", "models"} & takes.parameters.keys())
    try:
        takes.bind(0, **dict.fromkeys(uses))
    except TypeError as error:
        raise UserError(
            f"no topology takes the arguments {takes}: write a function of the round t, and of losses or models by "
            "these names"
        ) from error
    return uses


def _from_text(text: str, n: int, seed: int) -> Topology:
    spec = parse(spelled(text, BUILDERS))
    if spec.name not in BUILDERS and (name := own_name(text)) is not None:
        return _of_function(text, name, spec, n, seed)
    if spec.name not in BUILDERS:
        raise unknown("topology", spec.name, BUILDERS)
    make = BUILDERS[spec.name]
    takes = parameters(make)
    seeded = {"seed": seed} if "seed" in takes else {}
    return make(n, **bind("topology", spec, {k: p for k, p in takes.items() if k not in ("n", "seed")}), **seeded)


def _of_function(text: str, name: str, spec: Spec, n: int, seed: int) -> Topology:
    """Return what a function of one's own makes for n clients: a matrix, a Topology, or a function of the round."""
    make = import_function(name, "topology")
    takes = parameters(make)
    given = {key: value for key, value in (("n", n), ("seed", seed)) if key in takes}
    if "n" not in given:
        raise UserError(f"{name} does not take n, the number of clients: write it as a function of n")
    free = {key: p for key, p in takes.items() if key not in given}
    made = make(**given, **bind("topology", Spec(name, spec.args[1:], spec.options), free))
    if isinstance(made, Tensor | np.ndarray):
        W = build(partial(_always, torch.as_tensor(made)), n)
        return replace(W, name=text, fixed=True, matrix=partial(_always, W(0)))
    if isinstance(made, str) or not callable(made):
        raise UserError(
            f"{name} returned {type(made).__name__}: return a matrix, a Topology or a function of the round"
        )
    return replace(build(made, n), name=text)


def _always(W: Tensor, t: int) -> Tensor:
    return W


def _checked(function: Callable[..., Tensor], n: int, t: int, **trained: Tensor) -> Tensor:
    """Return W of round t in float64; refuse what cannot be a mixing matrix of n clients."""
    with noted(f"It happened in the function of the topology, with t={t}."):
        returned = function(t, **trained)
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


def _same_kind(function: Callable[..., Tensor], n: int, kind: Stochastic, t: int, **trained: Tensor) -> Tensor:
    W = _checked(function, n, t, **trained)
    if stochasticity(W) not in (kind, "doubly"):
        raise _wrong(t, f"not {kind} stochastic as that of round 0", "return the same kind every round")
    return W


def _wrong(t: int, what: str, fix: str) -> UserError:
    return UserError(f"the topology's matrix of round {t} is {what}: {fix}")


def fit_topology(graph: str, clients: int) -> str:
    """Return a graph with as many neighbors as so few clients allow.

    >>> [fit_topology(graph, 5) for graph in ("random-pull:10", "clique:10,turns=4", "ring")]
    ['random-pull:4', 'clique:1,turns=4', 'ring']
    >>> fit_topology("random:10", 7)
    'random:6'
    """
    spec = parse(graph)
    if spec.name.startswith("random"):
        wanted = min(int(spec.args[0]), clients - 1)
        wanted -= spec.name == "random" and wanted % 2 and clients % 2  # an odd number of both makes no such graph
        return f"{spec.name}:{wanted}" if wanted > 0 else "none"
    if spec.name == "clique":
        several = {k: min(int(v), clients) for k, v in spec.options.items()}
        fits = max(1, min(int(spec.args[0]), clients // math.prod(several.values())))
        return str(spec._replace(args=(str(fits),), options=several))
    if "apart" in spec.options and clients <= 2 * int(spec.options["apart"]):
        return spec.name
    return graph
