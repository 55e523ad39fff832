"""Memory layouts that a CPU computes faster with: the same numbers, sooner.

Channels last. To differentiate a 1 x 1 convolution of stride 2 by its filters, oneDNN copies every second pixel.
Without AVX-512, and with channels last, the pieces of that copy begin 8 channels a pixel apart, however few there are,
in memory for as many as there are: with 2 to 7 channels it writes over what belongs to others (torch 2.13, oneDNN
3.12). The search for such convolutions is ``docs/evidence/convolutions.py``. With AVX-512 a block has 16 channels: so
many are asked for, as a margin.

Layers turned around, for many clients at once: x W^T = (W x^T)^T.
A product is computed row by row of what comes out. Ten scores a sample fill less than one vector of the processor; the
scores of all samples of a batch, class by class, fill several: two thirds of the time. A pooling looks at one channel
of one pixel after the other, unless the channels of a pixel lie side by side: an eighth of the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.tensors import SIMD_WIDTH, tree_map


def may_be_last(tensors: Iterable[Tensor]) -> bool:
    """Whether the model with these tensors may have its channels last.

    It is all or nothing, because the layout of one layer's output is that of the next one's input.
    The filters are the last four dimensions of a tensor, so that stacked ones can be asked for, too.

    >>> may_be_last([torch.zeros(8, 4, 3, 3), torch.zeros(32, 16, 1, 1)]), may_be_last([torch.zeros(8, 4, 1, 1)])
    (True, False)
    """
    pointwise = (v for v in tensors if v.dim() >= 4 and v.shape[-2:] == (1, 1) and v.device.type == "cpu")
    return all(v.shape[-3] >= SIMD_WIDTH for v in pointwise)


def channels_last(weight: Tensor) -> Tensor:
    """Convolutions of single precision run a quarter faster on a CPU with their channels last."""
    if weight.dim() == 4 and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return weight.to(memory_format=torch.channels_last)
    return weight


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``."""
    if input.dim() != 2 or input.device.type != "cpu" or not len(weight) < SIMD_WIDTH <= len(input):
        return F.linear(input, weight, bias)
    out = (weight @ input.mT).mT.contiguous()
    return out if bias is None else out + bias


def max_pool2d(input: Tensor, *options: Any, **more: Any) -> Any:
    """``torch.nn.functional.max_pool2d``; ``vmap`` knows no memory format, but it knows dimensions in another order."""
    if input.dim() != 4 or input.device.type != "cpu":
        return F.max_pool2d(input, *options, **more)
    turned = input.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    # Back again: a convolution that comes next copies it anyway, and must not see channels last (``layout``).
    return tree_map(torch.Tensor.contiguous, F.max_pool2d(turned, *options, **more))


TURNED: Mapping[Callable[..., Any], Callable[..., Any]] = {F.linear: linear, F.max_pool2d: max_pool2d}


class CpuLayouts(TorchFunctionMode):
    """Meanwhile layers are those above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every torch function passes by here."""
        return TURNED.get(func, func)(*args, **(kwargs or {}))
