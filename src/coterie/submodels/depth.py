"""Sub-models that are shallower: the first stages of a network, with a head on each of them (DepthFL).

    head s < S:   z_s = linear(f_s), f_s from h_s as ``heads`` has it;   head S: the network's own, f_S = pool(h_S)

In training all heads answer, side by side, and teach each other; in evaluation their logits are averaged, or the
deepest answers alone.

Reference: Kim et al. 2023, "DepthFL"; Zhang et al. 2019, "Be Your Own Teacher" (the deepest head teaches).
"""

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..models.model import Loss, cross_entropy
from .heads import heads_of
from .staged import Headed, check_stage, check_stages

_RAMP = 300  # rounds until the heads listen to each other fully
ANSWERING = "answering"


class ManyHeads(Headed):
    """Answers of all heads, [B, heads, C], in training; their mean or the deepest one's, [B, C], in evaluation.

    ``features``: in training every answer is followed by what its linear layer saw, [B, heads, C + c_S].
    """

    def __init__(self, module: nn.Module, depth: int, heads: nn.ModuleDict, deepest_only: bool, features: bool) -> None:
        super().__init__(module, depth, dict(list(heads.items())[:depth]))
        self.deepest_only, self.with_features = deepest_only, features

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, heads, C], [B, heads, C + c_S] or [B, C]."""
        seen = self.embedded(x)
        z = torch.stack([linear(f) for linear, f in zip(self.linears, seen, strict=True)], 1)
        if not self.training:
            return self.answer(z)
        return torch.cat([z, torch.stack(seen, 1)], 2) if self.with_features else z

    def embedded(self, x: Tensor) -> list[Tensor]:
        """[B, c_S] what the linear layer of every head sees, the deepest last."""
        found = self.features(x)
        seen = []
        for stage, head in self.heads.items():
            f = found[int(stage)]
            for layer in list(head.children())[:-1]:
                f = layer(f)
            seen.append(f)
        return [*seen, self.pool(found[-1]).flatten(1)] if self.complete else seen

    @property
    def linears(self) -> list[nn.Module]:
        """The last layers of all heads."""
        own = [list(head.children())[-1] for head in self.heads.values()]
        return [*own, self.linear] if self.complete else own

    def answer(self, z: Tensor) -> Tensor:
        """[B, heads, C] -> [B, C]."""
        return z[:, -1] if self.deepest_only else z.mean(1)


class AllHeads(ManyHeads):
    """The server's network: the buffer ``answering`` [heads] says how much each head counts in evaluation."""

    answering: Tensor

    def __init__(self, module: nn.Module, heads: nn.ModuleDict, deepest_only: bool, features: bool) -> None:
        stages = check_stages(module)
        super().__init__(module, stages, heads, deepest_only, features)
        self.register_buffer(
            ANSWERING, answering(stages, stages, deepest_only).to(module.get_parameter("linear.weight"))
        )

    def answer(self, z: Tensor) -> Tensor:
        """[B, heads, C] -> [B, C]."""
        return (self.answering[:, None] * z).sum(1)


def answering(stages: int, depth: int, deepest_only: bool) -> Tensor:
    """How much each head counts where the network is that deep: those beyond it not at all.

    >>> answering(4, 2, deepest_only=False), answering(4, 2, deepest_only=True)
    (tensor([0.5000, 0.5000, 0.0000, 0.0000]), tensor([0., 1., 0., 0.]))
    """
    share = torch.zeros(stages)
    share[depth - 1 : depth] = 1
    if not deepest_only:
        share[:depth] = 1 / depth
    return share


def with_depth(
    module: nn.Module, depth: int, deepest_only: bool = False, heads: str = "plain", features: bool = False
) -> ManyHeads:
    """The first ``depth`` stages of a network with a head on each, in memory of their own.

    ``module``: built in stages, or what these functions made of such a module at full depth: then its heads are taken
    over, values included. The parameters of a smaller depth are a subset of those of a larger one, by name, shape and
    value. ``deepest_only``: in evaluation the deepest head answers alone; ``heads``: their kind, one of
    ``views.heads.HEADS``; ``features``: what the linear layers see is put out too, in training.

    >>> from coterie import models
    >>> net = models.build("resnet8-gn", classes=10, input_shape=(1, 8, 8))
    >>> x = torch.zeros(5, 1, 8, 8)
    >>> with_depth(net, 2)(x).shape, with_depth(net, 2).eval()(x).shape
    (torch.Size([5, 2, 10]), torch.Size([5, 10]))
    """
    stages = check_stages(module)
    check_stage("depth", depth, stages)
    source = deepcopy(module)
    made = source.heads if isinstance(source, ManyHeads) else heads_of(source, heads)
    return ManyHeads(source, depth, made, deepest_only, features).train(module.training)


def all_heads(module: nn.Module, deepest_only: bool, heads: str, features: bool) -> AllHeads:
    """The whole network with all its heads, as the server holds it, in memory of its own."""
    check_stages(module)
    source = deepcopy(module)
    return AllHeads(source, heads_of(source, heads), deepest_only, features).train(module.training)


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


def deepest(a: float, tau: float, b: float = 0.0, classes: int | None = None) -> Loss:
    """The deepest head teaches.

    (1 - a) sum_s CE(z_s) + sum_{s < k} (a tau^2 KL(stop(p_k) || p_s) + b |f_s - stop(f_k)|^2)

    p_s = softmax(z_s / tau), f_s: what the linear layer of head s sees. ``a``: how much the teacher counts, from 0 to
    1; ``tau``: the temperature; ``b``: how much the features count; ``classes``: where they begin in the outputs, as
    ``with_depth(features=True)`` puts them out.
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
    """KL(stop(softmax(teacher)) || softmax(student)) over the last dimension: the teacher gets no gradient."""
    known = teacher.detach().log_softmax(-1)
    return (known.exp() * (known - student.log_softmax(-1))).sum(-1)


def ramp(t: int) -> float:
    """How much the heads learn from each other in round t: exp(-5 (1 - min(t, 300) / 300)^2).

    >>> round(ramp(0), 9), ramp(300), ramp(1000)
    (0.006737947, 1.0, 1.0)
    """
    return math.exp(-5 * (1 - min(t, _RAMP) / _RAMP) ** 2)
