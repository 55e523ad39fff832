"""pFedLMT: common layers in front, and personal ones of a rank that fits the client."""

from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ..core.tensors import Integers, Tensors, Tree, put, rows
from ..local.steps import Phase
from ..models.model import Model
from ..submodels import RankMode, column_dimensions, factorize_trained, front_names, recover, truncate_tensors
from .base import Submodel
from .capacities import RANKS, Share, levels, refuse_changing, shares
from .lowrank import coefficients, exchange_by, low_rank, regularized
from .method import (
    Options,
    Participation,
    Presets,
    Problem,
    Program,
    TopologyLike,
    Training,
    Weighting,
    method,
)
from .options import LMT_PAPER, refuse_kept
from .update import assigned


def _check(t: Training, capacities: str, regularizer: str) -> None:
    refuse_changing("pfedlmt", capacities, "keeps a client's rank: new columns of its personal layers would stay zero")
    coefficients(regularizer)
    refuse_kept(t)


def _largest(model: Model, capacities: str, keep_layers: int | str, regularizer: str, rank_mode: RankMode) -> Model:
    """Return the model in the largest rank: smaller ranks are its first columns; the others are zero and stay so."""
    return low_rank(model, max(levels(capacities, RANKS)), keep_layers, "spectral", regularizer, rank_mode)


PRESETS: Presets = {
    "small": {"clip": 10.0},  # factors multiply: without it push-sum's uneven steps diverge
    "text": {"clip": None, "keep_layers": "tokens,positions,layers.*"},  # the decoder alone is personal
}


@method(LMT_PAPER, check=_check, adapt=_largest, presets=PRESETS, submodel="rank by client")
def pfedlmt(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    keep_layers: int | str = 9,
    rank_mode: RankMode = "channels",
    schedule: Literal["joint", "alternate"] = "joint",
    regularizer: str = "none",
    topology: TopologyLike | None = None,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Any]:
    """pFedLMT: common layers in front, and behind them personal ones of a rank that fits the client.

    (p_i, q_i) <- local(p, q_i) for i in S;   p <- sum_S w_i p_i
    q_i: layers of rank round(ratio_i * c_out), and the head

    q_i starts as the nearest product of the common model's layers.

    Args:
        capacities: Rank ratios by client, "b4-b3-b2" (1.4, 0.6, 0.15), "1-0.25" or "b4x15-b2x5".
        keep_layers: How many layers are common.
        schedule: "joint", or "alternate": the first half of the steps trains q, the second p.
        topology: Between peers instead of with a server: a string such as "ring", or a Topology.

    >>> pfedlmt().settings["keep_layers"]
    9

    Reference: FedLMT/pFedLMT, Algorithm 3.
    Differs from the paper in: no regularizer unless asked (the released script has frobenius=1e-6). The released
    code alternates, schedule="alternate". Its decomposition into a client's rank does not approximate the layer;
    here it is the nearest product.
    """
    front = front_names(p.module) & p.names
    groups = [
        (s, rank_submodel(p, s.capacity, keep_layers, regularizer, rank_mode))
        for s in shares(capacities, RANKS, p.clients, p.rounds)
    ]
    own = replace(p, submodels=lambda r: assigned(groups, r))
    program = exchange_by(own, _phases(p, front, schedule, t), t, topology, front, participation, weighting)

    def init(common: Tensors, each: Tensors) -> Any:
        return program.init(common, _truncated(each, groups, p.local_clients))

    return program._replace(init=init)


def _phases(p: Problem, front: frozenset[str], schedule: str, t: Training) -> list[Phase]:
    if schedule == "joint":
        return [Phase(p.parameters, t.amount, t.lr)]
    first, second = t.amount._replace(half=1), t.amount._replace(half=2)
    return [Phase(p.parameters - front, first, t.lr, stream=1), Phase(p.parameters & front, second, t.lr)]


def rank_submodel(
    p: Problem, rank_ratio: float, keep_layers: int | str, regularizer: str, rank_mode: RankMode
) -> Submodel:
    """Return the submodel of first columns; zero columns have no gradient, so the padded form trains alike."""
    small = factorize_trained(recover(p.module), rank_ratio, keep_layers, "kaiming", 0, rank_mode)
    full, columns = dict(p.module.named_parameters()), column_dimensions(small)

    def extract(x: Tensors, index: Tree) -> Tensors:
        return truncate_tensors(small, x)

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        return {k: _padded(v, columns[k], full[k].shape[columns[k]]) if k in columns else v for k, v in x.items()}, {}

    return Submodel(regularized(small, p.model, regularizer), extract, embed)


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    zeros = x.new_zeros([size - x.shape[dim] if d == dim else s for d, s in enumerate(x.shape)])
    return torch.cat([x, zeros], dim)


def _truncated(models: Tensors, groups: list[tuple[Share, Submodel]], clients: Integers) -> Tensors:
    """Return stacked models of which each has the columns of its client's rank only."""
    for share, submodel in groups:
        mine = torch.from_numpy(np.flatnonzero(np.isin(clients, share.clients))).to(next(iter(models.values())).device)
        if not len(mine):
            continue
        cut: Tensors = vmap(lambda x, submodel=submodel: submodel.embed(submodel.extract(x, {}), {})[0])(
            rows(models, mine)
        )
        models = put(models, mine, cut)
    return models
