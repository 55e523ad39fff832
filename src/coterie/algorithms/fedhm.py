"""FedHM and FedHMv2: the server holds a full model and sends its best products of low rank."""

from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np
import torch

from ..local import Phase
from ..problem import Model
from ..tensors import Tensors, replicate
from ..views import factorise, factorise_tensors, recover_tensors
from .base import Algorithm, Assigned, Form, Problem, Program, Round, Trained, View
from .capacities import RANKS, levels, refuse_staged, shares
from .families import Server, both_ways, federated, message_of, train_cohort, weights
from .forms import assigned
from .lowrank import coefficients, regularised
from .options import LMT_PAPER, Options, Training, check_range, refuse_given, refuse_lasting
from .server import check_server


def fedhm(
    *,
    capacities: str = "b4-b3-b2",
    keep_layers: int | str = 9,
    rank_mode: str = "channels",
    regulariser: str = "none",
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedHM: every client trains the server's model in the best approximation of its rank.

    x_i = SVD_ri(w);   x_i <- local(x_i) along grad F_i + regulariser for i in S;   w <- sum_S q_i (U_i V_i^T)

    capacities: rank ratios by client, "b4-b3-b2" (1.4, 0.6, 0.15), "1-0.25" or "b4x15-b2x5", or for everybody one
    after the other, "b1@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds); keep_layers: how many layers stay
    whole; rank_mode: "channels", or "definition", where ratios are of min(k c_out, k c_in) and at most 1.

    A client deploys the nearest model of its rank to the mixed one; the global model is the full one.

    >>> fedhm().settings["capacities"]
    'b4-b3-b2'

    Reference: Yao et al., "FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank
    Factorization", 2021.
    Differs from the paper in: nine whole layers and the rank ratios of FedLMT's experiments, one epoch, and no
    regulariser unless asked. Its own code keeps the stem and the first block whole and adds a Frobenius decay of
    1e-4.
    """
    check_server(participation, weighting, 1.0)
    coefficients(regulariser)
    t = LMT_PAPER.given(options)
    refuse_lasting("fedhm", t)

    def bind(p: Problem) -> Program[Server]:
        groups = [
            (s, product_view(p.model, s.capacity, keep_layers, regulariser, rank_mode))
            for s in shares(capacities, RANKS, p.clients, p.rounds)
        ]
        phase = Phase(p.parameters, t.amount, t.lr)
        views = replace(p, views=lambda r: assigned(groups, r))
        return federated(views, [phase], t, p.names, participation, weighting)

    ranks = {"capacities": capacities, "keep_layers": keep_layers, "rank_mode": rank_mode}
    form = {**ranks, "regulariser": regulariser}
    server = {"participation": participation, "weighting": weighting}
    return Algorithm("fedhm", {**form, **server, **t._asdict()}, bind)


def product_view(model: Model, rank_ratio: float, keep_layers: int | str, regulariser: str, rank_mode: str) -> View:
    """The nearest products of a full model, and the full model they are."""
    factors = factorise(model.module, rank_ratio, keep_layers, "kaiming", rank_mode=rank_mode)
    low = regularised(factors, model, regulariser)
    return View(
        low,
        take=lambda w, where: factorise_tensors(low.module, w),
        put=lambda x, where: (recover_tensors(low.module, x), {}),
    )


class Twofold(NamedTuple):
    """State of FedHMv2."""

    x: Tensors  # the factors that are sent
    w: Tensors  # the full model


def fedhmv2(
    *,
    svd_every: int = 1,
    rank_ratio: float | None = None,
    capacities: str | None = None,
    keep_layers: int | str = 9,
    rank_mode: str = "channels",
    regulariser: str = "none",
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedHMv2: factors are averaged as in FedLMT, and every so many rounds decomposed anew as in FedHM.

    x_i <- local(x) for i in S;   every ``svd_every`` rounds: w <- sum_S q_i (U_i V_i^T), x <- SVD_r(w);
    in the others: x <- sum_S q_i x_i, w <- U V^T

    rank_ratio: one for everybody; where it is not given, that of the smallest of the ``capacities``, or 0.15;
    rank_mode: "channels", or "definition", where it is of min(k c_out, k c_in) and at most 1. A client deploys the
    factors, the global model is w.

    >>> fedhmv2(svd_every=5).settings["svd_every"]
    5

    Reference: FedLMT/pFedLMT, Algorithm 2, which lies between FedHM (svd_every=1) and FedLMT (beyond the last
    round).
    Differs from the paper in: when it decomposes: after every ``svd_every``-th round; its listing says that t
    divides T_s, the wrong way round.
    """
    check_server(participation, weighting, 1.0)
    check_range("svd_every", svd_every, 1, float("inf"))
    coefficients(regulariser)
    refuse_staged("fedhmv2", capacities, "averages factors of one rank in all rounds")
    if rank_ratio is not None:
        refuse_given("rank_ratio makes the model", {"capacities": capacities}, "rank_ratio out")
    ratio = min(levels(capacities or "b2", RANKS)) if rank_ratio is None else rank_ratio
    t = LMT_PAPER.given(options)
    refuse_lasting("fedhmv2", t)

    def bind(p: Problem) -> Program[Twofold]:
        view = product_view(p.model, ratio, keep_layers, regulariser, rank_mode)
        return twofold(p, view, t, svd_every, participation, weighting)

    ranks = {"rank_ratio": ratio, "keep_layers": keep_layers, "rank_mode": rank_mode}
    form = {"svd_every": svd_every, **ranks, "regulariser": regulariser}
    server = {"participation": participation, "weighting": weighting}
    return Algorithm("fedhmv2", {**form, "capacities": None, **server, **t._asdict()}, bind)


def twofold(
    p: Problem, view: View, t: Training, svd_every: int, participation: float | int, weighting: str
) -> Program[Twofold]:
    """The program of FedHMv2."""
    low = replace(p, model=view.model)
    phase = Phase(low.parameters, t.amount, t.lr)

    def init(common: Tensors, each: Tensors) -> Twofold:
        return Twofold(view.take(common, {}), common)

    def train(s: Twofold, r: Round) -> Trained:
        done = train_cohort(low, [phase], t, replicate(s.x, len(r.cohort)), {}, r, low.names)
        form = Form(np.arange(len(r.cohort)), low.model, done.models)
        return done._replace(forms=(form,))

    def exchange(s: Twofold, trained: Trained, r: Round) -> Twofold:
        q = weights(weighting, r)
        if (r.index + 1) % svd_every:
            x = s.x | r.engine.mean(trained.sent, q)
            return Twofold(x, view.put(x, {})[0])
        products: Tensors = torch.func.vmap(lambda x: view.put(x, {})[0])(trained.sent)
        w = s.w | r.engine.mean(products, q)
        return Twofold(s.x | view.take(w, {}), w)

    return Program(
        p.names,
        init,
        train,
        exchange,
        lambda s: replicate(s.w, len(p.here)),
        lambda model: message_of(low.names)(view.model.start),
        lambda s, r: both_ways(low, s.x, (), r),
        participation=participation,
        known=lambda s: s.x,
        views=lambda r: [Assigned(np.arange(len(r.cohort)), view, {})],
    )
