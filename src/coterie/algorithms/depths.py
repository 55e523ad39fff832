"""Networks built in stages: DepthFL, where clients hold the first ones, and ProgFed, where everybody grows."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import RequestError
from ..local import Phase
from ..problem import Loss, Model
from ..tensors import Tensors, Tree
from ..views.depth import ANSWERING, all_heads, answering, deep_supervision, deepest, mutual, ramp, with_depth
from ..views.heads import HEADS
from ..views.staged import check_stages
from ..views.stages import STAGE, at_stage, stage_of, staged
from .base import Algorithm, Assigned, Problem, Program, Round, View
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
    feature_l2: float = 0.0,
    heads: str = "fedlmt",
    answer: str = "mean",
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """DepthFL: a client with less capacity trains the first stages, with a head on each of them.

    x_i <- local(stem, stages 1..k_i, heads 1..k_i) for i in S;   every tensor of x <- its mean over those who hold it

    distill "mutual": all heads teach each other, more from round to round; "deepest": the last one teaches, with
    weight ``teaching`` at temperature ``tau``, and ``feature_l2`` times the squared distance of what the heads' linear
    layers see from what the last one's sees is added; "none": every head by itself

    capacities: depths by client, "b4-b3-b2" (4, 3 and 2 stages, for a network of four), "3-1" or "b4x15-b2x5"; or
    for everybody one after the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds); heads:
    "fedlmt" (a convolution) or "depthfl" (a gate and separable convolutions). answer: a model answers with the "mean"
    of its heads or with the "deepest" one. A client deploys its own stages and heads; the global model is as deep as
    the deepest client of the round: heads that nobody has trained do not answer.

    >>> depthfl(distill="none").settings["capacities"]
    'b4-b3-b2'

    Reference: Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", 2023.
    Differs from the paper in: its heads, which are those that give the FLOPs of FedLMT's Table 1 unless heads="depthfl"
    (see ``coterie.views.heads``), and no dynamic regularisation. distill="deepest" is how FedLMT's experiments rebuilt
    it, after Zhang et al., "Be Your Own Teacher", 2019, whose released code has feature_l2 at 1e-6, there times the
    plain distance over the whole batch.
    """
    check_server(participation, weighting, 1.0)
    check_choice("distill", distill, ("mutual", "deepest", "none"))
    check_choice("heads", heads, HEADS)
    check_choice("answer", answer, ("mean", "deepest"))
    check_range("teaching", teaching, 0, 1)
    check_range("feature_l2", feature_l2, 0, float("inf"))
    if feature_l2 and distill != "deepest":
        raise RequestError(f"feature_l2={feature_l2:g} is for the deepest head as a teacher: add distill=deepest")
    t = LMT_PAPER.given(options)
    refuse_lasting("depthfl", t)
    alone, features = answer == "deepest", feature_l2 > 0

    def loss(weight: float, classes: int) -> Loss:
        if distill == "none":
            return deep_supervision
        if distill == "mutual":
            return mutual(weight)
        return deepest(teaching, tau, feature_l2, classes if features else None)

    def bind(p: Problem) -> Program[Server]:
        given = _depths(p, capacities)
        groups = [(s, with_depth(p.module, int(s.capacity), alone, features=features)) for s in given]

        @lru_cache(maxsize=1)  # rounds with the same loss have the same models
        def forms(weight: float) -> list[tuple[Share, View]]:
            return [
                (who, named_view(p.model.like(m, loss(weight, classes_of(p.module))), p.model.start))
                for who, m in groups
            ]

        def views(r: Round) -> list[Assigned]:
            return assigned(forms(ramp(r.index) if distill == "mutual" else 0.0), r)

        def heard(t: int) -> Tensor:
            return answering(check_stages(p.module), max(int(s.capacity) for s in given if s.lasts(t)), alone)

        phase = Phase(p.parameters, t.amount, t.lr)
        program = federated(replace(p, views=views), [phase], t, p.names, participation, weighting)
        return _saying(program, ANSWERING, heard)

    def adapt(model: Model) -> Model:
        whole = all_heads(model.module, alone, heads, features)
        return model.like(whole, loss(0.0, classes_of(whole)) if features else deep_supervision)

    own = {"capacities": capacities, "distill": distill, "teaching": teaching, "tau": tau, "feature_l2": feature_l2}
    server = {"heads": heads, "answer": answer, "participation": participation, "weighting": weighting}
    return Algorithm("depthfl", {**own, **server, **t._asdict()}, bind, adapt)


def classes_of(module: nn.Module) -> int:
    """How many classes a network in stages tells apart."""
    return len(module.get_parameter("linear.weight"))


def _depths(p: Problem, capacities: str) -> list[Share]:
    """Who has how many stages; refuses those that there are not."""
    stages = check_stages(p.module)
    for level in levels(capacities, DEPTHS):
        if level > stages or level != int(level) or level < 1:
            raise RequestError(f"capacities={capacities} ask for {level:g} stages: this network has {stages}")
    return shares(capacities, DEPTHS, p.clients, p.rounds)


def _saying(program: Program[Server], name: str, value: Callable[[int], Tensor]) -> Program[Server]:
    """A program whose server's buffer ``name`` is what the round says: which heads answer."""

    def said(s: Server, t: int) -> Server:
        return s._replace(u=s.u | {name: value(t).to(s.u[name])})

    return program._replace(
        init=lambda common, each: said(program.init(common, each), 0),
        exchange=lambda s, trained, r: said(program.exchange(s, trained, r), r.index),
    )


