"""Memory layouts that a CPU computes faster with: the same numbers, sooner.

Layers are turned around for many clients at once: x W^T = (W x^T)^T.
A product is computed row by row of what comes out. Ten scores a sample fill less than one vector of the processor; the
scores of all samples of a batch, class by class, fill several: two thirds of the time. A pooling looks at one channel
of one pixel after the other, unless the channels of a pixel lie side by side: an eighth of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.tensors import SIMD_WIDTH, tree_map


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
    """While it is active, layers are those above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace the layers above; every torch function passes by here."""
        return TURNED.get(func, func)(*args, **(kwargs or {}))
