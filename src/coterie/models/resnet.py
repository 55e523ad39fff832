"""Residual networks for small images, with group or batch normalization.

    block:  y = relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))

Basic blocks that normalize before the addition; a 3 x 3 stem of stride 1 without pooling, also for 64 x 64 images; a
shortcut of 1 x 1 convolution and norm only where the shape changes; no convolution has a bias.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.annotations import PositiveInt
from .parts import WidthRate, group_norm, need_images, scaled_width

Norm = Callable[[int], nn.Module]
"""The normalization of that many channels."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and the shortcut that is added to them."""

    beside: ClassVar = {"shortcut.0": ("conv1", "conv2")}  # with the inputs of the first and the outputs of the last

    def __init__(self, before: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, h, w] -> [B, channels, h / stride, w / stride]."""
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of blocks; every stage after the first halves the image.

    ``widths``: the channels of each stage; ``blocks``: how many blocks each stage has.
    """

    def __init__(self, channels: int, classes: int, widths: Sequence[int], blocks: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = norm(widths[0])
        self.stages = nn.Sequential()
        before = widths[0]
        for stage, width in enumerate(widths):
            strides = [1 if stage == 0 else 2] + [1] * (blocks - 1)
            befores = [before] + [width] * (blocks - 1)
            self.stages.append(
                nn.Sequential(*(ResidualBlock(b, width, s, norm) for b, s in zip(befores, strides, strict=True)))
            )
            before = width
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, classes]."""
        h = self.stages(F.relu(self.norm(self.stem(x))))
        return self.linear(self.pool(h).flatten(1))  # type: ignore[no-any-return]


def _widths(width: int, stages: int, rate: float) -> list[int]:
    """Return the widths of all stages, each twice the one before; ``rate`` cuts every model of a width alike."""
    return [scaled_width(width * 2**stage, rate) for stage in range(stages)]


def _with_groups(
    name: str, shape: Sequence[int], classes: int, widths: Sequence[int], blocks: int, groups: int
) -> nn.Module:
    """Build a network with PyTorch's own initial values, as in the code released with DFedPGP."""
    need_images(name, shape)
    return ResNet(shape[0], classes, widths, blocks, lambda channels: group_norm(groups, channels))


def _with_batches(name: str, shape: Sequence[int], classes: int, widths: Sequence[int], blocks: int) -> nn.Module:
    """Build a network as in FedLMT: batch statistics also in evaluation, convolutions Kaiming-normal by fan-out."""
    need_images(name, shape)
    module = ResNet(
        shape[0], classes, widths, blocks, lambda channels: nn.BatchNorm2d(channels, track_running_stats=False)
    )
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return module


def resnet18_gn(
    shape: Sequence[int], classes: int, *, width: PositiveInt = 64, groups: PositiveInt = 32, rate: WidthRate = 1.0
) -> nn.Module:
    """Build ResNet-18 with group normalization: four stages of two blocks.

    ``width``: channels of the first stage; ``groups``: of every normalization; ``rate``: the share of every hidden
    width that is kept.
    """
    return _with_groups("resnet18-gn", shape, classes, _widths(width, 4, rate), 2, groups)


def resnet18_bn(shape: Sequence[int], classes: int, *, width: PositiveInt = 64, rate: WidthRate = 1.0) -> nn.Module:
    """Build ResNet-18 with batch normalization: four stages of two blocks."""
    return _with_batches("resnet18-bn", shape, classes, _widths(width, 4, rate), 2)


def resnet8_gn(
    shape: Sequence[int], classes: int, *, width: PositiveInt = 16, groups: PositiveInt = 8, rate: WidthRate = 1.0
) -> nn.Module:
    """Build ResNet-8 with group normalization: three stages of one block, for small machines."""
    return _with_groups("resnet8-gn", shape, classes, _widths(width, 3, rate), 1, groups)


def resnet8_bn(shape: Sequence[int], classes: int, *, width: PositiveInt = 16, rate: WidthRate = 1.0) -> nn.Module:
    """Build ResNet-8 with batch normalization: three stages of one block, for small machines."""
    return _with_batches("resnet8-bn", shape, classes, _widths(width, 3, rate), 1)
