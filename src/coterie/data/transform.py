"""What is done to stored samples, one batch at a time where it is used: images are cropped, tokens are hidden."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..core.annotations import Range
from ..core.arguments import checked_class
from ..core.errors import UserError

Border = Literal["black", "mean"]
_GOLDEN, _FIRST, _SECOND = (  # splitmix64's constants as signed numbers, which wrap around as unsigned ones do
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@checked_class("class", own=("mean", "std"))
@dataclass(frozen=True)
class Transform:
    """The normalization of uint8 images [B, C, H, W], (x / 255 - mean) / std, and a random crop and flip in training.

    The random draw is an argument, one integer per image, so every engine and device prepares the same images.

    >>> Transform(mean=(0.5,), std=(0.5,)).plain(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-1.0, 1.0]]]]
    """

    mean: tuple[float, ...]  # one number per channel, of values scaled to [0, 1]
    std: tuple[float, ...]
    pad: Annotated[int, Range()] = 0  # pixels added on each side; a random crop brings the image back to its size
    flip: bool = False  # whether half of the images are mirrored
    border: Border = "black"  # the added pixels: black, or the "mean", which is 0 in a normalized image

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not self.mean or len(self.mean) != len(self.std) or not finite or min(self.std) <= 0:
            raise UserError(
                f"mean={self.mean} and std={self.std} do not fit: give one mean and one positive std a channel"
            )

    @property
    def random(self) -> bool:
        """Whether training images differ from one pass to the next."""
        return self.pad > 0 or self.flip

    def plain(self, raw: Tensor) -> Tensor:
        """Return the normalized images, as a model is evaluated on them."""
        scale = _channels([1 / (255 * s) for s in self.std], raw)
        shift = _channels([-m / s for m, s in zip(self.mean, self.std, strict=True)], raw)
        # Two roundings in every layout: a fused multiply-add would differ between engines in the last bit.
        return raw.to(torch.float32).mul_(scale).add_(shift)

    def augmented(self, raw: Tensor, draw: Tensor) -> Tensor:
        """Return the images cropped and flipped as ``draw`` [B] says, and normalized, as a model is trained on them."""
        h, w = raw.shape[-2:]
        dy, dx, flipped = (v[:, None] for v in self.chosen(draw))
        y, x = torch.arange(h, device=raw.device), torch.arange(w, device=raw.device)
        row = y + dy - self.pad  # [B, H] where in the stored image each row comes from
        column = torch.where(flipped == 1, w - 1 - x, x) + dx - self.pad
        inside = ((row >= 0) & (row < h))[:, None, :, None] & ((column >= 0) & (column < w))[:, None, None, :]
        place = row.clamp(0, h - 1)[:, :, None] * w + column.clamp(0, w - 1)[:, None, :]
        flat = raw.flatten(2)
        # One gather with equal places for all channels: three times faster than indexing by four tensors.
        moved = flat.gather(2, place.flatten(1)[:, None].expand_as(flat)).view_as(raw)
        if self.border == "mean":
            return self.plain(moved) * inside
        return self.plain(moved * inside)  # black is a stored value: it is normalized with the rest

    def chosen(self, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (dy, dx in 0 .. 2 pad, 1 for a flip) of draws that are not negative."""
        side = 2 * self.pad + 1
        flipped = draw // side**2 % 2
        return draw % side, draw // side % side, flipped if self.flip else torch.zeros_like(flipped)


def _numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        if isinstance(values, bytes):
            raise TypeError  # each byte would be a number
        return tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}={values!r} is no list of numbers: give one a channel") from error


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    """Return [C, 1, 1] float32, filled on the device: a CUDA graph cannot capture a copy from the host."""
    return torch.stack([torch.full((1, 1), value, device=like.device, dtype=torch.float32) for value in values])


@dataclass(frozen=True)
class Masking:
    """Hides some of the stored tokens [B, T]: it replaces them by the mask, whose number is ``tokens``.

    A token that is hidden in evaluation is stored as its own number plus ``tokens`` + 1, so that both the token and
    whether it is hidden are known. In training each pass hides others; the random draw is an argument, one integer
    per sample.

    >>> stored = torch.tensor([[3, 1, 2 + 10]])
    >>> Masking(tokens=9, probability=0.15).plain(stored).tolist()
    [[3, 1, 9]]
    >>> Masking(tokens=9, probability=0.0).augmented(stored, torch.tensor([5])).tolist()
    [[3, 1, 2]]
    """

    tokens: int  # the size of the vocabulary
    probability: float  # how likely each token is hidden
    random = True  # training samples differ from one pass to the next

    def stored(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Return how tokens are stored of which some are ``hidden`` in evaluation."""
        return tokens + hidden * (self.tokens + 1)

    def plain(self, raw: Tensor) -> Tensor:
        """Return the samples with the tokens hidden that are hidden in evaluation."""
        return raw.clamp(max=self.tokens)

    def augmented(self, raw: Tensor, draw: Tensor) -> Tensor:
        """Return the samples with the tokens hidden that ``draw`` [B] and their places decide."""
        place = torch.arange(1, raw.shape[1] + 1, device=raw.device)
        z = draw[:, None] + place * _GOLDEN  # splitmix64, as in ``core.rng``, on the device of the batch
        z = (z ^ _shifted(z, 30)) * _FIRST
        z = (z ^ _shifted(z, 27)) * _SECOND
        z = z ^ _shifted(z, 31)
        hidden = _shifted(z, 11) < round(self.probability * 2**53)  # 53 bits
        return torch.where(hidden, self.tokens, raw % (self.tokens + 1))


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return ``z`` shifted to the right as if it had no sign."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted
