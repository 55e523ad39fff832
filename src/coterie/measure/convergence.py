"""How far clients are from a stationary point, how close their factors come to losing a rank, and what is recorded."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.errors import UserError, unknown
from ..core.schema import MeasureName
from ..core.tensors import Tensors, count, floating, replicate, rows, split
from ..data.batches import Samples
from ..engines.base import Engine
from ..models.model import Model
from ..submodels import Pair, factor_pairs
from .assumptions import record_constants
from .evaluate import Measured, averaged, record_train_accuracy
from .perplexity import record_perplexity
from .sharpness import gradient_sums, sharpness, squared

RHO = 0.05  # how far sharpness looks: the radius of the paper that introduced it


class GradientNorms(NamedTuple):
    """Squared norms of the objective's two partial gradients; 0 at a stationary point."""

    shared: float  # G_u
    personal: float  # G_v


def gradient_norms(
    engine: Engine, model: Model, models: Tensors, samples: Samples, shared: Collection[str]
) -> GradientNorms:
    """Return G_u = |(1/n) sum_i grad_u f_i(u_i, v_i)|^2 and G_v = (1/n) sum_i |grad_v f_i(u_i, v_i)|^2.

    f_i is the mean loss over all samples of client i in evaluation mode; u: the trained parameters in ``shared``, v:
    the others. A part without parameters has norm 0; a client without samples has no f_i and is not counted.

    Reference: FedAvg-P/Scaffold-P, Table 1.
    """
    sums = gradient_sums(engine, model, models, samples, shared)
    return GradientNorms(float(squared(sums.u, samples.y.device)) / sums.clients**2, sums.v2 / sums.clients)


def with_common_shared(models: Tensors, shared: Collection[str], center: Tensors | None = None) -> Tensors:
    """Return every client's model with the same shared part: the mean one, or that of ``center``.

    What is expanded over the clients already, as with a server, is left alone; so are integer buffers.

    >>> with_common_shared({"u": torch.tensor([1.0, 3.0]), "v": torch.tensor([5.0, 7.0])}, {"u"})
    {'u': tensor([2., 2.]), 'v': tensor([5., 7.])}
    """
    u = {k: v for k, v in floating(split(models, shared)[0]).items() if center is not None or v.stride(0)}
    agreed = averaged(u) if center is None else {k: center[k] for k in u}
    everywhere: Tensors = replicate(agreed, count(models))
    return models | everywhere


def _gradients(e: Measured, state: Any) -> dict[str, float]:
    """Measure G_u at the common shared part and G_v at each client's own: between peers these are different points."""
    program = e.program
    own = program.models(state)
    together = with_common_shared(own, program.shared, None if program.consensus is None else program.consensus(state))
    norms = gradient_norms(e.engine, e.model, together, e.train, program.shared)
    apart = any(together[k] is not own[k] for k in own)
    if apart and not program.shared.issuperset(e.model.parameters):
        norms = norms._replace(personal=gradient_norms(e.engine, e.model, own, e.train, program.shared).personal)
    return {"gradient_norm_shared": norms.shared, "gradient_norm_personal": norms.personal}


def _sharpness(e: Measured, state: Any) -> dict[str, float]:
    each = sharpness(e.engine, e.model, e.program.models(state), e.train, RHO)
    return {"sharpness": float(each.nanmean()), "sharpness_worst": float(each[~each.isnan()].max())}


def _deltas(e: Measured, before: Any, after: Any) -> dict[str, float]:
    """Measure Delta_u at (mean u^t, V^(t+1)) and Delta_v at (u_i^t, v_i^t), as the theorems between peers take them."""
    program = e.program
    own = program.models(before)
    together = with_common_shared(own, program.shared, None if program.consensus is None else program.consensus(before))
    later = program.models(after) | split(together, program.shared)[0]
    shared = gradient_norms(e.engine, e.model, later, e.train, program.shared).shared
    return {"delta_u": shared, "delta_v": gradient_norms(e.engine, e.model, own, e.train, program.shared).personal}


