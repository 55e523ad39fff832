"""Named tensors as one block of bytes, so that one shard sends another one message, whatever it contains."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.tensors import Tensors

ALIGNED = 16  # bytes: every tensor of a block can be read in place


class Offset(NamedTuple):
    """The position of a tensor in a block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Packed(NamedTuple):
    """Tensors in one block."""

    offsets: tuple[Offset, ...]
    data: NDArray[np.uint8]


def pack(tensors: Tensors) -> Packed:
    """Copy the tensors into one block, one behind another."""
    offsets, end = [], 0
    for name, v in tensors.items():
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + v.numel() * v.element_size()
        offsets.append(Offset(name, v.dtype, tuple(v.shape), begin, end))
    data = np.empty(end, np.uint8)
    block = torch.from_numpy(data)
    for offset in offsets:
        _tensor(block, offset).copy_(tensors[offset.name].detach())
    return Packed(tuple(offsets), data)


def unpack(packed: Packed, device: torch.device | str = "cpu") -> Tensors:
    """Return the tensors in memory of their own: the object store's memory must not be written to.

    >>> unpack(pack({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(True)}))
    {'a': tensor([1., 2.]), 'b': tensor(True)}
    """
    block = torch.from_numpy(packed.data.copy()).to(device)
    return {offset.name: _tensor(block, offset) for offset in packed.offsets}


def _tensor(block: torch.Tensor, offset: Offset) -> torch.Tensor:
    return block[offset.begin : offset.end].view(offset.dtype).view(offset.shape)
