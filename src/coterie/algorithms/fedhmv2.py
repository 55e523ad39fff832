"""FedHMv2: factors are averaged, and decomposed anew every so many rounds."""

from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Unpack

import numpy as np
from torch.func import vmap

from ..core.tensors import Tensors, replicate
from ..exchange.mixing import average
from ..local.steps import Phase
from ..submodels import RankMode
from .base import Assigned, ModelGroup
from .capacities import RANKS, levels, refuse_changing
from .fedhm import check_products, low_rank_submodel
from .method import Options, Participation, Problem, Program, Range, Round, Trained, Training, Weighting, method
from .options import LMT_PAPER, refuse_unused
from .server import both_ways
from .update import LocalUpdate, message_of


class Twofold(NamedTuple):
    """State of FedHMv2."""

    x: Tensors  # the factors that are sent, and that a client deploys
    w: Tensors  # the full model: the mean of the recovered models of the last round


def _rank(rank_ratio: float | None, capacities: str | None) -> dict[str, Any]:
    """Return one ratio for all clients: ``rank_ratio``, or that of the smallest capacity."""
    refuse_changing("fedhmv2", capacities, "averages factors of one rank in all rounds")
    if rank_ratio is not None:
        refuse_unused("rank_ratio makes the model", {"capacities": capacities}, "rank_ratio out")
    ratio = min(levels(capacities or "b2", RANKS)) if rank_ratio is None else rank_ratio
    return {"rank_ratio": ratio, "capacities": None}


@method(LMT_PAPER, check=check_products, complete=_rank, submodel="rank by client")
def fedhmv2(
    p: Problem,
    t: Training,
    *,
    svd_every: Annotated[int, Range(1)] = 1,
    rank_ratio: float | None = None,
    capacities: str | None = None,
    keep_layers: int | str = 9,
    rank_mode: RankMode = "channels",
    regularizer: str = "none",
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Twofold]:
    """FedHMv2: factors are averaged as in FedLMT, and every so many rounds decomposed anew as in FedHM.

    x_i <- local(x) for i in S;   w <- sum_S q_i (U_i V_i^T);
    every ``svd_every`` rounds: x <- SVD_r(w);   in the others: x <- sum_S q_i x_i

    A client deploys the factors x. The global model is w, whose rank may be higher.

    Args:
        svd_every: Rounds between two decompositions.
        rank_ratio: One for everybody.
        capacities: Where rank_ratio is not given, that of the smallest of these; 0.15 unless given.

    >>> fedhmv2(svd_every=5).settings["svd_every"]
    5

    Reference: FedLMT/pFedLMT, Algorithm 2, which lies between FedHM (svd_every=1) and FedLMT (beyond the last
    round).
    Differs from the paper in: when it decomposes: after every ``svd_every``-th round; its listing says that t
    divides T_s, the wrong way round.
    """
    assert rank_ratio is not None
    submodel = low_rank_submodel(p.model, rank_ratio, keep_layers, regularizer, rank_mode)
    low = replace(p, model=submodel.model)
    work = LocalUpdate(low, [Phase(low.parameters, t.amount, t.lr)], t)

    def recovered(x: Tensors) -> Tensors:
        return submodel.embed(x, {})[0]

    def init(common: Tensors, each: Tensors) -> Twofold:
        return Twofold(submodel.extract(common, {}), common)

    def train(s: Twofold, r: Round) -> Trained:
        done = work.train(r, replicate(s.x, len(r.cohort)), {}, message_of(low.names))
        return done._replace(groups=(ModelGroup(np.arange(len(r.cohort)), low.model, done.models),))

    def exchange(s: Twofold, trained: Trained, r: Round) -> Twofold:
        products: Tensors = vmap(recovered)(trained.sent)
        w = s.w | average(r.engine, r.row(weighting), products, old=s.w, rule=t.rule)
        if (r.index + 1) % svd_every:
            return Twofold(s.x | average(r.engine, r.row(weighting), trained.sent, old=s.x, rule=t.rule), w)
        return Twofold(s.x | submodel.extract(w, {}), w)

    return Program(
        shared=p.names,
        phases=work.phases,
        training=t,
        init=init,
        train=train,
        exchange=exchange,
        models=lambda s: replicate(recovered(s.x), len(p.local_clients)),
        consensus=lambda s: s.w,
        message=lambda model: message_of(low.names)(submodel.model.start),
        traffic=lambda s, r: both_ways(low, s.x, (), r),
        participation=participation,
        receiver_has=lambda s: s.x,
        submodels=lambda r: [Assigned(np.arange(len(r.cohort)), submodel, {})],
        rule=t.rule,
    )
