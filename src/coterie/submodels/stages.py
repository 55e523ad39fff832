"""A network that grows: all train the first stages, then one more, until it is whole (ProgFed).

    stage s < S:   z = linear_s(pool(h_s))   a temporary head;   stage S: the network itself

Reference: Wang et al. 2022, "ProgFed: Effective, Communication, and Computation Efficient Federated Learning by
Progressive Training".
"""

from collections import OrderedDict
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from .staged import Headed, check_stage, linear_like, same_for_all, stage_widths

STAGE = "stage"


class Stages(Headed):
    """All stages and all heads; the buffer ``stage`` [S] says which head answers.

    It is 1 for that one and 0 elsewhere, a tensor rather than a number: clients computed at once may hold different
    ones, without branches. At first the network's own head answers.
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
    """A network with a temporary head on every stage but the last, in memory of its own.

    ``module``: built in stages. The heads have PyTorch's own initial values, always the same ones.

    >>> from coterie import models
    >>> net = staged(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)))
    >>> net.stage
    tensor([0., 0., 1.])
    >>> net.heads["1"].linear
    Linear(in_features=32, out_features=10, bias=True)
    """
    widths = stage_widths(module)
    source = deepcopy(module)
    with same_for_all("heads"):
        heads = nn.ModuleDict({str(stage): _head(source, c) for stage, c in enumerate(widths[:-1])})
    return Stages(source, len(widths), heads.to(source.get_parameter("linear.weight"))).train(module.training)


def at_stage(module: nn.Module, stage: int) -> Prefix:
    """What is trained in that stage, counted from 1: the first stages and the head on the last of them.

    ``module``: what ``staged`` made, or a module that it takes. Names, shapes and values are those of the whole.

    >>> from coterie import models
    >>> net = staged(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)))
    >>> [k for k, _ in at_stage(net, 2).named_parameters() if k not in dict(at_stage(net, 1).named_parameters())][-2:]
    ['heads.1.linear.weight', 'heads.1.linear.bias']
    """
    whole = deepcopy(module) if isinstance(module, Stages) else staged(module)
    check_stage("stage", stage, len(whole.stages))
    own = {k: head for k, head in whole.heads.items() if int(k) == stage - 1}
    return Prefix(whole, stage, own).train(module.training)


def _head(module: nn.Module, channels: int) -> nn.Module:
    layers = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "linear": linear_like(module, channels)}
    return nn.Sequential(OrderedDict(layers))


def stage_lengths(rounds: int, stages: int) -> list[int]:
    """How many rounds each stage takes: T / (2 S), and what remains for the last.

    >>> stage_lengths(2000, 4), stage_lengths(10, 3)
    ([250, 250, 250, 1250], [1, 1, 8])
    """
    if rounds < 1 or stages < 1:
        raise UserError(f"{rounds} rounds in {stages} stages: there must be at least one of each")
    each = rounds // (2 * stages)
    return [each] * (stages - 1) + [rounds - each * (stages - 1)]


def stage_of(t: int, rounds: int, stages: int) -> int:
    """The stage, counted from 1, of round t, counted from 0; rounds after the last are in the last stage.

    >>> [stage_of(t, 10, 3) for t in range(4)]
    [1, 2, 3, 3]
    """
    passed = 0
    for stage, length in enumerate(stage_lengths(rounds, stages), 1):
        passed += length
        if t < passed:
            return stage
    return stages
