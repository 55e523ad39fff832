"""Which samples a client sees, step by step.

Nothing is copied per client: the samples are held once, a client owns a list of positions, and a batch is gathered
when it is needed. Clients of unequal size make unequal numbers of steps; where several of them run side by side the
shorter batches are padded, and the mask keeps the padding out of every mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from . import chance

Integers = NDArray[np.int64]


class Batch(NamedTuple):
    """One step's samples."""

    x: Tensor
    y: Tensor
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: all are samples


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[index]; as an embedding, which copies whole rows, under ``vmap`` too, where indexing goes number by number."""
    if not x.is_contiguous():
        return x[index]
    taken = F.embedding(index, x if x.dim() == 2 else x.view(len(x), -1))
    return taken if x.dim() == 2 else taken.view(*index.shape, *x.shape[1:])


@dataclass(frozen=True)
class Stream:
    """The batches of one client, as its local function sees them."""

    x: Tensor  # all samples of the federation
    y: Tensor
    index: Tensor  # [K, B] which of them, step by step
    mask: Tensor | None  # [K, B] where batches are padded
    widths: Sequence[int]  # [K] how many columns each step uses

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return len(self.widths)

    def batch(self, k: int) -> Batch:
        """The samples of step ``k``."""
        index = self.index[k, : self.widths[k]]
        return Batch(take(self.x, index), take(self.y, index), None if self.mask is None else self.mask[k])


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
class Samples:
    """Samples held once, and which of them each client owns."""

    x: Tensor
    y: Tensor
    owned: tuple[Tensor, ...]  # positions in x and y, one tensor a client

    @cached_property
    def flat(self) -> Integers:
        """The clients' positions, one client after another."""
        return torch.cat(self.owned).cpu().numpy()

    @cached_property
    def sizes(self) -> Integers:
        """How many samples each client owns."""
        return np.array([len(p) for p in self.owned], np.int64)

    @cached_property
    def starts(self) -> Integers:
        """Where each client begins in ``flat``."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """The batches of some clients, drawn when asked for."""

    samples: Samples
    clients: Integers  # [m]
    amount: Amount
    batch_size: int | None  # None: everything a client has
    key: int | None  # of the shuffling; None: in order

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

    def shapes(self) -> list[tuple[int, int]]:
        """Clients of equal shape fit one padded block with little waste: as many steps, about as wide."""
        return [(int(k), int(w).bit_length()) for k, w in zip(self.steps, np.maximum(self.widths, 1), strict=True)]

    def block(self, which: Integers) -> tuple[Tensor, Tensor | None, list[int]]:
        """(index [m, K, B], mask [m, K, B] or None, widths [K]) of the clients at the places ``which``.

        The mask is None where all of them have equally many samples in every step; then the widths say how many.
        """
        steps = int(self.steps[which].max(initial=0))
        place, counts = self._places(which, steps)
        order = self._order(which, place.max(initial=0) // max(int(self.sizes[which].max(initial=1)), 1) + 1)
        local = np.take_along_axis(order.reshape(len(which), -1), place.reshape(len(which), -1), 1)
        where = self.samples.starts[self.clients[which]][:, None, None] + local.reshape(place.shape)
        index = torch.from_numpy(self.samples.flat[where]).to(self.samples.x.device)
        if (counts == counts[:1]).all():
            return index, None, counts[0].tolist() if len(counts) else []
        mask = np.arange(index.shape[2]) < counts[:, :, None]
        return index, torch.from_numpy(mask).to(index.device), [index.shape[2]] * steps

    def _places(self, which: Integers, steps: int) -> tuple[Integers, Integers]:
        """Where in its shuffled passes each sample of each step lies [m, K, B], and how many count [m, K]."""
        sizes, widths = self.sizes[which][:, None], np.maximum(self.widths[which], 1)[:, None]
        longest = int(sizes.max(initial=0))
        passes, step = np.divmod(np.arange(steps)[None, :], np.maximum(self.steps_an_epoch[which], 1)[:, None])
        first = step * widths
        column = np.arange(int(widths.max(initial=1)))
        inside = np.minimum(first[:, :, None] + column, np.maximum(sizes - 1, 0)[:, :, None])
        return passes[:, :, None] * longest + inside, np.minimum(widths, sizes - first)

    def _order(self, which: Integers, epochs: int) -> Integers:
        """[m, E, N] each client's own samples in the order of each pass; its N_i come first."""
        sizes = self.sizes[which]
        position = np.arange(int(sizes.max(initial=0)))
        if self.key is None:
            return np.broadcast_to(position, (len(which), epochs, len(position)))
        draw = chance.counters(self.key, self.clients[which][:, None, None], np.arange(epochs)[:, None], position)
        draw[np.broadcast_to(position >= sizes[:, None, None], draw.shape)] = np.iinfo(np.uint64).max
        return draw.argsort(axis=-1)

    def one(self, place: int) -> Stream:
        """The batches of one client, with nothing padded."""
        index, mask, widths = self.block(np.array([place]))
        assert mask is None
        return Stream(self.samples.x, self.samples.y, index[0], None, widths)
