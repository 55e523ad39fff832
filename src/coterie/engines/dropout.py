"""Dropout whose masks are a function of a key, so that every engine drops the same numbers.

    element i_1, .., i_d of the c-th dropout in a forward pass is dropped   <=>   hash(key, c, i_1, .., i_d) < p 2^32

There is one key per step of a client, and every index is hashed by itself. So a mask depends neither on how many
samples a batch is padded to, nor on which dimension they stand along: [B, T, C], [T, B, C], the heads of one sample
after those of another, and dropped weights are treated alike. Only where samples are folded into one dimension behind
another one (token t of sample b at t B + b) padding moves them. No generator is involved: what was recorded drops
other elements when it gets another key.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Two numbers of splitmix64, signed, because those wrap around alike: a factor, and what tells columns from rows.
MULTIPLIER, COLUMNS = (number - 2**64 for number in (0xBF58476D1CE4E5B9, 0x9E3779B97F4A7C15))
SELU_LOWEST = -1.7580993408473766  # what SELU comes to at minus infinity: alpha dropout puts that in place of 0

# The input of fewer dimensions is one sample: its channels are dimension 0, otherwise they are dimension 1.
BATCHED: Mapping[Callable[..., Any], int] = {
    F.dropout1d: 3,
    F.dropout2d: 0,
    F.dropout3d: 5,
    F.feature_alpha_dropout: 0,
}
ALPHA = (F.alpha_dropout, F.feature_alpha_dropout)
DROPOUTS = frozenset([F.dropout, F.alpha_dropout, *BATCHED])

# Torch's own function, without the question whether somebody wants to see it: then its parts are seen.
attention_in_parts = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


class CounterDropout(TorchFunctionMode):
    """While it is active, torch's dropout functions, and its attention, take their masks from a key.

    What draws below Python goes on drawing from torch's generator: the dropout of ``nn.LSTM``, compiled modules.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key[0], 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace dropout; every torch function passes by here."""
        if func in DROPOUTS:
            return self._drop(func, *args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            with self:
                return attention_in_parts(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def kept(self, shape: Sequence[int], p: float) -> Tensor:
        """Return a new mask: where it is False, with probability ``p``, something is dropped."""
        self.calls += 1
        mask: Tensor = hashed(self.key, self.calls, shape) >= round(p * 2**32) - 2**31
        return mask

    def _drop(self, func: Callable[..., Tensor], input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        if not training or not 0 < p < 1:  # then torch draws nothing
            return func(input, p, training, inplace)
        shape: Sequence[int] = input.shape
        if func in BATCHED:  # channels as a whole
            leading = 2 if input.dim() >= BATCHED[func] else 1
            shape = (*shape[:leading], *[1] * (input.dim() - leading))
        kept = self.kept(shape, p).to(input.dtype)
        out = _alpha(input, kept, p) if func in ALPHA else input * kept.mul_(1 / (1 - p))
        return input.copy_(out) if inplace else out

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """``torch.nn.functional.scaled_dot_product_attention``, written out if there is something to drop."""
        if not 0 < dropout_p < 1:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key, value = (v.repeat_interleave(query.shape[-3] // v.shape[-3], -3) for v in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        seen = scores.softmax(-1)
        if attn_mask is not None:  # as torch has it, who may look at nothing sees 0
            seen = seen.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        return self._drop(F.dropout, seen, dropout_p, True, False) @ value


def _alpha(input: Tensor, kept: Tensor, p: float) -> Tensor:
    """Put SELU's lowest value in place of what is dropped, and keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    a = ((1 - p) * (1 + p * SELU_LOWEST**2)) ** -0.5
    changed: Tensor = (input * kept + SELU_LOWEST * (1 - kept)) * a - a * SELU_LOWEST * p
    return changed


def hashed(key: Tensor, call: int, shape: Sequence[int]) -> Tensor:
    """Return integers of 32 bits, uniform over all of them, for every element of a tensor of that shape.

    The first half of the indices gives two numbers k and a, the other half one number c, each with the key. What is
    computed for every element is (c ^ k) a, a product of 32 bits: a CPU's vectors have none of 64. Nothing is computed
    from constants alone: torch's compiler (2.13) comes to wrong numbers for chains of 64-bit constants.
    """
    cut, start = (len(shape) + 1) // 2, _mix(key ^ call)
    row = _walk(start, shape[:cut])[(..., *[None] * (len(shape) - cut))]
    column = _walk(_mix(start ^ COLUMNS), shape[cut:])
    return (column.to(torch.int32) ^ row.to(torch.int32)).mul_((row >> 32).to(torch.int32) | 1)


def _walk(h: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return [*sizes] 64-bit numbers: one index after the other is added to what is hashed."""
    for size in sizes:
        h = _mix(h[..., None] ^ torch.arange(size, device=h.device))
    return h


def _mix(h: Tensor) -> Tensor:
    h = h * MULTIPLIER
    return h ^ (h >> 32)
