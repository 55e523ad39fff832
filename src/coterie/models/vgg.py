"""VGG-11 with group normalization."""

from collections.abc import Sequence

from torch import Tensor, nn

from ..core.annotations import PositiveInt
from .parts import WidthRate, group_norm, need_images, scaled_width

PLAN = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""The convolutions between two poolings."""


class VGG(nn.Module):
    """Convolutions with bias, normalized, in five groups that each end with a pooling; then one linear layer."""

    def __init__(self, channels: int, classes: int, plan: Sequence[Sequence[int]], groups: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for widths in plan:
            for width in widths:
                layers += [nn.Conv2d(before, width, 3, padding=1), group_norm(groups, width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, classes]."""
        return self.classifier(self.pool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


def vgg11_gn(shape: Sequence[int], classes: int, *, groups: PositiveInt = 32, rate: WidthRate = 1.0) -> nn.Module:
    """Build VGG-11 with group normalization and a single linear layer.

    Convolutions are Kaiming-normal by fan-out, the linear layer is N(0, 0.01) and biases are 0, as in the code released
    with DisPFL. ``groups``: of every normalization; ``rate``: the share of every hidden width that is kept.
    """
    need_images("vgg11-gn", shape, side=32)
    plan = [[scaled_width(width, rate) for width in widths] for widths in PLAN]
    module = VGG(shape[0], classes, plan, groups)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module
