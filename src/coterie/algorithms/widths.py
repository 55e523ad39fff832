"""Narrow clients: HeteroFL, FedRolex and FedDropout, which differ in one argument."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Unpack, cast

import torch
from torch import Tensor, nn

from .. import chance
from ..batches import Integers
from ..local import Phase
from ..problem import Model
from ..split import head_layer
from ..tensors import Tensors, Tree, stack
from ..views import Cut, layered, narrow, permuted, prefix, random, window
from .base import Algorithm, Assigned, Problem, Program, Round, View
from .capacities import WIDTHS, shares
from .families import Server, federated
from .forms import present
from .options import LMT_PAPER, Options, Training, check_choice, refuse_lasting
from .server import check_server

Channels = Callable[[int, int], Tensor]
"""(width, how many) -> which channels of that width a client trains."""
Choice = Callable[[Round, int], Channels]
"""Of a round and a client."""
PRESENT = "present"
SCALED = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm)  # a layer norm right behind would undo a division


def heterofl(
    *,
    capacities: str = "b4-b3-b2",
    scaler: bool = False,
    mask_ce: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """HeteroFL: a client with less capacity trains the first channels of every layer.

    x_i <- local(the first ceil(rate_i C) channels of x) for i in S;   x <- entry by entry the mean over who holds it

    capacities: "b4-b3-b2" (rates 1, 3/4, 1/2 in equal shares), "1-0.5" or "b4x15-b2x5", or for everybody one after
    the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds); scaler: divide by the rate before
    every norm, in training only; mask_ce: the logits of classes a client does not have are 0 in training, and their
    rows of the last layer are averaged without it.

    A narrow client deploys its own channels of the mixed model; the global model is the whole one.

    >>> heterofl(capacities="1-0.5").settings["weighting"]
    'uniform'

    Reference: Diao, Ding, Tarokh, "HeteroFL", 2021.
    Differs from the paper in: neither scaler nor mask_ce unless asked, one epoch and no clipping, as in FedLMT's
    experiments.
    """
    first: Choice = lambda r, client: prefix  # noqa: E731
    own = {"capacities": capacities, "scaler": scaler, "mask_ce": mask_ce}
    return by_width("heterofl", first, own, participation, weighting, LMT_PAPER.given(options))


def fedrolex(
    *,
    capacities: str = "b4-b3-b2",
    direction: int = 1,
    scaler: bool = False,
    mask_ce: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedRolex: HeteroFL with a window of channels that moves on by one in every round.

    x_i <- local(channels t, t + 1, .. t + ceil(rate_i C) - 1 mod C of x) for i in S, in round t
    x <- entry by entry the mean over who holds it

    direction: 1 as in the paper; -1 as in the released code. After round t a client deploys the window of that round.

    >>> fedrolex().settings["direction"]
    1

    Reference: Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
    2022.
    Differs from the paper in: what heterofl differs in. The released code rolls the other way (direction=-1) and
    weights entries of norms and linear layers by how often they were updated; here every entry is a plain mean.
    """
    check_choice("direction", str(direction), ("1", "-1"))
    rolling: Choice = lambda r, client: partial(window, t=direction * r.index)  # noqa: E731
    own = {"capacities": capacities, "direction": direction, "scaler": scaler, "mask_ce": mask_ce}
    return by_width("fedrolex", rolling, own, participation, weighting, LMT_PAPER.given(options))


def feddropout(
    *,
    capacities: str = "b4-b3-b2",
    aligned: bool = True,
    scaler: bool = False,
    mask_ce: bool = False,
    participation: float | int = 0.1,
    weighting: str = "uniform",
    **options: Unpack[Options],
) -> Algorithm:
    """FedDropout: HeteroFL with channels drawn anew for every client and round.

    x_i <- local(ceil(rate_i C) channels of x, drawn for i in this round) for i in S
    x <- entry by entry the mean over who holds it

    aligned: whether all layers of one width keep the same channels; False: every layer has channels of its own, in the
    order in which they are drawn, so that what a residual network adds are different ones, in a full model too; in
    attention queries, keys and values draw apart, and all heads alike. After a round a client deploys the channels that
    were drawn for it in that round, whether it took part or not.

    >>> feddropout().settings["capacities"]
    'b4-b3-b2'

    Reference: Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements",
    2018.
    Differs from the paper in: what heterofl differs in, and no compression beside (``quantise`` is one). FedLMT's
    tables were made with the code released with FedRolex, which draws channels layer by layer: aligned=False. There a
    network of b4 clients alone ends below FedAvg, which channels that stay aligned do not explain.
    """

    def drawn(r: Round, client: int) -> Channels:
        generator = torch.Generator().manual_seed(chance.key(r.seed, "window", r.index, client))
        return partial(random if aligned else permuted, generator=generator)

    own = {"capacities": capacities, "aligned": aligned, "scaler": scaler, "mask_ce": mask_ce}
    return by_width("feddropout", drawn, own, participation, weighting, LMT_PAPER.given(options))


