"""Networks in stages, with heads where stages end: what DepthFL and ProgFed have in common.

A network is built in stages if it has what the residual networks of ``models`` have, and computes as they do:

    h_0 = relu(norm(stem(x)));   h_s = stages[s](h_{s-1}), s = 1..S;   z = linear(pool(h_S))

Both methods put further heads on h_1..h_{S-1} and train a part of the stages. A part carries the names of the whole, so
that a server can send and average by name.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import rng as rng
from ..core.errors import UserError
from ..models.parts import group_norm

PARTS = ("stem", "norm", "stages", "pool", "linear")
_SIDE = 64  # of the images by which widths are found: large enough to be halved a few times


class Headed(nn.Module):
    """The first stages of a network and the heads on them.

    ``depth``: how many stages; ``heads``: by the stage they stand on, counted from "0". The network's own head comes
    along with its last stage, and is the last layer, as ``split.head_layer`` expects.
    """

    def __init__(self, module: nn.Module, depth: int, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm = module.get_submodule("stem"), module.get_submodule("norm")
        stages = list(module.get_submodule("stages").named_children())
        self.stages = nn.Sequential(OrderedDict(stages[:depth]))
        self.heads = nn.ModuleDict(heads)
        self.complete = depth == len(stages)
        if self.complete:
            self.pool, self.linear = module.get_submodule("pool"), module.get_submodule("linear")

    def features(self, x: Tensor) -> list[Tensor]:
        """What every stage puts out."""
        found = [F.relu(self.norm(self.stem(x)))]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found[1:]

    def logits(self, x: Tensor) -> list[Tensor]:
        """[B, C] what every head answers, the deepest last."""
        found = self.features(x)
        answers = [head(found[int(stage)]) for stage, head in self.heads.items()]
        return [*answers, self.linear(self.pool(found[-1]).flatten(1))] if self.complete else answers


def check_stages(module: nn.Module) -> int:
    """The number of stages; refuses modules without them."""
    missing = [k for k in PARTS if not isinstance(getattr(module, k, None), nn.Linear if k == "linear" else nn.Module)]
    stages = 0 if missing else len(list(module.get_submodule("stages").children()))
    if not stages:
        raise UserError(
            f"the model is not built in stages: take resnet8-gn or another residual network, or give the module "
            f"stem, norm, stages, pool and linear as they have them (missing: {', '.join(missing or ['stages'])})"
        )
    return stages


def check_stage(what: str, value: int, stages: int) -> None:
    """Refuses a depth or stage that there is not."""
    if not 1 <= value <= stages:
        raise UserError(f"{what}={value} must be between 1 and {stages}: the model has that many stages")


def stage_widths(module: nn.Module) -> list[int]:
    """The channels that every stage puts out, found by trying.

    >>> from coterie import models
    >>> stage_widths(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)))
    [16, 32, 64]
    """
    trial = Headed(deepcopy(module), check_stages(module), {}).to("meta").eval()
    first = next((layer for layer in trial.stem.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None:
        raise UserError("the model's stem has no convolution: let it begin with an nn.Conv2d")
    # Two images, because batch normalization refuses a single number.
    images = torch.zeros(2, first.in_channels, _SIDE, _SIDE, dtype=first.weight.dtype, device="meta")
    with torch.no_grad():
        return [h.shape[1] for h in trial.features(images)]


def norm_like(norm: nn.Module, channels: int) -> nn.Module:
    """A fresh normalization of the same kind, of that many channels.

    >>> norm_like(nn.GroupNorm(2, 4), 8)
    GroupNorm(2, 8, ...)
    """
    if isinstance(norm, nn.BatchNorm2d):
        return nn.BatchNorm2d(channels, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    if isinstance(norm, nn.GroupNorm):
        group_norm(norm.num_groups, channels)  # says so if they do not fit
        return nn.GroupNorm(norm.num_groups, channels, norm.eps, norm.affine)
    raise UserError(f"a normalization by {type(norm).__name__} cannot be resized: use nn.GroupNorm or nn.BatchNorm2d")


def linear_like(module: nn.Module, features: int) -> nn.Linear:
    """A fresh last layer for the same classes, with PyTorch's own initial values."""
    linear = cast(nn.Linear, module.get_submodule("linear"))
    return nn.Linear(features, linear.out_features, bias=linear.bias is not None)


@contextmanager
def same_for_all(purpose: str) -> Iterator[None]:
    """What is drawn inside is the same whenever and by whomever it is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(0, purpose))
        yield
