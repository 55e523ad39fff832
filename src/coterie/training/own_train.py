"""What the clients' own models are worth on the clients' own training samples, as stored: none is augmented."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import measure
from ..core.schema import TRAIN_AFTER_MIX, TRAIN_AFTER_TRAIN
from ..core.tensors import Tensors
from ..data.batches import Integers
from ..models.model import Model, products

if TYPE_CHECKING:
    from .experiment import Experiment


def own_train(e: "Experiment", model: Model, models: Tensors, clients: Integers) -> Tensor:
    """Return [m, metrics] of stacked models on their clients' training samples."""
    return measure.personal_values(e.engine, model, models, e.train, clients, e.metrics)


def own_train_values(e: "Experiment", state: Any, after_train: Tensor, t: int) -> Tensors:
    """Return [m, metrics] of the local clients after round ``t``, by protocol.

    ``after_train``: [m, 2 metrics] right after each client's latest training, on test samples and on training ones. A
    client that never trained has what it was given.
    """
    latest = after_train[:, len(e.metrics.each) :]
    mixed = torch.full_like(latest, torch.nan)
    with products(e.model.precision):
        for g in e.groups(state, t):
            mixed[g.places] = own_train(e, g.model, g.models, e.local_clients[g.places])
    return {TRAIN_AFTER_MIX: mixed, TRAIN_AFTER_TRAIN: torch.where(latest.isnan(), mixed, latest)}
