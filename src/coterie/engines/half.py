"""Products in half precision, the same for one client and for many."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Products that ``vmap`` takes apart before autocast sees them: it rounds the factors and leaves a bias as it is, or
# rounds nothing. What comes out is then in single precision, or is refused beside what another layer has rounded.
TAKEN_APART = frozenset({
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    *(F.linear, torch.addmm, torch.baddbmm, F.scaled_dot_product_attention),
})  # fmt: skip


class HalfProducts(TorchFunctionMode):
    """While it is active, everything that goes into one of these products is rounded, as autocast would have it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Round what goes into a product; every torch function passes by here."""
        kwargs = kwargs or {}
        if func not in TAKEN_APART:
            return func(*args, **kwargs)
        return func(*map(_half, args), **{name: _half(v) for name, v in kwargs.items()})


def _half(v: Any) -> Any:
    return v.bfloat16() if isinstance(v, Tensor) and v.dtype == torch.float32 else v
