"""Sub-models that are shallower: the first stages of a network, with a head on each of them (DepthFL).

    head s < S:   z_s = linear(f_s), f_s from h_s by the head;   head S: the network's own, f_S = pool(h_S)

In training all heads answer, side by side, and teach each other; in evaluation their logits are averaged, or the
deepest answers alone. There are two kinds of heads, both from c_s channels to c_S features:

    plain     pool(relu(norm(conv(h))))                       a 3 x 3 convolution to c_S channels, stride 2
    gated     pool(sep(.. sep(h * sigmoid(up(relu(norm(sep(h)))))))   a gate, then one separable convolution per stage

    sep(c -> d): relu(norm(conv1x1(depthwise conv3x3, stride 2))) at c channels, then the same to d with stride 1

"plain" are the heads that give the FLOPs of FedLMT's Table 1. "gated" are DepthFL's own, which it has from "Be Your
Own Teacher"; ResNet-18 with them has 433,482, 1,254,996, 3,699,806 and 12,098,664 parameters at depths 1 to 4.

Reference: Kim et al. 2023, "DepthFL"; Zhang et al. 2019, "Be Your Own Teacher" (the deepest head teaches).
"""

import math
from copy import deepcopy
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import UserError, unknown
from ..models.model import Loss, cross_entropy
from .staged import Headed, check_stage, check_stages, make_heads, norm_like, stage_widths

HeadKind = Literal["plain", "gated"]
ANSWERING, LISTENING = "answering", "listening"  # buffers
_RAMP = 300  # rounds until the heads listen to each other fully


