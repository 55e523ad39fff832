"""Named tensors as one block of bytes: what one shard sends another is one message, whatever it holds."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.tensors import Tensors

ALIGNED = 16  # bytes: every tensor of a block can be looked at as it lies


class Offset(NamedTuple):
    """Where a tensor lies in a block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Packed(NamedTuple):
    """Tensors in one block."""

    places: tuple[Offset, ...]
    data: NDArray[np.uint8]


def pack(tensors: Tensors) -> Packed:
    """Copies of the tensors, one behind another."""
    places, end = [], 0
    for name, v in tensors.items():
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + v.numel() * v.element_size()
        places.append(Offset(name, v.dtype, tuple(v.shape), begin, end))
    data = np.empty(end, np.uint8)
    block = torch.from_numpy(data)
    for place in places:
        _tensor(block, place).copy_(tensors[place.name].detach())
    return Packed(tuple(places), data)


def unpack(packed: Packed, device: torch.device | str = "cpu") -> Tensors:
    """The tensors, in memory that may be written: where the block came from it may not.

    >>> unpack(pack({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(True)}))
    {'a': tensor([1., 2.]), 'b': tensor(True)}
    """
    block = torch.from_numpy(packed.data.copy()).to(device)
    return {place.name: _tensor(block, place) for place in packed.places}


def _tensor(block: torch.Tensor, place: Offset) -> torch.Tensor:
    return block[place.begin : place.end].view(place.dtype).view(place.shape)
