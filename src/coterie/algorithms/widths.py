"""Narrow clients: HeteroFL, FedRolex and FedDropout, which differ in one argument."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from .. import chance
from ..local import Phase
from ..problem import Model
from ..tensors import Tree, stack
from ..views import Cut, Indices, narrow, prefix, random, window
from .base import Algorithm, Assigned, Problem, Program, Round, View
from .capacities import WIDTHS, shares
from .families import Server, federated
from .options import LMT_PAPER, Options, Training, check_choice, refuse_lasting
from .server import check_server

Channels = Callable[[int, int], Tensor]
"""(width, how many) -> which channels of that width a client trains."""
Choice = Callable[[Round, int], Channels]
"""Of a round and a client."""
NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def heterofl(
    *,
    capacities: str = "b4-b3-b2",
    scaler: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """HeteroFL: a client with less capacity trains the first channels of every layer.

    x_i <- local(the first ceil(rate_i C) channels of x) for i in S;   x <- entry by entry the mean over who holds it

    capacities: "b4-b3-b2" (rates 1, 3/4, 1/2 in equal shares), "1-0.5", or "b4x15-b2x5"; scaler: divide by the rate
    before every norm, in training only.

    >>> heterofl(capacities="1-0.5").settings["weighting"]
    'uniform'

    Reference: Diao, Ding, Tarokh, "HeteroFL", 2021. Differs from the released code in: the network is the one it is
    given, and logits of classes a client does not have are not masked, as in FedLMT's experiments.
    """
    first: Choice = lambda r, client: prefix  # noqa: E731
    own = {"capacities": capacities, "scaler": scaler}
    return by_width("heterofl", first, own, participation, weighting, LMT_PAPER.given(options))


def fedrolex(
    *,
    capacities: str = "b4-b3-b2",
    direction: int = 1,
    scaler: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedRolex: HeteroFL with a window of channels that moves on by one in every round.

    direction: 1 as in the paper; -1 as in the released code.

    >>> fedrolex().settings["direction"]
    1

    Reference: Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", 2022.
    """
    check_choice("direction", str(direction), ("1", "-1"))
    rolling: Choice = lambda r, client: partial(window, t=direction * r.index)  # noqa: E731
    own = {"capacities": capacities, "direction": direction, "scaler": scaler}
    return by_width("fedrolex", rolling, own, participation, weighting, LMT_PAPER.given(options))


def feddropout(
    *,
    capacities: str = "b4-b3-b2",
    scaler: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedDropout: HeteroFL with channels drawn anew for every client and round.

    >>> feddropout().settings["capacities"]
    'b4-b3-b2'

    Reference: Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements",
    2018.
    Differs from the code released with FedRolex in: all layers of one width keep the same channels, so that what a
    residual network adds stays aligned.
    """

    def drawn(r: Round, client: int) -> Channels:
        return partial(random, generator=torch.Generator().manual_seed(chance.key(r.seed, "window", r.index, client)))

    own = {"capacities": capacities, "scaler": scaler}
    return by_width("feddropout", drawn, own, participation, weighting, LMT_PAPER.given(options))


def by_width(
    name: str, choose: Choice, own: dict[str, Any], participation: float | int, weighting: str, t: Training
) -> Algorithm:
    """FedAvg on sub-models that are really cut; who has equal width trains side by side."""
    check_server(participation, weighting, 1.0)
    refuse_lasting(name, t)

    def bind(p: Problem) -> Program[Server]:
        groups = [
            (s.clients, *_cut(p.model, s.capacity, own["scaler"])) for s in shares(own["capacities"], WIDTHS, p.clients)
        ]

        def views(r: Round) -> list[Assigned]:
            here = [(np.flatnonzero(np.isin(r.cohort, clients)), cut, view) for clients, cut, view in groups]
            return [Assigned(at, view, _where(cut, choose, r, at)) for at, cut, view in here if len(at)]

        phase = Phase(p.parameters, t.amount, t.lr)
        return federated(replace(p, views=views), [phase], t, p.names, participation, weighting)

    settings = {**own, "participation": participation, "weighting": weighting, **t._asdict()}
    return Algorithm(name, settings, bind)


def _cut(model: Model, rate: float, scaler: bool) -> tuple[Cut, View]:
    small = narrow(model.module, rate)
    cut = Cut.between(model.module, small)
    if scaler:
        divide_before_norms(small, rate)
    return cut, View(Model(small, model.loss), cut.take, cut.put)


def _where(cut: Cut, choose: Choice, r: Round, places: np.ndarray) -> Tree:
    """Which channels every member at these places trains, stacked."""
    each: list[Indices] = [cut.indices(choose(r, int(client))) for client in r.cohort[places]]
    return stack(each)


def divide_before_norms(module: nn.Module, rate: float) -> None:
    """x / rate before every normalisation, in training only: what a cut layer puts out is smaller by about that."""

    def scaled(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (inputs[0] / rate, *inputs[1:]) if layer.training else None

    for layer in module.modules():
        if isinstance(layer, NORMS):
            layer.register_forward_pre_hook(scaled)
