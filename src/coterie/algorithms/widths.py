"""The family of narrow clients: FedAvg on sub-models that are really cut out.

x_i <- local(some channels of every layer of x) for i in S;   x <- entry by entry the mean over who holds it
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.tensors import Integers, Tensors, Tree, stack
from ..local.personal import head_layer
from ..local.steps import Phase
from ..models.model import Model, frozen_parameters
from ..models.trials import check_averaged
from ..submodels import Cut, layered, narrow
from .base import Assigned, Problem, Program, Round, Submodel
from .capacities import WIDTHS, shares
from .options import Training, Weighting
from .server import Server, federated
from .update import present

Channels = Callable[[int, int], Tensor]
"""(width, how many) -> which channels of that width a client trains."""
Choice = Callable[[Round, int], Channels]
"""(round, client) -> its channels."""
PRESENT = "present"
SCALED = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm)  # a layer norm right behind would undo a division


def refuse_frozen(model: Model, because: str) -> None:
    """Refuse frozen parameters where a method has no place for them."""
    if frozen := sorted(frozen_parameters(model.module)):
        raise UserError(
            f"{frozen[0]} is frozen, and this method {because}: set requires_grad of all parameters, or choose a "
            "method that trains whole models"
        )


def cuttable(model: Model) -> Model:
    """Return the model with nothing constant, because clients hold cuts of every buffer; refuse frozen parameters."""
    refuse_frozen(model, "cuts every layer for each client")
    check_averaged(model.constants)
    return replace(model, constant=frozenset())


class Trick(NamedTuple):
    """Changes of a narrow model in training."""

    scaler: bool  # inputs are divided by the rate before every norm
    mask_ce: bool  # logits of classes that the client does not have are 0
    aligned: bool = True  # all layers of one width keep the same channels


def by_width(
    p: Problem,
    t: Training,
    choose: Choice,
    capacities: str,
    trick: Trick,
    participation: float | int,
    weighting: Weighting,
) -> Program[Server]:
    """Let every client train the channels that ``choose`` returns; clients of equal width train side by side."""
    groups = [(s, narrowed(p.model, s.capacity, trick)) for s in shares(capacities, WIDTHS, p.clients, p.rounds)]

    def submodels(r: Round) -> list[Assigned]:
        return [Assigned(at, form.submodel, index(form, choose, r, at)) for at, form in present(groups, r)]

    phase = Phase(p.parameters, t.amount, t.lr)
    return federated(replace(p, submodels=submodels), [phase], t, p.names, participation, weighting)


class Narrow(NamedTuple):
    """A width: the cut, and the submodel of the clients that have it."""

    cut: Cut
    submodel: Submodel
    masked: bool


def narrowed(model: Model, rate: float, trick: Trick) -> Narrow:
    """Return the model at that rate, with its changes in training."""
    small = narrow(model.module, rate)
    cut = (Cut.between if trick.aligned else layered)(model.module, small)
    if trick.scaler:
        divide_before_norms(small, rate)
    if trick.mask_ce:
        mask_absent(small)
    submodel = (
        masked_submodel(model, small, cut) if trick.mask_ce else Submodel(model.like(small), cut.extract, cut.embed)
    )
    return Narrow(cut, submodel, trick.mask_ce)


def index(form: Narrow, choose: Choice, r: Round, places: Integers) -> Tree:
    """Return the channels of every member at these places, stacked; and its classes, where they matter."""
    channels = stack([form.cut.indices(choose(r, int(client))) for client in r.cohort[places]])
    if not form.masked:
        return channels
    classes = form.submodel.model.start[PRESENT]
    labels = [r.samples.y[r.samples.owned[client]].flatten() for client in r.cohort[places]]
    counts = torch.stack([mine.bincount(minlength=len(classes)) for mine in labels])
    return {"channels": channels, PRESENT: (counts > 0).to(classes)}


def masked_submodel(model: Model, small: nn.Module, cut: Cut) -> Submodel:
    """Return a cut whose client knows its classes; the rows of the last layer of other classes have no mass."""
    head = head_layer(model.module)
    rows = {f"{head}.{k}" if head else k for k in ("weight", "bias")}

    def embed(x: Tensors, index: Tree) -> tuple[Tensors, Tensors]:
        values, mass = cut.embed({k: v for k, v in x.items() if k != PRESENT}, index["channels"])
        own = {k: v * index[PRESENT].view(-1, *[1] * (v.dim() - 1)) for k, v in mass.items() if k in rows}
        return values | {k: values[k] * v for k, v in own.items()}, mass | own

    return Submodel(
        model.like(small),
        lambda x, index: cut.extract(x, index["channels"]) | {PRESENT: index[PRESENT]},
        embed,
        frozenset({PRESENT}),
    )


def mask_absent(module: nn.Module) -> None:
    """Set the logits of classes that the buffer ``present`` does not have to 0, in training."""
    classes = cast(nn.Linear, module.get_submodule(head_layer(module))).out_features
    module.register_buffer(PRESENT, torch.ones(classes).to(next(module.parameters())))

    def masked(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor | None:
        present = layer.get_buffer(PRESENT).view(-1, *[1] * (outputs.dim() - 2))  # the classes are dimension 1
        return outputs * present if layer.training else None

    module.register_forward_hook(masked)


def divide_before_norms(module: nn.Module, rate: float) -> None:
    """Divide by the rate before every normalization, in training: outputs of a cut layer are smaller by about that."""

    def scaled(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (inputs[0] / rate, *inputs[1:]) if layer.training else None

    for layer in module.modules():
        if isinstance(layer, SCALED):
            layer.register_forward_pre_hook(scaled)
