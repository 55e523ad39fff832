"""Gradients of batches that do not fit into memory: a slice after another."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.tensors import Tensors, add, count, mul, rows
from ..data.batches import Batch
from ..engines.base import Grad, StepInfo

APART = 0x5851F42D4C957F2D  # between the keys of two slices' dropout masks


def sliced(grad: Grad, size: int | None) -> Grad:
    """Return the gradient of a batch by slices of so many samples; None: of the whole batch."""
    return grad if size is None else Sliced(grad, size)


@dataclass(frozen=True)
class Sliced:
    """The gradient of a batch as the mean of those of its slices, each weighed by its samples.

    It is that of the whole batch where the loss is the mean over the samples, as the first steps of a run try.
    Dropout has masks of its own in every slice, and what torch draws follows one slice after another.
    """

    grad: Grad
    size: int  # samples of a slice

    def __call__(self, x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
        """Return the gradient of a batch, and its loss."""
        samples = count(batch.y)
        if samples <= self.size:
            return self.grad(x, frozen, batch)
        starts = range(0, samples, self.size)
        g, loss, unreached = dict[str, Tensor](), torch.zeros((), device=batch.y.device), frozenset(x)
        for number, start in enumerate(starts):
            more, info = self.grad(x, frozen, one_slice(batch, number, start, self.size))
            share = share_of(batch, start, self.size, info.loss)
            g = add(g, more, share) if g else mul(more, share)
            loss = loss + info.loss * share
            unreached &= info.unreached
        return g, StepInfo(loss, info.buffers, unreached)


def one_slice(batch: Batch, number: int, start: int, size: int) -> Batch:
    """Return some samples of a batch; where all of them are padding they are taken for samples, to count nothing."""
    mask = None if batch.mask is None else batch.mask[start : start + size] > 0
    key = None if batch.dropout is None else batch.dropout + number * APART
    x, y = rows((batch.x, batch.y), slice(start, start + size))
    return Batch(x, y, None if mask is None else mask | ~mask.any(), key)


def share_of(batch: Batch, start: int, size: int, like: Tensor) -> float | Tensor:
    """Return the share of a slice among the samples of a batch."""
    if batch.mask is None:
        return min(size, count(batch.y) - start) / count(batch.y)
    used = batch.mask.to(like)
    return used[start : start + size].sum() / used.sum()
