"""Networks built in stages: DepthFL, where clients hold the first ones, and ProgFed, where everybody grows."""

from dataclasses import replace
from functools import lru_cache
from typing import Unpack

import numpy as np
import torch

from ..errors import RequestError
from ..local import Phase
from ..problem import Loss, Model
from ..tensors import Tensors
from ..views.depth import deep_supervision, deepest, mutual, ramp, with_depth
from ..views.staged import check_stages
from ..views.stages import STAGE, at_stage, stage_of, staged
from .base import Algorithm, Assigned, Problem, Program, Round, Trained, View
from .capacities import DEPTHS, Share, levels, shares
from .families import Server, federated
from .forms import assigned, named_view
from .options import LMT_PAPER, Options, check_choice, check_range, refuse_lasting
from .server import check_server


def depthfl(
    *,
    capacities: str = "b4-b3-b2",
    distill: str = "mutual",
    teaching: float = 0.1,
    tau: float = 3.0,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """DepthFL: a client with less capacity trains the first stages, with a head on each of them.

    x_i <- local(stem, stages 1..k_i, heads 1..k_i) for i in S;   every tensor of x <- its mean over those who hold it

    distill "mutual": all heads teach each other, more from round to round; "deepest": the last one teaches, with
    weight ``teaching`` at temperature ``tau``; "none": every head by itself

    capacities: depths by client, "b4-b3-b2" (4, 3 and 2 stages, for a network of four), "3-1" or "b4x15-b2x5"; or
    for everybody one after the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).
    What is measured answers with the mean of all heads of the full network.

    >>> depthfl(distill="none").settings["capacities"]
    'b4-b3-b2'

    Reference: Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", 2023.
    Differs from the paper in: its heads, which are those that give the FLOPs of FedLMT's Table 1 (see
    ``coterie.views.depth``), and no dynamic regularisation. distill="deepest" is how FedLMT's experiments rebuilt
    it.
    """
    check_server(participation, weighting, 1.0)
    check_choice("distill", distill, ("mutual", "deepest", "none"))
    check_range("teaching", teaching, 0, 1)
    t = LMT_PAPER.given(options)
    refuse_lasting("depthfl", t)

    def loss(weight: float) -> Loss:
        if distill == "none":
            return deep_supervision
        return mutual(weight) if distill == "mutual" else deepest(teaching, tau)

    def bind(p: Problem) -> Program[Server]:
        stages = check_stages(p.module)
        for level in levels(capacities, DEPTHS):
            if level > stages or level != int(level) or level < 1:
                raise RequestError(f"capacities={capacities} ask for {level:g} stages: this network has {stages}")
        given = shares(capacities, DEPTHS, p.clients, p.rounds)
        groups = [(s, with_depth(p.module, int(s.capacity))) for s in given]

        @lru_cache(maxsize=1)  # rounds with the same loss have the same models
        def forms(weight: float) -> list[tuple[Share, View]]:
            return [(who, named_view(p.model.like(m, loss(weight)), p.model.start)) for who, m in groups]

        def views(r: Round) -> list[Assigned]:
            return assigned(forms(ramp(r.index) if distill == "mutual" else 0.0), r)

        phase = Phase(p.parameters, t.amount, t.lr)
        return federated(replace(p, views=views), [phase], t, p.names, participation, weighting)

    def adapt(model: Model) -> Model:
        return model.like(with_depth(model.module, check_stages(model.module)), deep_supervision)

    own = {"capacities": capacities, "distill": distill, "teaching": teaching, "tau": tau}
    server = {"participation": participation, "weighting": weighting}
    return Algorithm("depthfl", {**own, **server, **t._asdict()}, bind, adapt)


def progfed(
    *,
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """ProgFed: FedAvg on the first stage, then on two, until the network is whole.

    x_i <- local(stem, stages 1..s, head s) for i in S;   x <- sum_S q_i x_i;   s grows every T / (2 stages) rounds

    What is measured is the prefix of the round. A new stage starts as it was drawn, with a new head.

    >>> progfed().settings["epochs"]
    1

    Reference: Wang et al., "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
    Progressive Training", 2022.
    Differs from the paper in: no rounds that train a new stage alone, of which the released code has 25. FedLMT's
    text prints other lengths of the stages; only these sum to T and give its Table 7.
    """
    check_server(participation, weighting, 1.0)
    t = LMT_PAPER.given(options)
    refuse_lasting("progfed", t)

    def bind(p: Problem) -> Program[Server]:
        stages = check_stages(p.module)
        if p.rounds < 2 * stages:
            raise RequestError(
                f"progfed takes {2 * stages} rounds to grow through {stages} stages: ask for more rounds"
            )
        growing = [named_view(p.model.like(at_stage(p.module, s + 1)), p.model.start) for s in range(stages)]
        everybody = Share(1.0, np.arange(p.clients))

        def stage(r: Round) -> int:
            return stage_of(r.index, p.rounds, stages) - 1

        phase = Phase(p.parameters, t.amount, t.lr)
        views = replace(p, views=lambda r: assigned([(everybody, growing[stage(r)])], r))
        program = federated(views, [phase], t, p.names, participation, weighting)

        def init(common: Tensors, each: Tensors) -> Server:
            return _answering(program.init(common, each), 0)

        def exchange(s: Server, trained: Trained, r: Round) -> Server:
            return _answering(program.exchange(s, trained, r), stage(r))

        return program._replace(init=init, exchange=exchange)

    settings = {"participation": participation, "weighting": weighting, **t._asdict()}
    return Algorithm("progfed", settings, bind, lambda model: model.like(staged(model.module)))


def _answering(s: Server, stage: int) -> Server:
    """A state whose model answers with the head of that stage."""
    chosen = torch.zeros_like(s.u[STAGE])
    chosen[stage] = 1
    return s._replace(u=s.u | {STAGE: chosen})
