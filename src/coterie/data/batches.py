"""Which samples a client sees, step by step.

Samples are stored once, a client owns a list of positions, and a batch is gathered and transformed when it is needed.
Clients of unequal size make unequal numbers of steps; where several clients run side by side, the shorter batches are
padded, and the mask keeps the padding out of every mean.

With replacement, every place in a batch draws from all samples of its client. A pass is as long as without, its last
batch as short, but the batches are independent of each other.

A model that takes statistics of a batch may be unable to train on one sample. Then a last batch of one is left out of
its pass, as with ``drop_last``; every pass is shuffled anew, so that each sample has its turn. A client of one sample
makes no step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import rng
from ..core.clients import client_list
from ..core.tensors import Integers, Tensors, rows, tree_map
from .inputs import Inputs
from .transform import Masking, Transform

DRAWN = 6  # integers for every sample of every batch, those of steps on the way included
ANSWERS = 256  # the number of answers that are evaluated together


class Batch(NamedTuple):
    """The samples of one step."""

    x: Inputs
    y: Tensor
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: all are samples
    dropout: Tensor | None = None  # its first number is the key of all masks; None: torch's generator draws them


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

    x: Inputs
    y: Tensor
    owned: tuple[Tensor, ...]  # positions in x and y, one tensor per client
    transform: Transform | Masking | None = None  # makes inputs of the samples; None: they are inputs
    pooled: bool = False  # whether the owners are no clients, but parts of what all clients have
    names: tuple[str, ...] = ()  # of the clients, where the data name them

    @cached_property
    def flat(self) -> Integers:
        """The positions of all clients, one client after another."""
        return torch.cat(self.owned).cpu().numpy()

    @cached_property
    def sizes(self) -> Integers:
        """The number of samples of each client."""
        return np.array([len(p) for p in self.owned], np.int64)

    @cached_property
    def starts(self) -> Integers:
        """The place in ``flat`` where each client begins."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @cached_property
    def divided(self) -> bool:
        """Whether every sample has one owner."""
        return bool(np.array_equal(np.sort(self.flat), np.arange(len(self.y))))

    @cached_property
    def evaluation_batch(self) -> int:
        """The number of samples evaluated together: fewer if each has many answers, with scores for all classes."""
        return max(1, ANSWERS // max(1, self.y.shape[1:].numel()))

    @cached_property
    def dealt(self) -> "Samples":
        """The same samples in order, one batch for each client, as wide as the widest that a client is evaluated with.

        An engine that builds programs then has this one already.
        """
        size = max(1, min(self.evaluation_batch, int(self.sizes.max())))
        return replace(self, owned=torch.split(torch.arange(len(self.y)), size), pooled=True)

    def batch(
        self, index: Tensor, mask: Tensor | None = None, draw: Tensor | None = None, dropout: Tensor | None = None
    ) -> Batch:
        """Gather and transform the samples ``index`` [B]; ``draw`` [B]: how each is augmented, None: not at all.

        ``dropout``: whose first number is the key of the batch's dropout masks, if there are any.
        """
        x = tree_map(lambda v: take(v, index), self.x)
        if self.transform is not None:
            x = self.transform.plain(x) if draw is None else self.transform.augmented(x, draw)
        return Batch(x, take(self.y, index), mask, dropout)

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield copies of all samples in order, ``size`` at a time, as a model is evaluated on them."""
        for start in range(0, len(self.y), size):
            x, y = rows((self.x, self.y), slice(start, start + size))
            yield Batch(tree_map(torch.clone, x) if self.transform is None else self.transform.plain(x), y, None)


@dataclass(frozen=True)
class Stream:
    """The batches of one client, step by step; or, stacked, those of several clients side by side."""

    samples: Samples  # of the whole federation
    index: Tensor  # [K, B] which of them, or stacked [m, K, B]
    mask: Tensor | None  # [K, B] 1 for a sample, 0 for padding; None: nothing is padded
    draw: Tensor | None  # [K, B] how each sample is augmented; None: not at all
    widths: Sequence[int]  # [K] how many columns each step uses
    dropout: Tensor | None = None  # [K, 1] the key of each step's dropout masks; None: nothing is dropped

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.widths)

    @property
    def tensors(self) -> Tensors:
        """The tensors that differ between clients."""
        named = {"index": self.index, "mask": self.mask, "draw": self.draw, "dropout": self.dropout}
        return {k: v for k, v in named.items() if v is not None}

    def one(self, tensors: Tensors) -> "Stream":
        """Return the batches of one client; ``tensors``: its part of the stacked ones."""
        mask, draw, dropout = map(tensors.get, ("mask", "draw", "dropout"))
        return Stream(self.samples, tensors["index"], mask, draw, self.widths, dropout)

    def batch(self, k: int) -> Batch:
        """Gather the samples of step ``k`` of one client."""
        columns = k, slice(self.widths[k])
        mask, draw, dropout = (None if v is None else v[columns] for v in (self.mask, self.draw, self.dropout))
        return self.samples.batch(self.index[columns], mask, draw, dropout)


class Amount(NamedTuple):
    """The length of a phase: passes over the client's data, or single steps.

    Several numbers of epochs are for as many groups of clients of equal size, in the order of the clients; a run with
    fewer clients than numbers is refused.
    """

    epochs: int | tuple[int, ...] | None = None
    steps: int | None = None
    half: int | None = None  # 1 or 2: only the first or the second half of the steps; the first is the longer one

    def of(self, steps_per_epoch: Integers, clients: Integers, n: int) -> Integers:
        """Count the steps of each of the ``clients`` among ``n``; one without data makes none."""
        if self.steps is not None:
            steps = np.where(steps_per_epoch > 0, self.steps, 0)
        elif isinstance(self.epochs, tuple):
            steps = steps_per_epoch * np.array(self.epochs, np.int64)[clients * len(self.epochs) // n]
        else:
            steps = steps_per_epoch * (self.epochs or 0)
        if self.half is None:
            return steps
        return steps // 2 if self.half == 2 else steps - steps // 2


class Batches:
    """The batches of some clients, drawn when they are needed."""

    def __init__(
        self,
        samples: Samples,
        clients: Integers,
        amount: Amount,
        batch_size: int | None,
        key: int | None,
        dropout: bool = False,
        smallest: int = 1,
        first: int = 0,
        replacement: bool = False,
    ) -> None:
        self.samples, self.clients = samples, clients  # [m] whose batches
        self.batch_size = batch_size  # None: all samples of a client
        self.key = key  # of shuffling, augmentation and dropout; None: nothing of it happens
        self.dropout = dropout and key is not None  # whether every step has a key of its masks
        self.first = first  # the step to begin with
        self.replacement = replacement  # whether every place in a batch draws from all samples; it needs a key
        self.sizes: Integers = samples.sizes[clients]  # [m] samples that each client owns
        full = self.sizes if batch_size is None else np.minimum(self.sizes, batch_size)
        self.widths: Integers = np.maximum(full, 1)  # [m] samples in a full batch of each client, 1 at the least
        # [m] a last partial batch included, unless it has fewer samples than the smallest that may be
        self.steps_per_epoch: Integers = np.maximum(-((smallest - 1 - self.sizes) // self.widths), 0)
        self.taken: Integers = np.minimum(self.sizes, self.steps_per_epoch * self.widths)  # [m] samples of a pass
        self.steps = amount.of(self.steps_per_epoch, clients, len(samples.owned))  # [m] batches of each client

    @property
    def seen(self) -> int:
        """The number of samples in all batches of all clients together."""
        passes, rest = np.divmod(self.steps, np.maximum(self.steps_per_epoch, 1))
        return int((passes * self.taken + np.minimum(rest * self.widths, self.taken)).sum())

    @property
    def most_bytes(self) -> float:
        """The bytes of all numbers that are drawn for the client with the most batches: they are drawn together."""
        each = self.steps.astype(np.float64) * self.widths  # in floating point, which does not overflow
        return DRAWN * 8 * float(each.max(initial=0))

    def owners(self, which: Integers) -> str:
        """Say whose batches those at the places ``which`` are."""
        if self.samples.pooled:
            return "all clients"
        who = client_list(self.samples.names, self.clients[which].tolist())
        return who if len(which) == 1 else f"one of {who}, which run side by side"

    def counts(self, which: Integers) -> tuple[Integers, Integers, Integers]:
        """Return, for each step of the clients at the places ``which``, its pass, the samples before it, its own.

        Each is [m, K]; the samples before it are those of the same pass.
        """
        widths = self.widths[which][:, None]
        steps = self.first + np.arange(int(self.steps[which].max(initial=0)))
        passes, step = np.divmod(steps, np.maximum(self.steps_per_epoch[which], 1)[:, None])
        before = step * widths
        return passes, before, (self.sizes[which][:, None] - before).clip(max=widths)

    def block(self, which: Integers) -> Stream:
        """Draw the batches of the clients at the places ``which``; a step is as wide as its fullest batch."""
        passes, before, counts = self.counts(which)
        last = np.maximum(self.sizes[which] - 1, 0)[:, None, None]
        place = np.minimum(before[:, :, None] + np.arange(counts.max(initial=0)), last)
        order = self._order(which, passes.max(initial=0) + 1)
        along = passes[:, :, None] * order.shape[2] + place
        local = np.take_along_axis(order.reshape(len(which), -1), along.reshape(len(which), -1), 1).reshape(place.shape)
        index = self.samples.flat[self.samples.starts[self.clients[which]][:, None, None] + local]
        mask = None if (counts == counts[:1]).all() else np.arange(index.shape[2]) < counts[:, :, None]
        transform = self.samples.transform
        random = self.key is not None and transform is not None and transform.random
        # A sample that is drawn twice is augmented twice, so that the place in the pass tells both apart.
        draw = self._augmentation(which, passes, place if self.replacement else local) if random else None
        dropout = self._dropout_keys(which, index.shape[1]) if self.dropout else None
        device = self.samples.y.device
        return Stream(
            self.samples,
            torch.from_numpy(index).to(device, non_blocking=True),
            None if mask is None else torch.from_numpy(mask).to(device, non_blocking=True),
            None if draw is None else torch.from_numpy(draw).to(device, non_blocking=True),
            counts.max(0, initial=0).tolist(),
            None if dropout is None else torch.from_numpy(dropout).to(device, non_blocking=True),
        )

    def one(self, place: int) -> Stream:
        """Draw the batches of one client, without padding."""
        block = self.block(np.array([place]))
        draw, dropout = (None if v is None else v[0] for v in (block.draw, block.dropout))
        return Stream(self.samples, block.index[0], None, draw, block.widths, dropout)

    def _order(self, which: Integers, epochs: int) -> Integers:
        """Return [m, E, N] each client's own samples in the order of each pass, or so many drawn with replacement.

        The N_i of a client come first.
        """
        sizes = self.sizes[which]
        position = np.arange(int(sizes.max(initial=0)))
        if self.key is None:
            return np.broadcast_to(position, (len(which), epochs, len(position)))
        draw = rng.counters(self.key, self.clients[which][:, None, None], np.arange(epochs)[:, None], position)
        if self.replacement:
            return (draw % np.maximum(sizes, 1).astype(np.uint64)[:, None, None]).astype(np.int64)
        draw[np.broadcast_to(position >= sizes[:, None, None], draw.shape)] = np.iinfo(np.uint64).max
        return draw.argsort(axis=-1)

    def _augmentation(self, which: Integers, passes: Integers, local: Integers) -> Integers:
        """Return [m, K, B] a number for every sample in every pass, whichever batch it is in; it is not negative."""
        key = rng.key(self.key or 0, "augmentation")
        draw = rng.counters(key, self.clients[which][:, None, None], passes[:, :, None], local)
        return (draw >> np.uint64(1)).view(np.int64)

    def _dropout_keys(self, which: Integers, steps: int) -> Integers:
        """Return [m, K, 1] a number for every step."""
        key = rng.key(self.key or 0, "dropout")
        return rng.counters(key, self.clients[which][:, None, None], np.arange(steps)[:, None]).view(np.int64)
