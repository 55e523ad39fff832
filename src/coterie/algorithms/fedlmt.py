"""FedLMT: FedAvg on one model of low rank."""

from typing import Any, Unpack

from ..core.errors import UserError
from ..local.steps import Phase
from ..submodels import FactorInit, RankMode
from .capacities import COMMON_RANKS, DEPTHS, levels, refuse_changing
from .lowrank import coefficients, exchange_by, low_rank
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
from .options import LMT_PAPER, refuse_unused

PRESETS: Presets = {
    "small": {"clip": 10.0},  # factors multiply: without it push-sum's uneven steps diverge
    "text": {"clip": None, "init": "spectral"},  # as the released code starts its transformer
}


def _rank(
    capacities: str | None, rank_ratio: float | None, keep_layers: int | str | None, regularizer: str
) -> dict[str, Any]:
    """Return the layers that stay whole and the rank ratio, by default those of the smallest capacity."""
    coefficients(regularizer)
    refuse_changing("fedlmt", capacities, "trains one model of one rank in all rounds")
    if rank_ratio is not None and keep_layers is not None:
        refuse_unused("rank_ratio and keep_layers make the model", {"capacities": capacities}, "one of those two out")
    name = f"b{min(levels(capacities or 'b2', DEPTHS)):g}"
    if name not in COMMON_RANKS and (rank_ratio is None or keep_layers is None):
        raise UserError(
            f"capacities={capacities} leave fedlmt nothing to do: name {', '.join(COMMON_RANKS)} among them, or give "
            "rank_ratio and keep_layers"
        )
    keep, ratio = COMMON_RANKS.get(name, COMMON_RANKS["b2"])
    return {
        "rank_ratio": ratio if rank_ratio is None else rank_ratio,
        "keep_layers": keep if keep_layers is None else keep_layers,
        "capacities": None,
    }


@method(LMT_PAPER, complete=_rank, adapt=low_rank, presets=PRESETS, theorem="low-rank", submodel="low rank")
def fedlmt(
    p: Problem,
    t: Training,
    *,
    rank_ratio: float | None = None,
    keep_layers: int | str | None = None,
    rank_mode: RankMode = "channels",
    capacities: str | None = None,
    init: FactorInit = "kaiming",
    regularizer: str = "none",
    topology: TopologyLike | None = None,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Any]:
    """FedLMT: FedAvg on one model of low rank, small enough for everybody.

    x = (W_1 .. W_k, then U_l and V_l);   x_i <- local(x) along grad F_i + regularizer for i in S;   x <- sum_S q_i x_i

    Args:
        rank_ratio: r = round(rank_ratio * c_out).
        rank_mode: "channels", or "definition": r = round(rank_ratio * min(k c_out, k c_in)).
        capacities: Where rank_ratio and keep_layers are not given, the published pair for the smallest of these; 0.15
            and 3 unless given.
        init: What the factors begin with: "kaiming" or "spectral".
        topology: Between peers instead of with a server: a string such as "ring", or a Topology.

    >>> fedlmt(regularizer="frobenius=1e-4").settings["keep_layers"]
    3

    Reference: FedLMT/pFedLMT, Algorithm 1.
    Differs from the paper in: the coefficient of its regularizer, which it tunes and does not print, is 0; the
    released scripts for CIFAR use none either. Clients count by their size, as in the code; the listing has equal
    weights. r = round(rank_ratio * c_out), because its Definition 3.1 read literally (rank_mode="definition") does
    not give the counts of its Table 1.
    """
    phases = [Phase(p.parameters, t.amount, t.lr)]
    return exchange_by(p, phases, t, topology, p.names, participation, weighting)
