"""The formulas of the built-in metrics: what is kept of every sample, and the number that any set of samples has.

``each(outputs, targets)`` of a batch is [B, k]; ``value`` of [N, k] such statistics, in float64, is one number. NaN:
the metric is not defined on these samples. Values of sums are taken along the last but one dimension, so that stacked
sums of many clients are one call.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..models.losses import one_hot

Each = Callable[[Tensor, Tensor], Tensor]
Value = Callable[[Tensor], Tensor]


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs in the shape of the targets: one number per sample may be [B] or [B, 1]."""
    return outputs.reshape(targets.shape)


def _counted(kept: Tensor) -> Tensor:
    """Return [B, 2] the sum over what is kept of each sample, and of how many."""
    flat = kept.reshape(len(kept), -1)
    return torch.stack([flat.sum(1), torch.full_like(flat[:, 0], flat.shape[1])], 1)


def right_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the right answers of each sample: the largest output along dimension 1, where ``cross_entropy`` has it."""
    return _counted((outputs.argmax(1) == targets).to(outputs.dtype))


def right_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the labels of each sample that are on the right side of 0."""
    return _counted(((aligned(outputs, targets) > 0) == (targets > 0)).to(outputs.dtype))


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the squared errors of each sample."""
    return _counted((aligned(outputs, targets) - targets).square())


def absolute_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the absolute errors of each sample."""
    return _counted((aligned(outputs, targets) - targets).abs())


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, summed over its places."""
    likely = outputs.log_softmax(1)
    if targets.is_floating_point():  # class probabilities
        return _counted(-(likely * targets).sum(1))
    return _counted(-likely.gather(1, targets.unsqueeze(1)).squeeze(1))


def ratio(statistics: Tensor) -> Tensor:
    """Return the mean over all that was counted."""
    total = statistics.sum(-2)
    return total[..., 0] / total[..., 1]


def exp_ratio(statistics: Tensor) -> Tensor:
    """Return the exponential of the mean."""
    return ratio(statistics).exp()


def answers(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the answered and the true class of every place of a sample."""
    both = torch.stack([outputs.argmax(1), targets], 1)
    return both.reshape(len(both), -1).to(outputs.dtype)


def _classes(statistics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for every class that occurs, how often it is right, answered and true."""
    answered, true = (part.reshape(-1) for part in statistics.chunk(2, 1))
    found, which = torch.unique(torch.cat([answered, true]), return_inverse=True)
    left, right = which.chunk(2)
    counts = (torch.bincount(each, minlength=len(found)) for each in (left[left == right], left, right))
    hits, given, there = (count.to(statistics.dtype) for count in counts)
    return hits, given, there


def mean_recall(statistics: Tensor) -> Tensor:
    """Return the share of right answers, mean over the classes that the samples have."""
    hits, _, there = _classes(statistics)
    return (hits / there)[there > 0].mean()


def mean_f1(statistics: Tensor) -> Tensor:
    """Return 2 right / (answered + true), mean over the classes that are answered or true."""
    hits, given, there = _classes(statistics)
    return (2 * hits / (given + there)).mean()


def scored_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of each class, and whether it is the true one; of two classes, those of the second."""
    true = one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    likely = outputs.softmax(1)
    return torch.cat([likely, true] if outputs.shape[1] != 2 else [likely[:, 1:], true[:, 1:]], 1)


def scored_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the score of each label, and whether it is there."""
    return paired_numbers(outputs, (targets > 0).to(outputs.dtype))


def paired_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs of each sample, then its targets."""
    both = torch.stack([aligned(outputs, targets), targets.to(outputs.dtype)], 1)
    return both.reshape(len(both), -1)


def _per_column(f: Callable[[Tensor, Tensor], Tensor]) -> Value:
    """Return the mean of ``f(first, second)`` over the columns where it is defined."""

    def value(statistics: Tensor) -> Tensor:
        columns = zip(*(part.unbind(1) for part in statistics.chunk(2, 1)), strict=True)
        return torch.stack([f(first, second) for first, second in columns]).nanmean()

    return value


def _area(scores: Tensor, true: Tensor) -> Tensor:
    """Return how likely a positive sample has a higher score than a negative one; equal scores count half."""
    which = torch.unique(scores, return_inverse=True)[1]
    counts = torch.bincount(which)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).to(scores.dtype)[which]
    positive = true.sum()
    return (ranks * true).sum().sub(positive * (positive + 1) / 2) / (positive * (len(true) - positive))


def _precision(scores: Tensor, true: Tensor) -> Tensor:
    """Return the precision at every threshold, weighted by how much recall it adds."""
    which = torch.unique(-scores, return_inverse=True)[1]  # the highest score first
    seen = torch.bincount(which).cumsum(0)
    hits = torch.bincount(which, true)
    return (hits / true.sum() * hits.cumsum(0) / seen).sum()


def _determination(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - (squared errors / squared distances to the mean); NaN where all targets are equal."""
    spread = (targets - targets.mean()).square().sum()
    return torch.where(spread > 0, 1 - (outputs - targets).square().sum() / spread, torch.nan)


def _f1(scores: Tensor, true: Tensor) -> Tensor:
    given = (scores > 0).to(true)
    return 2 * (given * true).sum() / (given.sum() + true.sum())


area = _per_column(_area)
precision = _per_column(_precision)
determination = _per_column(_determination)
label_f1 = _per_column(_f1)


def overlapping_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return, for each class, how many pixels of a sample are both, answered and true."""
    answered, true = (one_hot(v.flatten(1), outputs.shape[1]) for v in (outputs.argmax(1), targets))
    return torch.cat([(answered & true).sum(1), answered.sum(1), true.sum(1)], 1).to(outputs.dtype)


def overlapping_masks(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return, for each channel, how many pixels of a sample are both, answered and true."""
    channels = targets.shape[1] if targets.dim() > 3 else 1
    answered, true = ((v > 0).reshape(len(v), channels, -1) for v in (aligned(outputs, targets), targets))
    return torch.cat([(answered & true).sum(2), answered.sum(2), true.sum(2)], 1).to(outputs.dtype)


def dice(statistics: Tensor) -> Tensor:
    """Return 2 both / (answered + true), mean over the classes that are answered or true."""
    both, answered, true = statistics.sum(-2).chunk(3, -1)
    return (2 * both / (answered + true)).nanmean(-1)


def iou(statistics: Tensor) -> Tensor:
    """Return both / (answered or true), mean over the classes that are answered or true."""
    both, answered, true = statistics.sum(-2).chunk(3, -1)
    return (both / (answered + true - both)).nanmean(-1)