def by_width(
    name: str, choose: Choice, own: dict[str, Any], participation: float | int, weighting: str, t: Training
) -> Algorithm:
    """FedAvg on sub-models that are really cut; who has equal width trains side by side."""
    check_server(participation, weighting, 1.0)
    refuse_lasting(name, t)

    def bind(p: Problem) -> Program[Server]:
        given = shares(own["capacities"], WIDTHS, p.clients, p.rounds)
        groups = [(s, narrowed(p.model, s.capacity, own)) for s in given]

        def views(r: Round) -> list[Assigned]:
            return [Assigned(at, form.view, where(form, choose, r, at)) for at, form in present(groups, r)]

        phase = Phase(p.parameters, t.amount, t.lr)
        return federated(replace(p, views=views), [phase], t, p.names, participation, weighting)

    settings = {**own, "participation": participation, "weighting": weighting, **t._asdict()}
    return Algorithm(name, settings, bind)


class Narrow(NamedTuple):
    """A width: how it is cut, and the view of those who have it."""

    cut: Cut
    view: View
    masked: bool


def narrowed(model: Model, rate: float, own: Mapping[str, Any]) -> Narrow:
    """The model at that rate, with what is done to it in training."""
    small = narrow(model.module, rate)
    cut = (Cut.between if own.get("aligned", True) else layered)(model.module, small)
    if own["scaler"]:
        divide_before_norms(small, rate)
    if own["mask_ce"]:
        mask_absent(small)
    view = masked_view(model, small, cut) if own["mask_ce"] else View(model.like(small), cut.take, cut.put)
    return Narrow(cut, view, own["mask_ce"])


def where(form: Narrow, choose: Choice, r: Round, places: Integers) -> Tree:
    """Which channels every member at these places trains, stacked; and which classes it has, where that matters."""
    channels = stack([form.cut.indices(choose(r, int(client))) for client in r.cohort[places]])
    if not form.masked:
        return channels
    classes = form.view.model.start[PRESENT]
    labels = [r.samples.y[r.samples.owned[client]].flatten() for client in r.cohort[places]]
    counts = torch.stack([mine.bincount(minlength=len(classes)) for mine in labels])
    return {"channels": channels, PRESENT: (counts > 0).to(classes)}


def masked_view(model: Model, small: nn.Module, cut: Cut) -> View:
    """A cut whose client knows which classes it has, and whose other rows of the last layer count for nobody."""
    head = head_layer(model.module)
    rows = {f"{head}.{k}" if head else k for k in ("weight", "bias")}

    def put(x: Tensors, where: Tree) -> tuple[Tensors, Tensors]:
        values, mass = cut.put({k: v for k, v in x.items() if k != PRESENT}, where["channels"])
        own = {k: v * where[PRESENT].view(-1, *[1] * (v.dim() - 1)) for k, v in mass.items() if k in rows}
        return values | {k: values[k] * v for k, v in own.items()}, mass | own

    return View(
        model.like(small),
        lambda x, where: cut.take(x, where["channels"]) | {PRESENT: where[PRESENT]},
        put,
        frozenset({PRESENT}),
    )


def mask_absent(module: nn.Module) -> None:
    """In training the logits of classes that the buffer ``present`` does not have are 0."""
    classes = cast(nn.Linear, module.get_submodule(head_layer(module))).out_features
    module.register_buffer(PRESENT, torch.ones(classes).to(next(module.parameters())))

    def masked(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor | None:
        present = layer.get_buffer(PRESENT).view(-1, *[1] * (outputs.dim() - 2))  # the classes are dimension 1
        return outputs * present if layer.training else None

    module.register_forward_hook(masked)


def divide_before_norms(module: nn.Module, rate: float) -> None:
    """x / rate before every normalisation, in training only: what a cut layer puts out is smaller by about that."""

    def scaled(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (inputs[0] / rate, *inputs[1:]) if layer.training else None

    for layer in module.modules():
        if isinstance(layer, SCALED):
            layer.register_forward_pre_hook(scaled)
