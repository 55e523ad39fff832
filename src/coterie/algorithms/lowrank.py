"""The common parts of low-rank methods: the model as products, its regularizer, and the exchange of one's choice."""

from dataclasses import replace
from typing import Any

from torch import nn

from .. import topology as topologies
from ..core.errors import UserError
from ..local.steps import Phase
from ..models.model import Model
from ..models.parts import origin_of
from ..submodels import TERMS, FactorInit, RankMode, factor_pairs, factorize_trained, penalty
from ..topology import TopologyLike
from .base import Problem, Program
from .options import Training, Weighting
from .peers import decentralized
from .pushsum import push_sum
from .server import federated


def coefficients(text: str) -> dict[str, float]:
    """Read a regularizer as typed: "none", "frobenius=1e-4", or several with commas.

    >>> coefficients("frobenius=1e-4,l2=1e-5")
    {'frobenius': 0.0001, 'l2': 1e-05}
    """
    if text == "none":
        return {}
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise UserError(
            f"regularizer={text!r} is no list of terms: write frobenius=1e-4, or several of {', '.join(TERMS)}"
        ) from None


def low_rank(
    model: Model, rank_ratio: float, keep_layers: int | str, init: FactorInit, regularizer: str, rank_mode: RankMode
) -> Model:
    """Return the model with its layers as products, and the regularizer in its loss."""
    seed = origin_of(model.module).get("seed", 0)
    module = factorize_trained(model.module, rank_ratio, keep_layers, init, seed, rank_mode)
    return regularized(module, model, regularizer)


def regularized(module: nn.Module, model: Model, regularizer: str) -> Model:
    """Return a module in low-rank form with the loss of ``model`` and the regularizer."""
    terms = coefficients(regularizer)
    added = penalty(factor_pairs(module), terms) if any(terms.values()) else None
    return replace(model.like(module), penalty=added)


def exchange_by(
    p: Problem,
    phases: list[Phase],
    t: Training,
    topology: TopologyLike | None,
    shared: frozenset[str],
    participation: float | int,
    weighting: Weighting,
) -> Program[Any]:
    """Return the program with a server, or over a graph, with push-sum where only its columns sum to 1."""
    if topology is None:
        return federated(p, phases, t, shared, participation, weighting)
    graph = topologies.build(topology, p.clients, p.seed)
    if graph.stochastic == "column":
        return push_sum(p, phases, t, graph, shared)
    return decentralized(p, phases, t, graph, shared)
