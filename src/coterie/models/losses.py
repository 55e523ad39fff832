"""Losses by name, and which of torch's own are of the same kind."""

from collections.abc import Collection

from torch import nn
from torch.nn import functional as F

from .model import Loss

ABSOLUTE: tuple[object, ...] = (F.l1_loss, nn.L1Loss)
REGRESSION: tuple[object, ...] = (
    *ABSOLUTE,
    F.mse_loss,
    nn.MSELoss,
    F.huber_loss,
    nn.HuberLoss,
    F.smooth_l1_loss,
    nn.SmoothL1Loss,
)


def of_kind(loss: Loss, kind: Collection[object]) -> bool:
    """Return whether a loss is one of those functions, or an instance of one of those classes."""
    return loss in kind or type(loss) in kind
