"""Which memory layout convolutions have: channels first, as torch has them, or last, where that is faster and safe.

To differentiate a 1 x 1 convolution of stride 2 by its filters, oneDNN copies every second pixel. Without AVX-512, and
with channels last, the pieces of that copy begin 8 channels a pixel apart, however few there are, in memory for as many
as there are: with 2 to 7 channels it writes over what belongs to others (torch 2.13, oneDNN 3.12). The search
for such convolutions is ``docs/evidence/convolutions.py``. With AVX-512 a block has 16 channels: so many are asked for,
as a margin.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core.tensors import VECTOR


def may_be_last(tensors: Iterable[Tensor]) -> bool:
    """Whether the model with these tensors may have its channels last.

    It is all or nothing, because the layout of one layer's output is that of the next one's input.
    The filters are the last four dimensions of a tensor, so that stacked ones can be asked for, too.

    >>> may_be_last([torch.zeros(8, 4, 3, 3), torch.zeros(32, 16, 1, 1)]), may_be_last([torch.zeros(8, 4, 1, 1)])
    (True, False)
    """
    pointwise = (v for v in tensors if v.dim() >= 4 and v.shape[-2:] == (1, 1) and v.device.type == "cpu")
    return all(v.shape[-3] >= VECTOR for v in pointwise)


def channels_last(weight: Tensor) -> Tensor:
    """Convolutions of single precision run a quarter faster on a CPU with their channels last."""
    if weight.dim() == 4 and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return weight.to(memory_format=torch.channels_last)
    return weight
