"""Losses by name, each the mean over a batch of what every sample has alone, and which of torch's own are of a kind."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import UserError, unknown
from ..core.spec import spelled
from .model import Loss, cross_entropy


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of several labels per sample, or of masks; outputs are scores, right above 0."""
    return F.binary_cross_entropy_with_logits(_aligned(outputs, targets), targets.to(outputs.dtype))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return F.mse_loss(_aligned(outputs, targets), targets.to(outputs.dtype))


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error."""
    return F.l1_loss(_aligned(outputs, targets), targets.to(outputs.dtype))


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return Huber's loss: squared up to an error of 1, absolute beyond."""
    return F.huber_loss(_aligned(outputs, targets), targets.to(outputs.dtype))


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - Dice of the probabilities, mean over classes or channels, of every sample alone; 1 is added to both
    sides of its fraction, so that an empty mask has a gradient."""
    if outputs.dim() < 3:
        raise UserError(
            "the loss dice is for pixels, and there is one answer per sample: take cross-entropy, bce or mse"
        )
    if outputs.numel() == targets.numel():  # masks of one channel may be [B, H, W]
        likely, true = _aligned(outputs, targets).sigmoid(), targets.to(outputs.dtype)
    else:
        likely = outputs.softmax(1)
        true = one_hot(targets, outputs.shape[1]).movedim(-1, 1).to(outputs.dtype)
    both, each = ((v.flatten(2) if v.dim() > 3 else v.flatten(1)).sum(-1) for v in (likely * true, likely + true))
    return (1 - (2 * both + 1) / (each + 1)).mean()


def one_hot(classes: Tensor, count: int) -> Tensor:
    """Return [..., count] whether each is that class; torch's own looks at the values, which no recorded step may."""
    return classes.unsqueeze(-1) == torch.arange(count, device=classes.device)


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs in the shape of the targets: one number per sample may be [B] or [B, 1]."""
    if outputs.numel() != targets.numel():
        have, wanted = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
        raise UserError(
            f"the model answers with shape {have}, the targets have {wanted}: give it as many outputs, or another loss"
        )
    return outputs.reshape(targets.shape)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "bce": bce,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "dice": dice,
}
CROSS_ENTROPY: tuple[object, ...] = (cross_entropy, F.cross_entropy, nn.CrossEntropyLoss, F.nll_loss, nn.NLLLoss)
ABSOLUTE: tuple[object, ...] = (mae, F.l1_loss, nn.L1Loss)
REGRESSION: tuple[object, ...] = (
    *ABSOLUTE,
    mse,
    F.mse_loss,
    nn.MSELoss,
    huber,
    F.huber_loss,
    nn.HuberLoss,
    F.smooth_l1_loss,
    nn.SmoothL1Loss,
)


def loss_named(name: str) -> Loss:
    """Return the loss of that name, as it is typed or as a configuration has it.

    >>> loss_named("cross_entropy") is loss_named("cross-entropy") is cross_entropy
    True
    """
    found = LOSSES.get(spelled(name, LOSSES))
    if found is None:
        raise unknown("loss", name, LOSSES)
    return found


def loss_of(given: Loss | str | None) -> Loss:
    """Return the loss that is meant; cross-entropy unless one is given."""
    return loss_named(given) if isinstance(given, str) else given or cross_entropy


def name_of_loss(loss: Loss) -> str | None:
    """Return the name of a loss as a configuration has it; None: it has none.

    >>> name_of_loss(cross_entropy), name_of_loss(F.mse_loss)
    ('cross_entropy', None)
    """
    return next((name.replace("-", "_") for name, known in LOSSES.items() if known is loss), None)


def of_kind(loss: Loss, kind: Collection[object]) -> bool:
    """Return whether a loss is one of those functions, or an instance of one of those classes."""
    return loss in kind or type(loss) in kind