def _mass(e: Measured, state: Any) -> dict[str, float]:
    """Return the least and the greatest push-sum weight; their mean is 1 unless messages are on their way."""
    mu = e.program.mass(state)
    return {"mass_least": float(mu.min()), "mass_greatest": float(mu.max())}


def smallest_singular_value(factors: Sequence[Tensor]) -> Tensor:
    """Return the smallest of all singular values of some matrices; [n] where each is stacked over n clients.

    >>> smallest_singular_value([torch.eye(3), torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.0, 0.0]])])
    tensor(0.5000, dtype=torch.float64)

    Reference: FedLMT, Assumption 4.4, where the factors of a layer have as many columns as its rank.
    """
    return torch.stack([torch.linalg.svdvals(f.to(torch.float64))[..., -1] for f in factors]).amin(0)


def smallest_of_layer(pair: Pair, clients: Sequence[Tensors]) -> float:
    """Return the smallest of both factors of a layer and all clients; columns of zeros pad a smaller rank."""
    found = []
    for tensors in clients:
        both = [f[:, f.any(0)] for f in pair.matrices(tensors)]
        found.append(smallest_singular_value([f for f in both if f.numel()]))
    return float(torch.stack(found).min())


def block_of(weight: str) -> str:
    """Return the part of the model that a layer stands in; one that stands in no part is a block by itself.

    >>> block_of("stages.0.1.conv2.weight"), block_of("7.weight")
    ('stages.0.1', '7')
    """
    layer = weight.removesuffix(".weight")
    return layer.rpartition(".")[0] or layer


def _singular_values(e: Measured, state: Any) -> dict[str, float]:
    """Measure the smallest over all factors of all clients, and that of every block, counted from 1 in their order."""
    models = e.program.models(state)
    clients = [rows(models, i) for i in range(count(models))]
    blocks: dict[str, list[float]] = {}
    for pair in factor_pairs(e.model.module):
        blocks.setdefault(block_of(pair.weight), []).append(smallest_of_layer(pair, clients))
    each = {f"smallest_singular_value_block_{i}": min(found) for i, found in enumerate(blocks.values(), 1)}
    return {"smallest_singular_value": min(each.values()), **each}


def record_columns(experiment: Measured, names: Iterable[MeasureName], before: Any, after: Any) -> dict[str, float]:
    """Return all columns of the named measures after a round."""
    row: dict[str, float] = {}
    for name in names:
        if name in BY_CLIENT:  # what every client has comes together where the metrics of all shards do
            continue
        row |= CHANGES[name](experiment, before, after) if name in CHANGES else MEASURES[name](experiment, after)
    return row


CLIENTS: MeasureName = "clients"
OWN_TRAIN: MeasureName = "own-train"
BY_CLIENT = (CLIENTS, OWN_TRAIN)


def check_measure(name: str, model: Model, program: Any, measurable: bool) -> None:
    """Refuse what is no measure, or none for this model or method."""
    if name not in get_args(MeasureName):
        raise unknown("measure", name, get_args(MeasureName))
    if name == "mass" and program.mass is None:
        raise UserError(f"{name} is what push-sum keeps beside a model: take dfedpgp or osgp, or leave it out")
    if name == OWN_TRAIN and not measurable:
        raise UserError(f"{name} is for metrics that clients have on test samples, which nobody has: leave it out")
    if name == "singular-values" and not factor_pairs(model.module):
        raise UserError(f"{name} needs layers of low rank, which this model has not: take fedlmt or leave it out")


MEASURES: dict[MeasureName, Callable[[Measured, Any], dict[str, float]]] = {
    "gradients": _gradients,
    "sharpness": _sharpness,
    "singular-values": _singular_values,
    "perplexity": record_perplexity,
    "train-accuracy": record_train_accuracy,
    "constants": record_constants,
    "mass": _mass,
}
"""What can be recorded in every round, by name: (experiment, state) -> numbers by column."""
CHANGES: dict[MeasureName, Callable[[Measured, Any, Any], dict[str, float]]] = {"deltas": _deltas}
"""The same, of the states before and after it."""
