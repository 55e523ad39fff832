"""Models of low rank: FedLMT with one rank for everybody, pFedLMT with a rank a client."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from .. import topology as topologies
from ..batches import Integers
from ..errors import RequestError
from ..local import Phase
from ..problem import Model
from ..tensors import Tensors, Tree, put, rows
from ..topology import Topology
from ..views import TERMS, Pair, factor_pairs, factorise, front_names, penalty, recover
from .base import Algorithm, Problem, Program, View
from .capacities import DEPTHS, RANKS, Share, levels, refuse_staged, shares
from .families import decentralised, federated
from .forms import assigned
from .options import LMT_PAPER, Options, Training, check_choice, refuse_given, refuse_lasting
from .pushsum import push_sum
from .server import check_server

# (layers that stay whole, rank ratio) of one common model, by capacity
COMMON_RANKS = {"b1": (1, 0.03), "b2": (3, 0.15), "b3": (5, 0.4)}


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
        return push_sum(p, phases, t, graph, shared, tau=0)
    return decentralised(p, phases, t, graph, shared)


def fedlmt(
    *,
    rank_ratio: float | None = None,
    keep_layers: int | str | None = None,
    rank_mode: str = "channels",
    capacities: str | None = None,
    init: str = "kaiming",
    regulariser: str = "none",
    topology: str | Topology | None = None,
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """FedLMT: FedAvg on one model of low rank, small enough for everybody.

    x = (W_1 .. W_k, then U_l and V_l);   x_i <- local(x) along grad F_i + regulariser for i in S;   x <- sum_S q_i x_i

    rank_ratio: r = round(rank_ratio * c_out), or with rank_mode="definition" round(rank_ratio * min(k c_out, k c_in));
    keep_layers: how many layers stay whole; where they are not given, the published pair for the smallest of the
    ``capacities``, or 0.15 and 3; init: "kaiming" or "spectral"; regulariser: "none", "frobenius=1e-4", "l2=1e-4",
    "kronecker=1e-4" or several; topology: between peers instead of around a server.

    >>> fedlmt(regulariser="frobenius=1e-4").settings["keep_layers"]
    3

    Reference: FedLMT/pFedLMT, Algorithm 1.
    Differs from the paper in: the coefficient of its regulariser, which it tunes and does not print, is 0; the
    released scripts for CIFAR use none either. Clients count by their size, as in the code; the listing has equal
    weights. r = round(rank_ratio * c_out), because its Definition 3.1 read literally (rank_mode="definition") does
    not give the counts of its Table 1.
    """
    check_server(participation, weighting, 1.0)
    coefficients(regulariser)
    refuse_staged("fedlmt", capacities, "trains one model of one rank in all rounds")
    keep, ratio = _common_rank(capacities, rank_ratio, keep_layers)
    t = LMT_PAPER.given(options)

    def bind(p: Problem) -> Program[Any]:
        phases = [Phase(p.parameters, t.amount, t.lr)]
        return exchanged(p, phases, t, topology, p.names, participation, weighting)

    form = {"rank_ratio": ratio, "keep_layers": keep, "rank_mode": rank_mode, "init": init, "regulariser": regulariser}
    server = {"topology": topology, "participation": participation, "weighting": weighting}
    settings = {**form, "capacities": None, **server, **t._asdict()}
    return Algorithm("fedlmt", settings, bind, lambda model: low_rank(model, ratio, keep, init, regulariser, rank_mode))


def _common_rank(
    capacities: str | None, rank_ratio: float | None, keep_layers: int | str | None
) -> tuple[int | str, float]:
    """(layers that stay whole, rank ratio): as given, else for the smallest capacity."""
    if rank_ratio is not None and keep_layers is not None:
        refuse_given("rank_ratio and keep_layers make the model", {"capacities": capacities}, "one of those two out")
    name = f"b{min(levels(capacities or 'b2', DEPTHS)):g}"
    if name not in COMMON_RANKS and (rank_ratio is None or keep_layers is None):
        raise RequestError(
            f"capacities={capacities} leave fedlmt nothing to do: name {', '.join(COMMON_RANKS)} among them, or give "
            "rank_ratio and keep_layers"
        )
    keep, ratio = COMMON_RANKS.get(name, COMMON_RANKS["b2"])
    return keep if keep_layers is None else keep_layers, ratio if rank_ratio is None else rank_ratio


def pfedlmt(
    *,
    capacities: str = "b4-b3-b2",
    keep_layers: int | str = 9,
    rank_mode: str = "channels",
    schedule: str = "joint",
    regulariser: str = "none",
    topology: str | Topology | None = None,
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """pFedLMT: common layers in front, and behind them personal ones of a rank that fits the client.

    (p_i, q_i) <- local(p, q_i) for i in S;   p <- sum_S w_i p_i
    q_i: layers of rank round(ratio_i * c_out), and the head

    capacities: rank ratios by client, "b4-b3-b2" (1.4, 0.6, 0.15), "1-0.25" or "b4x15-b2x5"; keep_layers: how many
    layers are common; rank_mode: "channels", or "definition", where ratios are of min(k c_out, k c_in) and at most 1;
    schedule: "joint", or "alternate": the first half of the steps trains q, the second p; topology: between peers
    instead of around a server. q_i starts as the nearest product of the common model's layers.

    >>> pfedlmt().settings["keep_layers"]
    9

    Reference: FedLMT/pFedLMT, Algorithm 3.
    Differs from the paper in: no regulariser unless asked (the released script has frobenius=1e-6). The released
    code alternates, schedule="alternate". Its decomposition into a client's rank does not approximate the layer;
    here it is the nearest product.
    """
    check_server(participation, weighting, 1.0)
    check_choice("schedule", schedule, ("joint", "alternate"))
    refuse_staged("pfedlmt", capacities, "keeps a client's rank: new columns of its personal layers would stay zero")
    coefficients(regulariser)
    t = LMT_PAPER.given(options)
    refuse_lasting("pfedlmt", t)

    def adapt(model: Model) -> Model:
        """In the largest rank: smaller ones are its first columns, the rest of which are zero and stay so."""
        return low_rank(model, max(levels(capacities, RANKS)), keep_layers, "spectral", regulariser, rank_mode)

    def bind(p: Problem) -> Program[Any]:
        front = front_names(p.module)
        groups = [
            (s, rank_view(p, s.capacity, keep_layers, regulariser, rank_mode))
            for s in shares(capacities, RANKS, p.clients, p.rounds)
        ]
        own = replace(p, views=lambda r: assigned(groups, r))
        program = exchanged(own, _phases(p, front, schedule, t), t, topology, front, participation, weighting)
        return program._replace(init=lambda common, each: _truncated(program.init(common, each), groups, p.here))

    ranks = {"capacities": capacities, "keep_layers": keep_layers, "rank_mode": rank_mode}
    form = {**ranks, "schedule": schedule, "regulariser": regulariser}
    server = {"topology": topology, "participation": participation, "weighting": weighting}
    return Algorithm("pfedlmt", {**form, **server, **t._asdict()}, bind, adapt)


def _phases(p: Problem, front: frozenset[str], schedule: str, t: Training) -> list[Phase]:
    if schedule == "joint":
        return [Phase(p.parameters, t.amount, t.lr)]
    first, second = t.amount._replace(half=1), t.amount._replace(half=2)
    return [Phase(p.parameters - front, first, t.lr, stream=1), Phase(p.parameters & front, second, t.lr)]


def rank_view(p: Problem, rank_ratio: float, keep_layers: int | str, regulariser: str, rank_mode: str) -> View:
    """The first columns of all factors; zero columns have no gradient, so the padded form answers and trains alike."""
    small = factorise(recover(p.module), rank_ratio, keep_layers, "kaiming", rank_mode=rank_mode)
    full, part = (dict(m.named_parameters()) for m in (p.module, small))
    columns = {name: at for pair in factor_pairs(small) for name, at in _columns(pair, part).items()}

    def take(x: Tensors, where: Tree) -> Tensors:
        return {k: v.narrow(columns[k], 0, part[k].shape[columns[k]]) if k in columns else v for k, v in x.items()}

    def put(x: Tensors, where: Tree) -> tuple[Tensors, Tensors]:
        return {k: _padded(v, columns[k], full[k].shape[columns[k]]) if k in columns else v for k, v in x.items()}, {}

    return View(regularised(small, p.model, regulariser), take, put)


def _columns(pair: Pair, shapes: Mapping[str, Tensor]) -> dict[str, int]:
    """In which dimension each factor of a layer has its columns."""
    convolution = shapes[pair.U].dim() == 4
    return {pair.U: 1, pair.V: 0 if convolution else 1}


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    zeros = x.new_zeros([size - x.shape[dim] if d == dim else s for d, s in enumerate(x.shape)])
    return torch.cat([x, zeros], dim)


def _truncated(state: Any, groups: list[tuple[Share, View]], here: Integers) -> Any:
    """A state in which everybody has the columns of its rank only."""
    slot = "v" if hasattr(state, "v") else "x"
    own: Tensors = getattr(state, slot)
    for share, view in groups:
        mine = torch.from_numpy(np.flatnonzero(np.isin(here, share.clients))).to(next(iter(own.values())).device)
        if not len(mine):
            continue
        cut: Tensors = vmap(lambda x, view=view: view.put(view.take(x, {}), {})[0])(rows(own, mine))
        own = put(own, mine, cut)
    return state._replace(**{slot: own})