class ManyHeads(Headed):
    """The first stages and their heads: all answers in training, their mean or the deepest one in evaluation.

    ``features``: in training every answer is followed by the input of its linear layer; ``listens``: by the buffer
    ``listening``, how much the heads learn from each other. A loss sees nothing else, and a loss that is made anew for
    every round would be another program.
    """

    listening: Tensor

    def __init__(
        self,
        module: nn.Module,
        depth: int,
        heads: nn.ModuleDict,
        deepest_only: bool,
        features: bool,
        listens: bool = False,
    ) -> None:
        super().__init__(module, depth, dict(list(heads.items())[:depth]))
        self.deepest_only, self.with_features, self.listens = deepest_only, features, listens
        if listens:
            self.register_buffer(LISTENING, torch.zeros_like(module.get_parameter("linear.weight").detach()[0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, heads, C], C + c_S or C + 1 in training, [B, C] in evaluation."""
        h, f, linears = self.features(x), [], []
        for stage, head in self.heads.items():
            *body, linear = head.children()
            inner = h[int(stage)]
            for layer in body:
                inner = layer(inner)
            f.append(inner)
            linears.append(linear)
        if self.complete:
            f.append(self.pool(h[-1]).flatten(1))
            linears.append(self.linear)
        z = torch.stack([linear(features) for linear, features in zip(linears, f, strict=True)], 1)
        if not self.training:
            return self.answer(z)
        if self.listens:
            return torch.cat([z, self.listening.expand(*z.shape[:2], 1)], 2)
        return torch.cat([z, torch.stack(f, 1)], 2) if self.with_features else z

    def answer(self, z: Tensor) -> Tensor:
        """[B, heads, C] -> [B, C]."""
        return z[:, -1] if self.deepest_only else z.mean(1)


class AllHeads(ManyHeads):
    """The server's network: the buffer ``answering`` [heads] says how much each head counts in evaluation."""

    answering: Tensor

    def __init__(self, module: nn.Module, heads: nn.ModuleDict, deepest_only: bool, features: bool) -> None:
        stages = check_stages(module)
        super().__init__(module, stages, heads, deepest_only, features)
        weight = module.get_parameter("linear.weight")
        self.register_buffer(ANSWERING, answering(stages, stages, deepest_only).to(weight))

    def answer(self, z: Tensor) -> Tensor:
        """[B, heads, C] -> [B, C]."""
        return (self.answering[:, None] * z).sum(1)


class Gate(nn.Module):
    """h * sigmoid(up(relu(norm(sep(h))))): attention to places of an image."""

    def __init__(self, norm: nn.Module, channels: int) -> None:
        super().__init__()
        self.sep, self.norm = separable(norm, channels, channels), norm_like(norm, channels)

    def forward(self, h: Tensor) -> Tensor:
        """[B, c, h, w] -> the same."""
        small = F.relu(self.norm(self.sep(h)))
        return h * F.interpolate(small, size=h.shape[-2:], mode="bilinear", align_corners=False).sigmoid()


def answering(stages: int, depth: int, deepest_only: bool) -> Tensor:
    """Return how much each head counts in a network of that depth; heads beyond it do not count.

    >>> answering(4, 2, deepest_only=False), answering(4, 2, deepest_only=True)
    (tensor([0.5000, 0.5000, 0.0000, 0.0000]), tensor([0., 1., 0., 0.]))
    """
    share = torch.zeros(stages)
    share[depth - 1 : depth] = 1
    if not deepest_only:
        share[:depth] = 1 / depth
    return share


def with_depth(
    module: nn.Module,
    depth: int,
    deepest_only: bool = False,
    heads: HeadKind = "plain",
    features: bool = False,
    listens: bool = False,
) -> ManyHeads:
    """Return a copy of the first ``depth`` stages of a network with a head on each.

    The parameters of a smaller depth are a subset of those of a larger one, by name, shape and value.

    Args:
        module: A network in stages, or a result of these functions at full depth, whose heads are taken over then.
        depth: How many stages.
        deepest_only: Whether the deepest head answers alone in evaluation.
        heads: The kind of the heads, "plain" or "gated".
        features: Whether the inputs of the linear layers are put out too, in training.
        listens: Whether the buffer ``listening`` is put out too, in training, for ``mutual_by_round``.

    >>> from coterie import models
    >>> net = models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8))
    >>> x = torch.zeros(5, 1, 8, 8)
    >>> with_depth(net, 2)(x).shape, with_depth(net, 2).eval()(x).shape
    (torch.Size([5, 2, 10]), torch.Size([5, 10]))
    """
    check_stage("depth", depth, check_stages(module))
    source = deepcopy(module)
    own = source.heads if isinstance(source, ManyHeads) else heads_of(source, heads)
    return ManyHeads(source, depth, own, deepest_only, features, listens).train(module.training)


def all_heads(module: nn.Module, deepest_only: bool, heads: HeadKind, features: bool) -> AllHeads:
    """Return a copy of the whole network with all its heads, as the server holds it."""
    check_stages(module)
    source = deepcopy(module)
    return AllHeads(source, heads_of(source, heads), deepest_only, features).train(module.training)


def heads_of(module: nn.Module, kind: HeadKind) -> nn.ModuleDict:
    """Return a head for every stage but the last, with PyTorch's own initial values.

    >>> from coterie import models
    >>> heads_of(models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8)), "plain")["1"].linear
    Linear(in_features=64, out_features=10, bias=True)
    """
    if kind not in get_args(HeadKind):
        raise unknown("kind of heads", kind, get_args(HeadKind))
    widths, norm = stage_widths(module), module.get_submodule("norm")
    last = widths[-1]

    def body(stage: int) -> dict[str, nn.Module]:
        if kind == "plain":
            conv = nn.Conv2d(widths[stage], last, 3, stride=2, padding=1, bias=False)
            return {"conv": conv, "norm": norm_like(norm, last), "relu": nn.ReLU()}
        steps = enumerate(pairwise(widths[stage:]))
        chain = {f"sep{k}": separable(norm, before, after) for k, (before, after) in steps}
        return {"gate": Gate(norm, widths[stage]), **chain}

    return make_heads(module, [last] * (len(widths) - 1), body)


def separable(norm: nn.Module, before: int, after: int) -> nn.Sequential:
    """Return two separable convolutions, the first of stride 2, the second to ``after`` channels."""

    def one(channels: int, stride: int) -> list[nn.Module]:
        spread = nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False)
        return [spread, nn.Conv2d(before, channels, 1, bias=False), norm_like(norm, channels), nn.ReLU()]

    return nn.Sequential(*one(before, 2), *one(after, 1))


def deep_supervision(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return sum_s CE(z_s) of outputs [B, heads, C]; in evaluation there is one answer, [B, C], and its loss."""
    if outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    losses = [cross_entropy(z, targets) for z in outputs.unbind(1)]
    return sum(losses[1:], losses[0])


def mutual(weight: float | Tensor) -> Loss:
    """Return the loss by which every head learns from all others.

    sum_s CE(z_s) + weight / (k - 1) sum_s sum_{j != s} KL(stop(p_j) || p_s),  p_s = softmax(z_s)

    A single head has no other to learn from. ``weight``: that of the round, as ``ramp`` gives it.

    >>> z = torch.zeros(4, 3, 10)
    >>> float(mutual(1.0)(z, torch.arange(4)) - deep_supervision(z, torch.arange(4)))
    0.0
    """

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        supervised, heads = deep_supervision(outputs, targets), outputs.shape[1]
        if heads == 1 or outputs.dim() == 2:
            return supervised
        # Every head against every head: the divergence from itself is zero, and so is its gradient.
        apart = divergence(outputs.unsqueeze(2), outputs.unsqueeze(1))
        return supervised + weight / (heads - 1) * apart.sum((1, 2)).mean()

    return loss


def mutual_by_round(classes: int) -> Loss:
    """Return the loss by which every head learns from all others, as much as a round says.

    ``classes``: where that follows in the outputs of ``with_depth(listens=True)``.
    """

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.dim() == 2:
            return deep_supervision(outputs, targets)
        return mutual(outputs[0, 0, classes].detach())(outputs[..., :classes], targets)

    return loss


def deepest(a: float, tau: float, b: float = 0.0, classes: int | None = None) -> Loss:
    """Return the loss by which the deepest head teaches the others.

    (1 - a) sum_s CE(z_s) + sum_{s < k} (a tau^2 KL(stop(p_k) || p_s) + b |f_s - stop(f_k)|^2)

    p_s = softmax(z_s / tau), f_s: the input of the linear layer of head s. ``a``: how much the teacher counts, from 0
    to 1; ``tau``: the temperature; ``b``: how much the features count; ``classes``: where they begin in the outputs of
    ``with_depth(features=True)``.
    """
    if not 0 <= a <= 1:
        raise UserError(f"a={a} must be between 0 and 1: the share of the deepest head's teaching in the loss")
    if not 0 < tau < math.inf:
        raise UserError(f"tau={tau} must be above 0: the temperature of the teaching")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.dim() == 2:
            return deep_supervision(outputs, targets)
        z = outputs[..., :classes]
        apart = divergence(z[:, -1:] / tau, z[:, :-1] / tau)
        taught = (1 - a) * deep_supervision(z, targets) + a * tau**2 * apart.sum(1).mean()
        if classes is None:
            return taught
        f = outputs[..., classes:]
        return taught + b * (f[:, :-1] - f[:, -1:].detach()).square().sum((1, 2)).mean()

    return loss


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(stop(softmax(teacher)) || softmax(student)) over the last dimension: the teacher gets no gradient."""
    log_p = teacher.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - student.log_softmax(-1))).sum(-1)


def ramp(t: int) -> float:
    """Return how much the heads learn from each other in round t: exp(-5 (1 - min(t, 300) / 300)^2).

    >>> round(ramp(0), 9), ramp(300), ramp(1000)
    (0.006737947, 1.0, 1.0)
    """
    return math.exp(-5 * (1 - min(t, _RAMP) / _RAMP) ** 2)
