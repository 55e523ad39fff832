"""What a model is asked to answer: the kind of the targets, and the metric that suits it."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.schema import TargetKind
from ..models.losses import ABSOLUTE, CROSS_ENTROPY, REGRESSION, dice, of_kind
from ..models.model import Loss, cross_entropy

KINDS: dict[str | None, str] = {
    "classes": "one class per sample",
    "tokens": "a token at every place",
    "pixels": "a class for every pixel",
    "labels": "several labels per sample, each 0 or 1",
    "masks": "masks of 0 and 1",
    "numbers": "numbers",
    "probabilities": "probabilities of the classes",
    None: "of another shape than the outputs",
}


class LearningTask(NamedTuple):
    """What a model answers, and what it should."""

    kind: TargetKind | None  # None: no built-in metric knows what targets of this shape are
    outputs: torch.Size  # of one sample
    targets: torch.Size
    dtype: torch.dtype  # of what is kept of a sample


def task_of(outputs: object, targets: Tensor, loss: Loss) -> LearningTask:
    """Return the task of a model whose ``outputs`` for some samples these are; ``targets``: of all samples."""
    if not isinstance(outputs, Tensor):
        return LearningTask(None, torch.Size(), targets.shape[1:], torch.float32)
    dtype = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    return LearningTask(_kind(outputs, targets, loss), outputs.shape[1:], targets.shape[1:], dtype)


def _kind(outputs: Tensor, targets: Tensor, loss: Loss) -> TargetKind | None:
    have, wanted, floating = outputs.shape[1:], targets.shape[1:], targets.is_floating_point()
    several = outputs.dim() > 1 and (have[0] > 1 or of_kind(loss, CROSS_ENTROPY))  # one score is that of the only class
    if not floating and outputs.dim() == targets.dim() + 1 and have[1:] == wanted and several:
        return "classes" if targets.dim() == 1 else "tokens" if targets.dim() == 2 else "pixels"
    if have.numel() != wanted.numel():
        return None
    if loss is cross_entropy and floating:
        return "probabilities"
    if not of_kind(loss, REGRESSION) and bool(((targets == 0) | (targets == 1)).all()):
        return "labels" if targets.dim() < 3 else "masks"
    return "numbers"


def natural(task: LearningTask, loss: Loss) -> list[str]:
    """Return the name of the metric that suits a task and a loss; none where no built-in one fits."""
    if task.kind is None:
        return []
    if loss is dice and task.kind in ("pixels", "masks"):
        return ["dice"]
    if task.kind == "numbers":
        return ["mae" if of_kind(loss, ABSOLUTE) else "mse"]
    return ["perplexity" if task.kind == "probabilities" else "accuracy"]
