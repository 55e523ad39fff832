"""Networks in stages, with heads where stages end: the common ground of DepthFL and ProgFed, and ProgFed's networks.

A network is built in stages if it has the parts of the residual networks of ``models``, and computes as they do:

    h_0 = relu(norm(stem(x)));   h_s = stages[s](h_{s-1}), s = 1..S;   z = linear(pool(h_S))

Both methods put further heads on h_1..h_{S-1} and train a part of the stages. A part has the names of the whole, so
that a server can send and average by name. ProgFed's network grows: all clients train the first stages, then one more,
until it is whole:

    stage s < S:   z = linear_s(pool(h_s))   a temporary head;   stage S: the network itself

Reference: Wang et al. 2022, "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
Progressive Training".
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import rng
from ..core.errors import UserError
from ..models.parts import group_norm

PARTS = ("stem", "norm", "stages", "pool", "linear")
STAGE = "stage"
_SIDE = 64  # of the images by which widths are found: large enough to be halved a few times


class Headed(nn.Module):
    """The first stages of a network and the heads on them.

    ``depth``: how many stages; ``heads``: by the stage they stand on, counted from "0". The network's own head comes
    along with its last stage, and is the last layer, as ``personal.head_layer`` expects.
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
        """Return the outputs of all stages."""
        outputs = [F.relu(self.norm(self.stem(x)))]
        for stage in self.stages:
            outputs.append(stage(outputs[-1]))
        return outputs[1:]

    def logits(self, x: Tensor) -> list[Tensor]:
        """Return the answers [B, C] of all heads, the deepest last."""
        h = self.features(x)
        answers = [head(h[int(stage)]) for stage, head in self.heads.items()]
        return [*answers, self.linear(self.pool(h[-1]).flatten(1))] if self.complete else answers


class Stages(Headed):
    """All stages and all heads; the buffer ``stage`` [S] says which head answers.

    It is 1 for that head and 0 elsewhere, a tensor rather than a number: clients that are computed at once may hold
    different ones, without branches. At first the network's own head answers.
    """

    stage: Tensor

    def __init__(self, module: nn.Module, depth: int, heads: nn.ModuleDict) -> None:
        super().__init__(module, depth, dict(heads.items()))
        last = self.get_parameter("linear.weight").new_zeros(depth)
        last[-1] = 1
        self.register_buffer(STAGE, last)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, C]."""
        return (self.stage[:, None] * torch.stack(self.logits(x), 1)).sum(1)


class Prefix(Headed):
    """The first stages and the head on the last of them."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, C]."""
        return self.logits(x)[-1]


def staged(module: nn.Module) -> Stages:
    """Return a copy of a network in stages with a temporary head on every stage but the last.

    The heads have PyTorch's own initial values, always the same ones.

    >>> from coterie import models
    >>> net = staged(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)))
    >>> net.stage
    tensor([0., 0., 1.])
    >>> net.heads["1"].linear
    Linear(in_features=32, out_features=10, bias=True)
    """
    widths = stage_widths(module)
    source = deepcopy(module)
    return Stages(source, len(widths), make_heads(source, widths[:-1], lambda s: {})).train(module.training)


def at_stage(module: nn.Module, stage: int) -> Prefix:
    """Return the network of a stage, counted from 1: the first stages and the head on the last of them.

    ``module``: the result of ``staged``, or a module that it takes. Names, shapes and values are those of the whole.

    >>> from coterie import models
    >>> net = staged(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)))
    >>> [k for k, _ in at_stage(net, 2).named_parameters() if k not in dict(at_stage(net, 1).named_parameters())][-2:]
    ['heads.1.linear.weight', 'heads.1.linear.bias']
    """
    whole = deepcopy(module) if isinstance(module, Stages) else staged(module)
    check_stage("stage", stage, len(whole.stages))
    own = {k: head for k, head in whole.heads.items() if int(k) == stage - 1}
    return Prefix(whole, stage, own).train(module.training)


def stage_lengths(rounds: int, stages: int) -> list[int]:
    """Return how many rounds each stage takes: T / (2 S), and what remains for the last.

    >>> stage_lengths(2000, 4), stage_lengths(10, 3)
    ([250, 250, 250, 1250], [1, 1, 8])
    """
    if rounds < 1 or stages < 1:
        raise UserError(f"{rounds} rounds in {stages} stages: there must be at least one of each")
    each = rounds // (2 * stages)
    return [each] * (stages - 1) + [rounds - each * (stages - 1)]


def stage_of(t: int, rounds: int, stages: int) -> int:
    """Return the stage, counted from 1, of round t, counted from 0; rounds after the last are in the last stage.

    >>> [stage_of(t, 10, 3) for t in range(4)]
    [1, 2, 3, 3]
    """
    each = stage_lengths(rounds, stages)[0]
    return min(t // each + 1, stages) if each else stages


def check_stages(module: nn.Module) -> int:
    """Return the number of stages; refuse modules without them."""
    missing = [k for k in PARTS if not isinstance(getattr(module, k, None), nn.Linear if k == "linear" else nn.Module)]
    stages = 0 if missing else len(list(module.get_submodule("stages").children()))
    if not stages:
        raise UserError(
            f"the model is not built in stages: take resnet8-gn or another residual network, or give the module "
            f"stem, norm, stages, pool and linear as they have them (missing: {', '.join(missing or ['stages'])})"
        )
    return stages


def check_stage(what: str, value: int, stages: int) -> None:
    """Refuse a depth or a stage that does not exist."""
    if not 1 <= value <= stages:
        raise UserError(f"{what}={value} must be between 1 and {stages}: the model has that many stages")


def stage_widths(module: nn.Module) -> list[int]:
    """Return the number of channels that every stage puts out, found by trying.

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


def make_heads(
    module: nn.Module, widths: Sequence[int], body: Callable[[int], Mapping[str, nn.Module]]
) -> nn.ModuleDict:
    """Return one head per stage: ``body(stage)``, which puts out ``widths[stage]`` channels, a pool, a linear layer."""

    def head(stage: int, features: int) -> nn.Module:
        end = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        return nn.Sequential(OrderedDict({**body(stage), **end, "linear": linear_like(module, features)}))

    with same_for_all("heads"):
        heads = nn.ModuleDict({str(stage): head(stage, features) for stage, features in enumerate(widths)})
    return heads.to(module.get_parameter("linear.weight"))


def norm_like(norm: nn.Module, channels: int) -> nn.Module:
    """Return a fresh normalization of the same kind, with that many channels.

    >>> norm_like(nn.GroupNorm(2, 4), 8)
    GroupNorm(2, 8, ...)
    """
    if isinstance(norm, nn.BatchNorm2d):
        return nn.BatchNorm2d(channels, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    if isinstance(norm, nn.GroupNorm):
        group_norm(norm.num_groups, channels)  # refuses groups that do not fit
        return nn.GroupNorm(norm.num_groups, channels, norm.eps, norm.affine)
    raise UserError(f"a normalization by {type(norm).__name__} cannot be resized: use nn.GroupNorm or nn.BatchNorm2d")


def linear_like(module: nn.Module, features: int) -> nn.Linear:
    """Return a fresh last layer for the same classes, with PyTorch's own initial values."""
    linear = cast(nn.Linear, module.get_submodule("linear"))
    return nn.Linear(features, linear.out_features, bias=linear.bias is not None)


@contextmanager
def same_for_all(purpose: str) -> Iterator[None]:
    """Seed torch's generator by ``purpose`` alone: equal draws inside are equal everywhere."""
    with rng.torch_draws(rng.key(0, purpose)):
        yield