def progfed(
    *,
    warmup: int = 0,
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """ProgFed: FedAvg on the first stage, then on two, until the network is whole.

    x_i <- local(stem, stages 1..s, head s) for i in S;   x <- sum_S q_i x_i;   s grows every T / (2 stages) rounds

    warmup: rounds at the beginning of every stage but the first that train the new stage and its head alone; the
    others stay as they are, running statistics included. What is measured, and what a client deploys, is the prefix of
    the round. A new stage starts as it was drawn, with a new head.

    >>> progfed().settings["epochs"]
    1

    Reference: Wang et al., "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
    Progressive Training", 2022.
    Differs from the paper in: no warm-up unless asked; the released code has 25 rounds of 3,000. Warm-up rounds are
    counted as if the whole prefix travelled and learned. FedLMT's text prints other lengths of the stages; only these
    sum to T and give its Table 7.
    """
    check_server(participation, weighting, 1.0)
    check_range("warmup", warmup, 0, float("inf"))
    t = LMT_PAPER.given(options)
    refuse_lasting("progfed", t)

    def bind(p: Problem) -> Program[Server]:
        stages = check_stages(p.module)
        if p.rounds < 2 * stages:
            raise RequestError(
                f"progfed takes {2 * stages} rounds to grow through {stages} stages: ask for more rounds"
            )
        shortest = p.rounds // (2 * stages)
        if warmup and warmup >= shortest:
            raise RequestError(f"warmup={warmup} leaves none of the {shortest} rounds of a stage: choose it smaller")
        whole, fresh = ([_prefix(p, s, alone) for s in range(stages)] for alone in (False, True))
        everybody = Share(1.0, np.arange(p.clients))

        def stage(t: int) -> int:
            return stage_of(t, p.rounds, stages) - 1

        def views(r: Round) -> list[Assigned]:
            s = stage(r.index)
            young = s > 0 and stage(r.index - warmup) < s
            return assigned([(everybody, (fresh if young else whole)[s])], r)

        phase = Phase(p.parameters, t.amount, t.lr)
        program = federated(replace(p, views=views), [phase], t, p.names, participation, weighting)
        return _saying(program, STAGE, lambda t: torch.eye(stages)[stage(t)])

    settings = {"warmup": warmup, "participation": participation, "weighting": weighting, **t._asdict()}
    return Algorithm("progfed", settings, bind, lambda model: model.like(staged(model.module)))


def _prefix(p: Problem, stage: int, alone: bool) -> View:
    """The first stages, counted from 0, and the head on the last; ``alone``: only that one and its head are trained."""
    module = at_stage(p.module, stage + 1)
    view = named_view(p.model.like(module), p.model.start)
    if not alone:
        return view
    last = (f"stages.{stage}.", f"heads.{stage}.", "linear.")
    old = {k for k in view.model.start if not k.startswith(last)}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in old)

    def put(x: Tensors, where: Tree) -> tuple[Tensors, Tensors]:
        values, mass = view.put(x, where)
        nothing = {k: torch.zeros_like(mass[k]) for k in old}
        return values | nothing, mass | nothing

    return view._replace(put=put)
