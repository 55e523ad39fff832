"""Which samples a client sees, step by step.

Samples are stored once, a client owns a list of positions, and a batch is gathered and transformed when it is needed.
Clients of unequal size make unequal numbers of steps; where several clients run side by side, the shorter batches are
padded, and the mask keeps the padding out of every mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..core import rng
from ..core.tensors import Tensors, rows
from .transform import Masking, Transform

Integers = NDArray[np.int64]


class Batch(NamedTuple):
    """The samples of one step."""

    x: Tensor
    y: Tensor
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: all are samples


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index], as an embedding: it copies whole rows even under ``vmap``, where indexing goes by numbers."""
    if x.dim() == 1 and index.dim() == 1:
        return x.index_select(0, index)
    if not x.is_contiguous():
        return x[index]
    taken = F.embedding(index, x if x.dim() == 2 else x.view(len(x), -1))
    return taken if x.dim() == 2 else taken.view(*index.shape, *x.shape[1:])


@dataclass(frozen=True)
class Samples:
    """The stored samples of a federation, and which of them each client owns."""

    x: Tensor
    y: Tensor
    owned: tuple[Tensor, ...]  # positions in x and y, one tensor per client
    transform: Transform | Masking | None = None  # makes inputs of the samples; None: they are inputs

    @cached_property
    def flat(self) -> Integers:
        """The positions of all clients, one client after another."""
        return torch.cat(self.owned).cpu().numpy()

    @cached_property
    def sizes(self) -> Integers:
        """The number of samples of each client."""
        return np.array([len(p) for p in self.owned], np.int64)

    @cached_property
    def divided(self) -> bool:
        """Whether every sample has one owner."""
        return bool(np.array_equal(np.sort(self.flat), np.arange(len(self.y))))

    @cached_property
    def starts(self) -> Integers:
        """The place in ``flat`` where each client begins."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def transformed(self, raw: Tensor, draw: Tensor | None = None) -> Tensor:
        """Return samples as a model sees them; ``draw`` [B]: how each of them is augmented, None: not at all."""
        if self.transform is None:
            return raw
        return self.transform.plain(raw) if draw is None else self.transform.augmented(raw, draw)

    def batch(self, index: Tensor, mask: Tensor | None = None, draw: Tensor | None = None) -> Batch:
        """Return the samples ``index`` [B], gathered and transformed."""
        return Batch(self.transformed(take(self.x, index), draw), take(self.y, index), mask)

    def dealt(self, size: int) -> "Samples":
        """Return the same samples in order, ``size`` of them for each client."""
        return replace(self, owned=torch.split(torch.arange(len(self.y)), size))

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield all samples in order, ``size`` at a time, as a model is evaluated on them."""
        for x, y in zip(*(torch.split(v, size) for v in (self.x, self.y)), strict=True):
            yield Batch(self.transformed(x), y, None)


@dataclass(frozen=True)
class Stream:
    """The batches of one client, as its local function sees them."""

    samples: Samples  # of the whole federation
    index: Tensor  # [K, B] which of them, step by step
    mask: Tensor | None  # [K, B] where batches are padded
    draw: Tensor | None  # [K, B] how each sample is augmented; None: not at all
    widths: Sequence[int]  # [K] how many columns each step uses

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.widths)

    def batch(self, k: int) -> Batch:
        """Return the samples of step ``k``, transformed."""
        at = k, slice(self.widths[k])
        mask, draw = (None if v is None else v[at] for v in (self.mask, self.draw))
        return self.samples.batch(self.index[at], mask, draw)


@dataclass(frozen=True)
class Block:
    """The batches of some clients side by side."""

    index: Tensor  # [m, K, B]
    mask: Tensor | None  # [m, K, B]; None where all clients have equally many samples in every step
    draw: Tensor | None  # [m, K, B]; None where nothing is augmented
    widths: list[int]  # [K] how many columns each step uses

    @property
    def tensors(self) -> Tensors:
        """The tensors that differ between the clients, stacked."""
        named = {"index": self.index, "mask": self.mask, "draw": self.draw}
        return {k: v for k, v in named.items() if v is not None}

    def stream(self, samples: Samples, mine: Tensors) -> Stream:
        """Return the batches of one client; ``mine``: its part of the ``tensors``."""
        return Stream(samples, mine["index"], mine.get("mask"), mine.get("draw"), self.widths)


