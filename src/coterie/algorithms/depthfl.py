"""DepthFL: a client with less capacity trains the first stages, with a head on each of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.tensors import Tensors, Tree
from ..local.steps import Phase
from ..models.model import Loss, Model
from ..submodels.depth import (
    ANSWERING,
    LISTENING,
    HeadKind,
    all_heads,
    answering,
    deep_supervision,
    deepest,
    mutual_by_round,
    ramp,
    with_depth,
)
from ..submodels.staged import check_stages
from .base import Assigned, Submodel
from .capacities import DEPTHS, Share, levels, shares
from .method import Fraction, Options, Participation, Problem, Program, Rate, Round, Training, Weighting, method
from .options import LMT_PAPER, refuse_for_parts
from .server import Server, federated
from .update import named_submodel, present


def _check(t: Training, feature_l2: float, distill: str) -> None:
    refuse_for_parts(t)
    if feature_l2 and distill != "deepest":
        raise UserError(f"feature_l2={feature_l2:g} is for the deepest head as a teacher: add distill=deepest")


KINDS: dict[str, HeadKind] = {"fedlmt": "plain", "depthfl": "gated"}  # of heads, by the paper that has them


def _with_heads(
    model: Model, distill: str, teaching: float, tau: float, feature_l2: float, heads: str, answer: str
) -> Model:
    """Return the network with a head on every stage."""
    whole = all_heads(model.module, answer == "deepest", KINDS[heads], feature_l2 > 0)
    if not feature_l2:
        return model.like(whole, deep_supervision)
    return model.like(whole, loss_of(distill, teaching, tau, feature_l2, classes_of(whole)))


# A small network has three stages.
@method(
    LMT_PAPER,
    check=_check,
    adapt=_with_heads,
    staged=True,
    submodel="depth",
    presets={"small": {"capacities": "3-2-1"}},
)
def depthfl(
    p: Problem,
    t: Training,
    *,
    capacities: str = "b4-b3-b2",
    distill: Literal["mutual", "deepest", "none"] = "mutual",
    teaching: Fraction = 0.1,
    tau: float = 3.0,
    feature_l2: Rate = 0.0,
    heads: Literal["fedlmt", "depthfl"] = "fedlmt",
    answer: Literal["mean", "deepest"] = "mean",
    participation: Participation = 0.1,
    weighting: Weighting = "uniform",
    **options: Unpack[Options],
) -> Program[Server]:
    """DepthFL: a client with less capacity trains the first stages, with a head on each of them.

    x_i <- local(stem, stages 1..k_i, heads 1..k_i) for i in S;   every tensor of x <- its mean over those who hold it

    distill "mutual": all heads teach each other, more from round to round; "deepest": the last one teaches, with
    weight ``teaching`` at temperature ``tau``, and ``feature_l2`` times the squared distance of what the heads' linear
    layers see from what the last one's sees is added; "none": every head by itself

    With "mutual" the form that a client trains has one buffer more, ``listening``: how much its heads learn from each
    other in the round. A client deploys its own stages and heads; the global model is as deep as the deepest client of
    the round: heads that nobody has trained do not answer.

    Args:
        capacities: Depths by client, "b4-b3-b2" (4, 3 and 2 stages, for a network of four), "3-1" or "b4x15-b2x5"; or
            for everybody one after the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).
        distill: Who teaches whom: "mutual", "deepest" or "none".
        teaching: The weight of what the deepest head teaches.
        tau: The temperature at which it teaches.
        feature_l2: The weight of the distance between the features of the heads and the deepest one's.
        heads: "fedlmt" (a convolution) or "depthfl" (a gate and separable convolutions).
        answer: A model answers with the "mean" of its heads or with the "deepest" one.

    >>> depthfl(distill="none").settings["capacities"]
    'b4-b3-b2'

    Reference: Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", 2023.
    Differs from the paper in: its heads, which are those that give the FLOPs of FedLMT's Table 1 unless heads="depthfl"
    (see ``coterie.submodels.depth``), and no dynamic regularization. distill="deepest" is how FedLMT's experiments
    rebuilt it, after Zhang et al., "Be Your Own Teacher", 2019, whose released code has feature_l2 at 1e-6, there times
    the plain distance over the whole batch.
    """
    depths, alone, features = _depths(p, capacities), answer == "deepest", feature_l2 > 0
    loss = loss_of(distill, teaching, tau, feature_l2, classes_of(p.module))
    kind = p.module.get_parameter("linear.weight").dtype

    def form(depth: int) -> Submodel:
        module = with_depth(p.module, depth, alone, features=features, listens=distill == "mutual")
        return _listening(p.model.like(module, loss), p.model.start)

    groups = [(s, form(int(s.capacity))) for s in depths]

    def submodels(r: Round) -> list[Assigned]:
        now = {LISTENING: torch.tensor(ramp(r.index), dtype=kind)} if distill == "mutual" else {}
        each = ((places, submodel, len(places)) for places, submodel in present(groups, r))
        return [Assigned(places, submodel, {k: v.expand(n) for k, v in now.items()}) for places, submodel, n in each]

    def heads_that_answer(t: int) -> Tensor:
        return answering(check_stages(p.module), max(int(s.capacity) for s in depths if s.lasts(t)), alone)

    phase = Phase(p.parameters, t.amount, t.lr)
    program = federated(replace(p, submodels=submodels), [phase], t, p.names, participation, weighting)
    return with_buffer(program, ANSWERING, heads_that_answer)


def _listening(model: Model, common: Tensors) -> Submodel:
    """Return the submodel of some stages; ``index``: buffers that the round gives, which the common form has not."""
    submodel = named_submodel(model, model.start | common)

    def extract(x: Tensors, index: Tree) -> Tensors:
        return submodel.extract(x | index, {})

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        values, mass = submodel.embed(x, {})
        return {k: values[k] for k in common}, {k: mass[k] for k in common}

    return submodel._replace(extract=extract, embed=embed, private=frozenset(model.start.keys() - common.keys()))


def loss_of(distill: str, teaching: float, tau: float, feature_l2: float, classes: int) -> Loss:
    """Return the loss by which the heads of a client learn from the labels and from each other."""
    if distill == "none":
        return deep_supervision
    if distill == "mutual":
        return mutual_by_round(classes)
    return deepest(teaching, tau, feature_l2, classes if feature_l2 else None)


def classes_of(module: nn.Module) -> int:
    """Return the number of classes of a network in stages."""
    return len(module.get_parameter("linear.weight"))


def _depths(p: Problem, capacities: str) -> list[Share]:
    """Return the clients by their number of stages; refuse stages that do not exist."""
    stages = check_stages(p.module)
    for level in levels(capacities, DEPTHS):
        if level > stages or level != int(level) or level < 1:
            raise UserError(f"capacities={capacities} ask for {level:g} stages: this network has {stages}")
    return shares(capacities, DEPTHS, p.clients, p.rounds)


def with_buffer(program: Program[Server], name: str, value: Callable[[int], Tensor]) -> Program[Server]:
    """Set the server's buffer ``name`` to ``value(round)``, which says which heads answer."""

    def after(s: Server, t: int) -> Server:
        return s._replace(u=s.u | {name: value(t).to(s.u[name])})

    return program._replace(
        init=lambda common, each: after(program.init(common, each), 0),
        exchange=lambda s, trained, r: after(program.exchange(s, trained, r), r.index),
    )
