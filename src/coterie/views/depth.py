"""Sub-models that are shallower: the first stages of a network, with a head on each of them (DepthFL).

    head s < S:   z_s = linear(pool(relu(norm(conv(h_s)))))   with a 3 x 3 convolution to c_S channels, stride 2
    head S:       the network's own

In training all heads answer, side by side, and teach each other; in evaluation their logits are averaged.

Reference: Kim et al. 2023, "DepthFL"; Zhang et al. 2019, "Be Your Own Teacher" (the deepest head teaches).
Differs from the paper in: the heads are those that give the FLOPs of FedLMT's Table 1; DepthFL's own have an attention
gate and a chain of separable convolutions.
"""

import math
from collections import OrderedDict
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..errors import RequestError
from ..problem import Loss, cross_entropy
from .staged import Headed, check_stage, check_stages, linear_like, norm_like, same_for_all, stage_widths

_RAMP = 300  # rounds until the heads listen to each other fully


class ManyHeads(Headed):
    """Answers of all heads, [B, heads, C], in training; their mean or the deepest one's, [B, C], in evaluation."""

    def __init__(self, module: nn.Module, depth: int, heads: nn.ModuleDict, deepest_only: bool) -> None:
        super().__init__(module, depth, dict(list(heads.items())[:depth]))
        self.deepest_only = deepest_only

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, heads, C] or [B, C]."""
        z = torch.stack(self.logits(x), 1)
        if self.training:
            return z
        return z[:, -1] if self.deepest_only else z.mean(1)


def with_depth(module: nn.Module, depth: int, deepest_only: bool = False) -> ManyHeads:
    """The first ``depth`` stages of a network with a head on each, in memory of their own.

    ``module``: built in stages, or what this function made of such a module at full depth: then its heads are taken
    over, values included. The parameters of a smaller depth are a subset of those of a larger one, by name, shape and
    value. ``deepest_only``: in evaluation the deepest head answers alone.

    >>> from coterie import models
    >>> net = models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8))
    >>> x = torch.zeros(5, 1, 8, 8)
    >>> with_depth(net, 2)(x).shape, with_depth(net, 2).eval()(x).shape
    (torch.Size([5, 2, 10]), torch.Size([5, 10]))
    """
    stages = check_stages(module)
    check_stage("depth", depth, stages)
    source = deepcopy(module)
    heads = source.heads if isinstance(source, ManyHeads) else _heads(source)
    return ManyHeads(source, depth, heads, deepest_only).train(module.training)


def _heads(module: nn.Module) -> nn.ModuleDict:
    """A head for every stage but the last, with PyTorch's own initial values."""
    *befores, last = stage_widths(module)
    norm, weight = module.get_submodule("norm"), module.get_parameter("linear.weight")

    def head(channels: int) -> nn.Module:
        layers = {
            "conv": nn.Conv2d(channels, last, 3, stride=2, padding=1, bias=False),
            "norm": norm_like(norm, last),
            "relu": nn.ReLU(),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "linear": linear_like(module, last),
        }
        return nn.Sequential(OrderedDict(layers))

    with same_for_all("heads"):
        return nn.ModuleDict({str(stage): head(c) for stage, c in enumerate(befores)}).to(weight)


def deep_supervision(outputs: Tensor, targets: Tensor) -> Tensor:
    """sum_s CE(z_s): every head by itself. ``outputs``: [B, heads, C]; in evaluation the one answer, [B, C]."""
    if outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    losses = [cross_entropy(z, targets) for z in outputs.unbind(1)]
    return sum(losses[1:], losses[0])


def mutual(weight: float | Tensor) -> Loss:
    """Every head learns from all others: sum_s CE(z_s) + weight / (k - 1) sum_s sum_{j != s} KL(stop(p_j) || p_s).

    p_s = softmax(z_s); a single head has nobody to learn from. ``weight``: that of the round, as ``ramp`` gives it.

    >>> z = torch.zeros(4, 3, 10)
    >>> float(mutual(1.0)(z, torch.arange(4)) - deep_supervision(z, torch.arange(4)))
    0.0
    """

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        supervised, heads = deep_supervision(outputs, targets), outputs.shape[1]
        if heads == 1 or outputs.dim() == 2:
            return supervised
        # Every head against every head: that with itself is zero, and so is its gradient.
        apart = divergence(outputs.unsqueeze(2), outputs.unsqueeze(1))
        return supervised + weight / (heads - 1) * apart.sum((1, 2)).mean()

    return loss


def deepest(a: float, tau: float) -> Loss:
    """The deepest head teaches: (1 - a) sum_s CE(z_s) + a tau^2 sum_{s < k} KL(stop(p_k) || p_s).

    p_s = softmax(z_s / tau). ``a``: how much the teacher counts, from 0 to 1; ``tau``: the temperature.
    """
    if not 0 <= a <= 1:
        raise RequestError(f"a={a} must be between 0 and 1: the share of the deepest head's teaching in the loss")
    if not 0 < tau < math.inf:
        raise RequestError(f"tau={tau} must be above 0: the temperature of the teaching")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.dim() == 2:
            return deep_supervision(outputs, targets)
        apart = divergence(outputs[:, -1:] / tau, outputs[:, :-1] / tau)
        return (1 - a) * deep_supervision(outputs, targets) + a * tau**2 * apart.sum(1).mean()

    return loss


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(stop(softmax(teacher)) || softmax(student)) over the last dimension: the teacher gets no gradient."""
    known = teacher.detach().log_softmax(-1)
    return (known.exp() * (known - student.log_softmax(-1))).sum(-1)


def ramp(t: int) -> float:
    """How much the heads learn from each other in round t: exp(-5 (1 - min(t, 300) / 300)^2).

    >>> round(ramp(0), 9), ramp(300), ramp(1000)
    (0.006737947, 1.0, 1.0)
    """
    return math.exp(-5 * (1 - min(t, _RAMP) / _RAMP) ** 2)
