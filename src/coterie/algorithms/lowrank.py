"""What methods of low rank have in common: the model as products, its regulariser, and an exchange of one's choice."""

from dataclasses import replace
from typing import Any

from torch import nn

from .. import topology as topologies
from ..errors import RequestError
from ..local import Phase
from ..problem import Model
from ..topology import Topology
from ..views import TERMS, factor_pairs, factorise, penalty
from .base import Problem, Program
from .options import Training
from .peers import decentralised
from .pushsum import push_sum
from .server import federated


def coefficients(text: str) -> dict[str, float]:
    """A regulariser as typed: "none", "frobenius=1e-4", or several with commas.

    >>> coefficients("frobenius=1e-4,l2=1e-5")
    {'frobenius': 0.0001, 'l2': 1e-05}
    """
    if text == "none":
        return {}
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise RequestError(
            f"regulariser={text!r} is no list of terms: write frobenius=1e-4, or several of {', '.join(TERMS)}"
        ) from None


def low_rank(
    model: Model, rank_ratio: float, keep_layers: int | str, init: str, regulariser: str, rank_mode: str
) -> Model:
    """The model with its layers as products, and the regulariser in its loss."""
    seed = getattr(model.module, "origin", {}).get("seed", 0)
    module = factorise(model.module, rank_ratio, keep_layers, init, seed, rank_mode)
    return regularised(module, model, regulariser)


def regularised(module: nn.Module, model: Model, regulariser: str) -> Model:
    """A module in low-rank form with the loss of ``model`` and the regulariser."""
    terms = coefficients(regulariser)
    added = penalty(factor_pairs(module), terms) if any(terms.values()) else None
    return replace(model.like(module), penalty=added)


def exchanged(
    p: Problem,
    phases: list[Phase],
    t: Training,
    topology: str | Topology | None,
    shared: frozenset[str],
    participation: float | int,
    weighting: str,
) -> Program[Any]:
    """Around a server; or over a graph, with push-sum where only its columns sum to 1."""
    if topology is None:
        return federated(p, phases, t, shared, participation, weighting)
    graph = topologies.build(topology, p.clients, p.seed)
    if graph.stochastic == "column":
        return push_sum(p, phases, t, graph, shared)
    return decentralised(p, phases, t, graph, shared)
