"""Layers with few outputs, for many clients at once on a CPU.

    x W^T  =  (W x^T)^T

A product is computed row by row of what comes out. Ten scores a sample fill less than one vector of the processor; the
scores of all samples of a batch, class by class, fill several: the same numbers in two thirds of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..tensors import VECTOR


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``."""
    if input.dim() != 2 or input.device.type != "cpu" or not len(weight) < VECTOR <= len(input):
        return F.linear(input, weight, bias)
    out = (weight @ input.mT).mT.contiguous()
    return out if bias is None else out + bias


class Turned(TorchFunctionMode):
    """Meanwhile linear layers are the one above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every torch function passes by here."""
        return (linear if func is F.linear else func)(*args, **(kwargs or {}))
