"""The first formula: what one client does between two exchanges.

    x  <-  x - lr * direction(x, batch)          in phases, each training one part and holding the rest

Everything here is written for ONE client.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .batches import Amount, Stream
from .engines.base import Grad
from .tensors import Tensors, Tree, add, mul, norm, split


class Part(NamedTuple):
    """A part of a phase that follows a loss of its own, with an optimiser of its own."""

    names: frozenset[str]
    lr: float


class Sgd(NamedTuple):
    """One step of ``torch.optim.SGD`` (no dampening, no Nesterov), after clipping the norm of the gradient.

    g <- g * min(1, clip / (|g| + 1e-6));  g <- g + weight_decay x;  b <- momentum b + g;  x <- x - lr b
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    apart: Part | None = None  # steps by itself: no share in the norm of the others

    def step(self, x: Tensors, g: Tensors, buffer: Tensors) -> tuple[Tensors, Tensors]:
        """(the next point, the next momentum buffer); an empty buffer is the first step's."""
        if self.apart is not None:
            one = self._replace(apart=None)
            halves = zip(*(split(tensors, self.apart.names) for tensors in (x, g, buffer)), strict=True)
            (own, own_buffer), (rest, rest_buffer) = (
                sgd.step(*half) for sgd, half in zip((one._replace(lr=self.apart.lr), one), halves, strict=True)
            )
            return {k: (own | rest)[k] for k in x}, own_buffer | rest_buffer
        if self.clip is not None:
            g = mul(g, (self.clip / (norm(g) + 1e-6)).clamp(max=1.0))
        if self.weight_decay:
            g = add(g, x, self.weight_decay)
        if self.momentum:
            g = add(mul(buffer, self.momentum), g) if buffer else g
        return add(x, g, -self.lr), g if self.momentum else {}


class Walk(NamedTuple):
    """Where some steps led."""

    x: Tensors
    held: Tensors  # as before, but for the running statistics
    buffer: Tensors  # momentum
    loss: Tensor  # summed over the steps


def descend(
    grad: Grad,
    x: Tensors,
    held: Tensors,
    stream: Stream,
    sgd: Sgd,
    buffer: Tensors,
    after_step: Callable[[Tensors], Tensors],
) -> Walk:
    """One step for each batch of the stream."""
    loss = torch.zeros((), device=stream.index.device)
    for k in range(stream.steps):
        g, seen = grad(x, held, stream.batch(k))
        x, buffer = sgd.step(x, g, buffer)
        x = after_step(x)
        held = held | seen.buffers
        loss = loss + seen.loss
    return Walk(x, held, buffer, loss)


Guide = Tree
"""What a client's steps are corrected with: control variates, a reference model, push-sum's weight; {} for none."""


def uncorrected(grad: Grad, guide: Guide) -> Grad:
    """The direction is the gradient."""
    return grad


def unmoved(x: Tensors, guide: Guide, lr: float) -> Tensors:
    """Nothing happens after a step."""
    return x


class Phase(NamedTuple):
    """A stretch of local work that trains one part of the model."""

    trains: frozenset[str]  # everything else is held: no step, no decay, no share in any norm
    amount: Amount
    lr: float
    stream: int = 0  # 0: the main batches, 1: those of a personal phase
    direction: Callable[[Grad, Guide], Grad] = uncorrected
    after_step: Callable[[Tensors, Guide, float], Tensors] = unmoved  # of the point, the guide and the learning rate
    gradients: int = 1  # gradient evaluations a step
    apart: Part | None = None  # of what is trained: this steps by itself


class Update(NamedTuple):
    """A client after its local work."""

    model: Tensors
    memory: Tensors  # momentum that outlives the round; empty where it does not
    loss: Tensor  # summed over the steps of all phases


def local_update(phases: Sequence[tuple[Phase, Sgd]], grad: Grad) -> Callable[..., Update]:
    """The work of one round, phase after phase.

    The returned function takes (model, memory, guide, one stream a phase). Every phase starts with a momentum buffer
    of its own, an empty one unless ``memory`` holds what an earlier round left.
    """

    def update(model: Tensors, memory: Tensors, guide: Guide, *streams: Stream) -> Update:
        loss = torch.zeros((), device=next(iter(model.values())).device)
        kept: Tensors = {}
        for (phase, sgd), stream in zip(phases, streams, strict=True):
            moving, held = split(model, phase.trains)
            buffer = split(memory, phase.trains)[0]
            corrected, after = phase.direction(grad, guide), partial(_after, phase, guide, sgd.lr)
            walk = descend(corrected, moving, held, stream, sgd, buffer, after)
            model = {k: (walk.x | walk.held)[k] for k in model}
            kept |= split(walk.buffer, memory)[0]
            loss = loss + walk.loss
        return Update(model, memory | kept, loss)

    return update


def _after(phase: Phase, guide: Guide, lr: float, x: Tensors) -> Tensors:
    return phase.after_step(x, guide, lr)
