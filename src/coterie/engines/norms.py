"""Normalizations for many clients and for the compiler: masked, in any precision, and in the layout of their input.

    y = x a + s,   a = w / sqrt(var + eps),   s = b - mean a

Mean and variance are those of a group of channels of one sample (GroupNorm) or of a channel of the whole batch
(BatchNorm). Both follow from a few numbers, the statistics of single channels of single samples, which read memory in
order. So does the gradient: it is one pass for the sums of dy and dy x, and one for dx.

On a GPU torch's own group normalization makes its input contiguous and its output single precision: a network with its
channels last then turns every activation around before each convolution and back again after it. Torch's own batch
normalization cannot leave padding out of its statistics, and under ``vmap`` and autocast its gradient fails.
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
    n, channels = x.shape[:2]
    y, _, _ = torch.native_group_norm(x, weight, bias, n, channels, x.shape[2:].numel(), num_groups, eps)
    return y.to(input.dtype)


def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, each: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.native_group_norm`` in plain operations: the output, and mean and 1 / deviation of every group."""
    mean, var = (v.view(n, groups, -1) for v in _of_channels(x))
    between, center = torch.var_mean(mean, dim=2, correction=0, keepdim=True)
    r = torch.rsqrt(var.mean(2, keepdim=True) + between + eps)
    w, b = (None if v is None else v.view(groups, -1) for v in (weight, bias))
    y = _scaled(x, center, r.expand(mean.shape) if w is None else r, w, b)
    return y, center.view(n, groups), r.view(n, groups)


def native_group_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    r: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    each: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``torch.ops.aten.native_group_norm_backward`` in plain operations: the gradients in x, weight and bias.

    A group has K numbers x = mean + z / r. With dz = w dy, dx = r (dz - sum(dz) / K - z sum(dz z) / K). All sums come
    of those of dy and dy x in single channels.
    """
    mean, r = mean.view(n, groups, 1), r.view(n, groups, 1)
    pixels, k = list(range(2, x.dim())), each * (channels // groups)
    of_dy, of_dy_x = ((v.sum(pixels) if pixels else v).view(n, groups, -1) for v in (dy, dy * x))
    of_dy_z = (of_dy_x - of_dy * mean) * r
    w = None if weight is None else weight.view(groups, -1)
    dx = dweight = dbias = None
    if wanted[0]:
        of_dz, of_dz_z = ((v if w is None else v * w).sum(2, keepdim=True) for v in (of_dy, of_dy_z))
        by_x = of_dz_z * r.square() * (-1 / k)
        rest = of_dz * r * (-1 / k) - by_x * mean
        by_dy, by_x, rest = (v.expand(of_dy.shape) for v in (r if w is None else r * w, by_x, rest))
        dx = dy * _along(by_dy, x) + x * _along(by_x, x) + _along(rest, x)
    if wanted[1]:
        dweight = of_dy_z.sum(0).view(channels)
    if wanted[2]:
        dbias = of_dy.sum(0).view(channels)
    return dx, dweight, dbias


def clone(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Any:
    """``torch.ops.aten.clone``; in a backward pass, images with their channels last stay so.

    On a GPU torch's formula turns them around first, for a kernel of group normalization that is not called here.
    """
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if last and memory_format is torch.contiguous_format and torch._C._current_graph_task_id() != -1:
        return x
    return NotImplemented


IN_PLAIN_OPERATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_group_norm.default: native_group_norm,
    torch.ops.aten.native_group_norm_backward.default: native_group_norm_backward,
    torch.ops.aten.clone.default: clone,
}
"""What a graph holds instead of torch's own."""


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    mask: Tensor | None = None,
) -> Tensor:
    """``torch.nn.functional.batch_norm`` by the statistics of the samples that are no padding; ``mask``: [N]."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    if not training and running_mean is not None and running_var is not None:
        return _scaled(x, running_mean, torch.rsqrt(running_var + eps), weight, bias).to(input.dtype)
    means, within = _of_channels(x)  # [N, C]
    if mask is None and x.numel() == means.shape[1]:  # as torch has it
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
    share = means.new_ones(len(means)) if mask is None else mask.to(means)
    samples = share.sum()
    share = (share / samples)[:, None]
    mean = (share * means).sum(0)
    var = (share * (within + (means - mean).square())).sum(0)
    if running_mean is not None and running_var is not None:
        count = samples * x[0, 0].numel()
        for running, fresh in ((running_mean, mean), (running_var, var * (count / (count - 1).clamp(min=1)))):
            running.copy_(running * (1 - momentum) + momentum * fresh.detach())
    return _scaled(x, mean, torch.rsqrt(var + eps), weight, bias).to(input.dtype)


def _of_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return [N, C] mean and variance of every channel of every sample."""
    x = x if x.dim() > 2 else x[..., None]
    var, mean = torch.var_mean(x, dim=list(range(2, x.dim())), correction=0)
    return mean, var


def _scaled(x: Tensor, mean: Tensor, r: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return the normalized, scaled and shifted input; mean, r, weight and bias give [C] or [N, G, C / G] together."""
    a = r if weight is None else r * weight
    s = -mean * a if bias is None else bias - mean * a
    return x * _along(a, x) + _along(s, x)


def _along(v: Tensor, x: Tensor) -> Tensor:
    """Return numbers of single channels, [C] or [N, G, C / G], as they go along with an input [N, C, pixels]."""
    return v.reshape(-1, x.shape[1], *[1] * (x.dim() - 2))


class LayoutKept(TorchFunctionMode):
    """While it is active, group normalization is the one above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace group normalization; every torch function passes by here."""
        return (group_norm if func is F.group_norm else func)(*args, **(kwargs or {}))


class MaskPadding(TorchFunctionMode):
    """While it is active, batch normalization is the one above, and leaves the padding of a batch out.

    An input of another length than the mask has another first dimension than the samples: nothing is known of it.
    """

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace batch normalization; every torch function passes by here."""
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        masked = self.mask is not None and len(args[0]) == len(self.mask)
        return batch_norm(*args, **{**(kwargs or {}), "mask": self.mask if masked else None})
