"""FedHM: the server holds a full model and sends its best products of low rank."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Unpack

from ..core.tensors import Tensors
from ..local.steps import Phase
from ..models.model import Model
from ..submodels import RankMode, factorize_tensors, factorize_trained, recover_tensors, truncate_tensors
from .base import Submodel
from .capacities import RANKS, shares
from .lowrank import coefficients, regularized
from .method import Options, Participation, Problem, Program, Training, Weighting, method
from .options import LMT_PAPER, refuse_kept
from .server import Server, federated
from .update import assigned


def check_products(t: Training, regularizer: str) -> None:
    """Refuse a regularizer that is no list of terms, and momentum of factors that are computed anew."""
    coefficients(regularizer)
    refuse_kept(t)


@method(LMT_PAPER, check=check_products, submodel="rank by client")
def fedhm(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    keep_layers: int | str = 9,
    rank_mode: RankMode = "channels",
    regularizer: str = "none",
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """FedHM: every client trains the server's model in the best approximation of its rank.

    x_i = SVD_ri(w);   x_i <- local(x_i) along grad F_i + regularizer for i in S;   w <- sum_S q_i (U_i V_i^T)

    A client deploys the nearest model of its rank to the mixed one; the global model is the full one.

    Args:
        capacities: Rank ratios by client, "b4-b3-b2" (1.4, 0.6, 0.15), "1-0.25" or "b4x15-b2x5", or for everybody one
            after the other, "b1@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).

    >>> fedhm().settings["capacities"]
    'b4-b3-b2'

    Reference: Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank
    Factorization", 2021.
    Differs from the paper in: nine whole layers and the rank ratios of FedLMT's experiments, one epoch, and no
    regularizer unless asked. Its own code keeps the stem and the first block whole and adds a Frobenius decay of
    1e-4.
    """
    given = [
        (s, low_rank_submodel(p.model, s.capacity, keep_layers, regularizer, rank_mode))
        for s in shares(capacities, RANKS, p.clients, p.rounds)
    ]
    # One decomposition does for all: the first columns of nearest factors are the nearest ones of a lower rank.
    _, largest = max(given, key=lambda group: group[0].capacity)
    nearest = partial(factorize_tensors, largest.model.module)
    groups = [(s, cut_from(nearest, submodel)) for s, submodel in given]
    unequal = replace(p, submodels=lambda r: assigned(groups, r))
    return federated(unequal, [Phase(p.parameters, t.amount, t.lr)], t, p.names, participation, weighting)


def low_rank_submodel(
    model: Model, rank_ratio: float, keep_layers: int | str, regularizer: str, rank_mode: RankMode
) -> Submodel:
    """Return the submodel of nearest products of a full model."""
    factors = factorize_trained(model.module, rank_ratio, keep_layers, "kaiming", 0, rank_mode)
    low = regularized(factors, model, regularizer)
    return Submodel(
        low,
        extract=lambda w, index: factorize_tensors(low.module, w),
        embed=lambda x, index: (recover_tensors(low.module, x), {}),
    )


def cut_from(nearest: Callable[[Tensors], Tensors], submodel: Submodel) -> Submodel:
    """Return a submodel of nearest products that takes the first columns of the ``nearest`` ones of a higher rank."""
    template = submodel.model.module
    return submodel._replace(extract=lambda x, index: truncate_tensors(template, x), prepare=nearest)
