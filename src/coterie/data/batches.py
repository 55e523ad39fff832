"""Which samples a client sees, step by step.

Nothing is copied per client: the samples are held once, a client owns a list of positions, and a batch is gathered
and prepared when it is needed. Clients of unequal size make unequal numbers of steps; where several of them run side
by side the shorter batches are padded, and the mask keeps the padding out of every mean.
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

from ..core import rng as rng
from ..core.tensors import Tensors, rows
from .masking import Masking
from .transform import Transform

Integers = NDArray[np.int64]


class Batch(NamedTuple):
    """One step's samples."""

    x: Tensor
    y: Tensor
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: all are samples


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[index]; as an embedding, which copies whole rows, under ``vmap`` too, where indexing goes number by number."""
    if x.dim() == 1 and index.dim() == 1:
        return x.index_select(0, index)
    if not x.is_contiguous():
        return x[index]
    taken = F.embedding(index, x if x.dim() == 2 else x.view(len(x), -1))
    return taken if x.dim() == 2 else taken.view(*index.shape, *x.shape[1:])


@dataclass(frozen=True)
class Samples:
    """Samples held once, as they are stored, and which of them each client owns."""

    x: Tensor
    y: Tensor
    owned: tuple[Tensor, ...]  # positions in x and y, one tensor a client
    transform: Transform | Masking | None = None  # what makes inputs of them; None: they are inputs

    @cached_property
    def flat(self) -> Integers:
        """The clients' positions, one client after another."""
        return torch.cat(self.owned).cpu().numpy()

    @cached_property
    def sizes(self) -> Integers:
        """How many samples each client owns."""
        return np.array([len(p) for p in self.owned], np.int64)

    @cached_property
    def divided(self) -> bool:
        """Whether every sample has one owner."""
        return bool(np.array_equal(np.sort(self.flat), np.arange(len(self.y))))

    @cached_property
    def starts(self) -> Integers:
        """Where each client begins in ``flat``."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def prepared(self, raw: Tensor, draw: Tensor | None = None) -> Tensor:
        """Some samples as a model sees them; ``draw`` [B]: how each of them is augmented, None: not at all."""
        if self.transform is None:
            return raw
        return self.transform.plain(raw) if draw is None else self.transform.augmented(raw, draw)

    def batch(self, index: Tensor, mask: Tensor | None = None, draw: Tensor | None = None) -> Batch:
        """The samples ``index`` [B], gathered and prepared."""
        return Batch(self.prepared(take(self.x, index), draw), take(self.y, index), mask)

    def dealt(self, size: int) -> "Samples":
        """The same samples in order, ``size`` of them to everybody."""
        return replace(self, owned=torch.split(torch.arange(len(self.y)), size))

    def parts(self, size: int) -> Iterator[Batch]:
        """All samples in order, whoever owns them, ``size`` at a time, as a model is evaluated on them."""
        for x, y in zip(*(torch.split(v, size) for v in (self.x, self.y)), strict=True):
            yield Batch(self.prepared(x), y, None)


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
        """How many batches there are."""
        return len(self.widths)

    def batch(self, k: int) -> Batch:
        """The samples of step ``k``, prepared."""
        here = k, slice(self.widths[k])
        mask, draw = (None if v is None else v[here] for v in (self.mask, self.draw))
        return self.samples.batch(self.index[here], mask, draw)


@dataclass(frozen=True)
class Block:
    """The batches of some clients side by side."""

    index: Tensor  # [m, K, B]
    mask: Tensor | None  # [m, K, B]; None where all clients have equally many samples in every step
    draw: Tensor | None  # [m, K, B]; None where nothing is augmented
    widths: list[int]  # [K] how many columns each step uses

    @property
    def tensors(self) -> Tensors:
        """What differs between the clients, stacked."""
        named = {"index": self.index, "mask": self.mask, "draw": self.draw}
        return {k: v for k, v in named.items() if v is not None}

    def stream(self, samples: Samples, mine: Tensors) -> Stream:
        """The batches of one client; ``mine``: its part of the ``tensors``."""
        return Stream(samples, mine["index"], mine.get("mask"), mine.get("draw"), self.widths)


class Amount(NamedTuple):
    """How long a phase lasts: passes over the client's data, or single steps.

    Several numbers of epochs are for as many equal groups of clients, in the order of the clients.
    """

    epochs: int | tuple[int, ...] | None = None
    steps: int | None = None
    half: int | None = None  # 1 or 2: only the first or the second half of the steps, the first being the longer

    def of(self, steps_an_epoch: Integers, clients: Integers, n: int) -> Integers:
        """The number of steps of each of the ``clients`` among ``n``; one without data makes none."""
        whole = self._whole(steps_an_epoch, clients, n)
        if self.half is None:
            return whole
        return whole // 2 if self.half == 2 else whole - whole // 2

    def _whole(self, steps_an_epoch: Integers, clients: Integers, n: int) -> Integers:
        if self.steps is not None:
            return np.where(steps_an_epoch > 0, self.steps, 0)
        if isinstance(self.epochs, tuple):
            group: Integers = np.array(self.epochs, np.int64)[clients * len(self.epochs) // n]
            return steps_an_epoch * group
        return steps_an_epoch * (self.epochs or 0)


@dataclass(frozen=True)
class Batches:
    """The batches of some clients, drawn when asked for."""

    samples: Samples
    clients: Integers  # [m]
    amount: Amount
    batch_size: int | None  # None: everything a client has
    key: int | None  # of shuffling and augmentation; None: in order, as they are

    @cached_property
    def sizes(self) -> Integers:
        """[m] samples a client owns."""
        return self.samples.sizes[self.clients]

    @cached_property
    def widths(self) -> Integers:
        """[m] samples in a full batch of each client."""
        return self.sizes if self.batch_size is None else np.minimum(self.sizes, self.batch_size)

    @cached_property
    def steps_an_epoch(self) -> Integers:
        """[m] batches in one pass, a last partial one included."""
        return -(-self.sizes // np.maximum(self.widths, 1))

    @cached_property
    def steps(self) -> Integers:
        """[m] batches of each client."""
        return self.amount.of(self.steps_an_epoch, self.clients, len(self.samples.owned))

    @cached_property
    def seen(self) -> int:
        """Samples in all batches of all clients together."""
        passes, rest = np.divmod(self.steps, np.maximum(self.steps_an_epoch, 1))
        return int((passes * self.sizes + np.minimum(rest * self.widths, self.sizes)).sum())

    def counts(self, which: Integers) -> Integers:
        """[m, K] how many samples each step of the clients at the places ``which`` has."""
        left: Integers = self.sizes[which][:, None] - self._walked(which)[1]
        return left.clip(max=self._full(which))

    def block(self, which: Integers) -> Block:
        """The batches of the clients at the places ``which``; a step is as wide as the fullest batch in it."""
        passes, before = self._walked(which)
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
        """[m, 1] how many samples a full batch has, 1 at the least."""
        return np.maximum(self.widths[which], 1)[:, None]

    def _walked(self, which: Integers) -> tuple[Integers, Integers]:
        """[m, K] the pass each step belongs to, and how many samples of that pass came before it."""
        steps = np.arange(int(self.steps[which].max(initial=0)))
        passes, step = np.divmod(steps, np.maximum(self.steps_an_epoch[which], 1)[:, None])
        return passes, step * self._full(which)

    def _order(self, which: Integers, epochs: int) -> Integers:
        """[m, E, N] each client's own samples in the order of each pass; its N_i come first."""
        sizes = self.sizes[which]
        position = np.arange(int(sizes.max(initial=0)))
        if self.key is None:
            return np.broadcast_to(position, (len(which), epochs, len(position)))
        draw = rng.counters(self.key, self.clients[which][:, None, None], np.arange(epochs)[:, None], position)
        draw[np.broadcast_to(position >= sizes[:, None, None], draw.shape)] = np.iinfo(np.uint64).max
        return draw.argsort(axis=-1)

    def _draw(self, which: Integers, passes: Integers, local: Integers) -> Integers | None:
        """[m, K, B] a number for every sample in every pass, whatever batch it is in; not negative."""
        transform = self.samples.transform
        if self.key is None or transform is None or not transform.random:
            return None
        key = rng.key(self.key, "augmentation")
        draw = rng.counters(key, self.clients[which][:, None, None], passes[:, :, None], local)
        return (draw >> np.uint64(1)).view(np.int64)

    def one(self, place: int) -> Stream:
        """The batches of one client, with nothing padded."""
        block = self.block(np.array([place]))
        return block.stream(self.samples, rows(block.tensors, 0))
