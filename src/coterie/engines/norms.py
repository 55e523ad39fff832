"""Group normalization for the compiler: the memory layout and the type of its input survive, forwards and backwards.

    y = x a + s,   a = w / sqrt(var + eps),   s = b - mean a         mean and var of a group, from those of its channels

On a GPU torch's own makes its input contiguous and its output single precision: a network with its channels last then
turns every activation around before each convolution and back again after it. And a group of two channels lies
scattered among the others; statistics of single channels read memory in order, those of groups follow from a few
numbers. So does the gradient: it is one pass for the sums of dy and dy x, and one for dx.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """``torch.nn.functional.group_norm``; sums of half-precision numbers are of single precision."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    mean, r = _statistics(x if x.dim() > 2 else x[..., None], num_groups, eps)
    a = r if weight is None else r * weight
    s = -mean * a if bias is None else bias - mean * a
    along = (..., *[None] * (x.dim() - 2))
    return (x * a[along] + s[along]).to(input.dtype)


def _statistics(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return [N, C] the mean of each channel's group, and 1 / sqrt(var + eps)."""
    var, mean = torch.var_mean(x, dim=list(range(2, x.dim())), correction=0)
    var, mean = (torch.unflatten(v, 1, (groups, -1)) for v in (var, mean))
    between, center = torch.var_mean(mean, dim=2, correction=0, keepdim=True)
    r = torch.rsqrt(var.mean(2, keepdim=True) + between + eps)
    return center.expand_as(mean).flatten(1), r.expand_as(mean).flatten(1)


class LayoutKept(TorchFunctionMode):
    """Meanwhile group normalization is the one above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace group normalization; every torch function passes by here."""
        return (group_norm if func is F.group_norm else func)(*args, **(kwargs or {}))
