"""The heads that DepthFL puts on the stages of a network: two kinds, both from c_s channels to c_S features.

    plain     pool(relu(norm(conv(h))))                       a 3 x 3 convolution to c_S channels, stride 2
    gated     pool(sep(.. sep(h * sigmoid(up(relu(norm(sep(h)))))))   a gate, then a separable convolution a stage

    sep(c -> d): relu(norm(conv1x1(conv3x3 a channel, stride 2))) at c channels, then the same to d with stride 1

"plain" are the heads that give the FLOPs of FedLMT's Table 1. "gated" are DepthFL's own, which it has from "Be Your
Own Teacher"; ResNet-18 with them has 433,482, 1,254,996, 3,699,806 and 12,098,664 parameters at depths 1 to 4.
"""

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import unknown
from .staged import linear_like, norm_like, same_for_all, stage_widths

HEADS = ("plain", "gated")


class Gate(nn.Module):
    """h * sigmoid(up(relu(norm(sep(h))))): where the head is to look."""

    def __init__(self, norm: nn.Module, channels: int) -> None:
        super().__init__()
        self.sep, self.norm = separable(norm, channels, channels), norm_like(norm, channels)

    def forward(self, h: Tensor) -> Tensor:
        """[B, c, h, w] -> the same."""
        small = F.relu(self.norm(self.sep(h)))
        return h * F.interpolate(small, size=h.shape[-2:], mode="bilinear", align_corners=False).sigmoid()


def separable(norm: nn.Module, before: int, after: int) -> nn.Sequential:
    """Two separable convolutions, the first of stride 2, the second to ``after`` channels."""

    def one(channels: int, stride: int) -> list[nn.Module]:
        spread = nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False)
        return [spread, nn.Conv2d(before, channels, 1, bias=False), norm_like(norm, channels), nn.ReLU()]

    return nn.Sequential(*one(before, 2), *one(after, 1))


def heads_of(module: nn.Module, kind: str) -> nn.ModuleDict:
    """A head for every stage but the last, with PyTorch's own initial values; the last layer of each is its linear one.

    >>> from coterie import models
    >>> heads_of(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)), "plain")["1"].linear
    Linear(in_features=64, out_features=10, bias=True)
    """
    if kind not in HEADS:
        raise unknown("kind of heads", kind, HEADS)
    widths, norm = stage_widths(module), module.get_submodule("norm")

    def head(stage: int) -> nn.Module:
        body = _convolution(norm, widths[stage], widths[-1]) if kind == "plain" else _gated(norm, widths[stage:])
        end = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "linear": linear_like(module, widths[-1])}
        return nn.Sequential(OrderedDict(body | end))

    with same_for_all("heads"):
        made = nn.ModuleDict({str(stage): head(stage) for stage in range(len(widths) - 1)})
    return made.to(module.get_parameter("linear.weight"))


def _convolution(norm: nn.Module, channels: int, last: int) -> dict[str, nn.Module]:
    conv = nn.Conv2d(channels, last, 3, stride=2, padding=1, bias=False)
    return {"conv": conv, "norm": norm_like(norm, last), "relu": nn.ReLU()}


def _gated(norm: nn.Module, widths: list[int]) -> dict[str, nn.Module]:
    chain = {f"sep{k}": separable(norm, before, after) for k, (before, after) in enumerate(pairwise(widths))}
    return {"gate": Gate(norm, widths[0]), **chain}
