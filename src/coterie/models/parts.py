"""Parts of several models: widths that scale, group normalization that fits them, and where a model comes from."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

from torch import nn

from ..core.annotations import Range
from ..core.errors import UserError

WidthRate = Annotated[float, Range(0, 1, above=True)]
"""The share of every hidden width that is kept."""


def scaled_width(width: int, rate: float) -> int:
    """Return the width of a hidden layer of which a client holds the share ``rate``: ceil(rate * width).

    >>> scaled_width(64, 0.25), scaled_width(10, 0.25), scaled_width(100, 0.07)
    (16, 3, 7)
    """
    return math.ceil(rate * width - 1e-9)  # 0.07 * 100 is a little more than 7


def origin_of(module: nn.Module) -> dict[str, Any]:
    """Return the description of a model that Coterie built; a module of one's own may call something else its origin.

    >>> layer = nn.Linear(2, 1)
    >>> layer.origin = "Mayo"
    >>> origin_of(layer)
    {}
    """
    found = getattr(module, "origin", None)
    return found if isinstance(found, dict) else {}


def group_norm(groups: int, channels: int) -> nn.Module:
    """Return group normalization; refuse groups of unequal size.

    >>> group_norm(32, 48)
    Traceback (most recent call last):
    coterie.core.errors.UserError: groups=32 does not divide a layer's 48 channels: choose groups=16 or another width
    """
    if channels % groups:
        fits = math.gcd(groups, channels)
        raise UserError(
            f"groups={groups} does not divide a layer's {channels} channels: choose groups={fits} or another width"
        )
    return nn.GroupNorm(groups, channels)


def need_images(name: str, shape: Sequence[int], side: int = 1) -> None:
    """Refuse samples that are no images, or images smaller than ``side``."""
    if len(shape) != 3:
        raise UserError(
            f"{name} takes images [channels, height, width], not samples of shape {list(shape)}: use mlp or logreg"
        )
    if min(shape[1:]) < side:
        raise UserError(
            f"images of {shape[1]} x {shape[2]} are too small for {name}, which needs {side} x {side}: "
            f"use a smaller model, as small-cnn or resnet8-gn"
        )
