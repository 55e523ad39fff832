"""How stored images become what a model sees: cropped, flipped, normalized, a batch at a time where it is used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import UserError, unknown

BORDERS = ("black", "mean")


@dataclass(frozen=True)
class Transform:
    """What is done to uint8 images [B, C, H, W]: (x / 255 - mean) / std, and for training a random crop and flip.

    Chance comes in as one whole number an image, so every engine and device prepares the same images.

    >>> Transform(mean=(0.5,), std=(0.5,)).plain(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-1.0, 1.0]]]]
    """

    mean: tuple[float, ...]  # a number a channel, of values scaled to [0, 1]
    std: tuple[float, ...]
    pad: int = 0  # pixels added on each side, of which as many are cropped away again at a random place
    flip: bool = False  # left and right are exchanged in half of the images
    border: str = "black"  # what is added: black pixels, or the "mean", which is 0 once an image is normalized

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not self.mean or len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UserError(
                f"mean={self.mean} and std={self.std} do not fit: give one mean and one positive std a channel"
            )
        if not isinstance(self.pad, int) or self.pad < 0:
            raise UserError(f"pad={self.pad!r} is no number of pixels: give a whole number, 0 for no crop")
        if self.border not in BORDERS:
            raise unknown("border", str(self.border), BORDERS)
        if not self.pad and self.border != "black":
            raise UserError(f"border={self.border} is for images that get one: give pad, or leave border out")

    @property
    def random(self) -> bool:
        """Whether training images differ from one pass to the next."""
        return self.pad > 0 or self.flip

    def plain(self, raw: Tensor) -> Tensor:
        """The images as they are, normalized: what is evaluated."""
        scale = _channels([1 / (255 * s) for s in self.std], raw)
        shift = _channels([-m / s for m, s in zip(self.mean, self.std, strict=True)], raw)
        # Two roundings, whatever the layout: a fused multiply-add would differ between engines in the last bit.
        return raw.to(torch.float32).mul_(scale).add_(shift)

    def augmented(self, raw: Tensor, draw: Tensor) -> Tensor:
        """The images cropped and flipped as ``draw`` [B] says, normalized: what is trained on."""
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
        return self.plain(moved * inside)  # black outside, on stored values: normalized with the rest

    def chosen(self, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(dy, dx in 0 .. 2 pad, whether to flip: 0 or 1) of some draws, which are not negative."""
        side = 2 * self.pad + 1
        flipped = draw // side**2 % 2
        return draw % side, draw // side % side, flipped if self.flip else torch.zeros_like(flipped)


def _numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}={values!r} is no list of numbers: give one a channel") from error
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{name}={values!r} contains NaN or infinity: give finite numbers")
    return numbers


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    """[C, 1, 1] float32, filled on the device: a copy from the host cannot be captured in a CUDA graph."""
    return torch.stack([torch.full((1, 1), value, device=like.device, dtype=torch.float32) for value in values])