class Amount(NamedTuple):
    """The length of a phase: passes over the client's data, or single steps.

    Several numbers of epochs are for as many groups of clients of equal size, in the order of the clients.
    """

    epochs: int | tuple[int, ...] | None = None
    steps: int | None = None
    half: int | None = None  # 1 or 2: only the first or the second half of the steps; the first is the longer one

    def of(self, steps_an_epoch: Integers, clients: Integers, n: int) -> Integers:
        """Return the number of steps of each of the ``clients`` among ``n``; one without data makes none."""
        if self.steps is not None:
            steps: Integers = np.where(steps_an_epoch > 0, self.steps, 0)
        elif isinstance(self.epochs, tuple):
            steps = steps_an_epoch * np.array(self.epochs, np.int64)[clients * len(self.epochs) // n]
        else:
            steps = steps_an_epoch * (self.epochs or 0)
        if self.half is None:
            return steps
        return steps // 2 if self.half == 2 else steps - steps // 2


@dataclass(frozen=True)
class Batches:
    """The batches of some clients, drawn when they are needed."""

    samples: Samples
    clients: Integers  # [m]
    amount: Amount
    batch_size: int | None  # None: all samples of a client
    key: int | None  # of shuffling and augmentation; None: neither happens

    @cached_property
    def sizes(self) -> Integers:
        """The number of samples of each client, [m]."""
        return self.samples.sizes[self.clients]

    @cached_property
    def widths(self) -> Integers:
        """The number of samples in a full batch of each client, [m]."""
        return self.sizes if self.batch_size is None else np.minimum(self.sizes, self.batch_size)

    @cached_property
    def steps_an_epoch(self) -> Integers:
        """The number of batches in one pass, the last partial one included, [m]."""
        return -(-self.sizes // np.maximum(self.widths, 1))

    @cached_property
    def steps(self) -> Integers:
        """The number of batches of each client, [m]."""
        return self.amount.of(self.steps_an_epoch, self.clients, len(self.samples.owned))

    @cached_property
    def seen(self) -> int:
        """The number of samples in all batches of all clients together."""
        passes, rest = np.divmod(self.steps, np.maximum(self.steps_an_epoch, 1))
        return int((passes * self.sizes + np.minimum(rest * self.widths, self.sizes)).sum())

    def counts(self, which: Integers) -> Integers:
        """Return [m, K] the number of samples in each step of the clients at the places ``which``."""
        left: Integers = self.sizes[which][:, None] - self._position(which)[1]
        return left.clip(max=self._full(which))

    def block(self, which: Integers) -> Block:
        """Return the batches of the clients at the places ``which``; a step is as wide as its fullest batch."""
        passes, before = self._position(which)
        counts = self.counts(which)
        last = np.maximum(self.sizes[which] - 1, 0)[:, None, None]
        place = np.minimum(before[:, :, None] + np.arange(counts.max(initial=0)), last)
        order = self._order(which, passes.max(initial=0) + 1)
        along = passes[:, :, None] * order.shape[2] + place
        local = np.take_along_axis(order.reshape(len(which), -1), along.reshape(len(which), -1), 1).reshape(place.shape)
        index = self.samples.flat[self.samples.starts[self.clients[which]][:, None, None] + local]
        mask = None if (counts == counts[:1]).all() else np.arange(index.shape[2]) < counts[:, :, None]
        draw = self._draw(which, passes, local)
        device = self.samples.x.device
        return Block(
            torch.from_numpy(index).to(device),
            None if mask is None else torch.from_numpy(mask).to(device),
            None if draw is None else torch.from_numpy(draw).to(device),
            counts.max(0, initial=0).tolist(),
        )

    def _full(self, which: Integers) -> Integers:
        """Return [m, 1] the number of samples in a full batch, at least 1."""
        return np.maximum(self.widths[which], 1)[:, None]

    def _position(self, which: Integers) -> tuple[Integers, Integers]:
        """Return [m, K] the pass that each step belongs to, and the number of samples before it in that pass."""
        steps = np.arange(int(self.steps[which].max(initial=0)))
        passes, step = np.divmod(steps, np.maximum(self.steps_an_epoch[which], 1)[:, None])
        return passes, step * self._full(which)

    def _order(self, which: Integers, epochs: int) -> Integers:
        """Return [m, E, N] each client's own samples in the order of each pass; its N_i come first."""
        sizes = self.sizes[which]
        position = np.arange(int(sizes.max(initial=0)))
        if self.key is None:
            return np.broadcast_to(position, (len(which), epochs, len(position)))
        draw = rng.counters(self.key, self.clients[which][:, None, None], np.arange(epochs)[:, None], position)
        draw[np.broadcast_to(position >= sizes[:, None, None], draw.shape)] = np.iinfo(np.uint64).max
        return draw.argsort(axis=-1)

    def _draw(self, which: Integers, passes: Integers, local: Integers) -> Integers | None:
        """Return [m, K, B] a number for every sample in every pass, whichever batch it is in; it is not negative."""
        transform = self.samples.transform
        if self.key is None or transform is None or not transform.random:
            return None
        key = rng.key(self.key, "augmentation")
        draw = rng.counters(key, self.clients[which][:, None, None], passes[:, :, None], local)
        return (draw >> np.uint64(1)).view(np.int64)

    def one(self, place: int) -> Stream:
        """Return the batches of one client without padding."""
        block = self.block(np.array([place]))
        return block.stream(self.samples, rows(block.tensors, 0))
