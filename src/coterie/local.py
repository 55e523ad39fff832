"""The first formula: what one client does between two exchanges.

    x  <-  x - lr * direction(x, batch)          in phases, each training one part and holding the rest

Everything here is written for ONE client.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .batches import Amount, Batch
from .engines.base import Grad
from .tensors import Tensors, Tree, add, mul, norm, split, zeros_like


class Part(NamedTuple):
    """A part of a phase that follows a loss of its own, with an optimiser of its own."""

    names: frozenset[str]
    lr: float | Tensor


class Sgd(NamedTuple):
    """One step of ``torch.optim.SGD`` (no dampening, no Nesterov), after clipping the norm of the gradient.

    g <- g * min(1, clip / (|g| + 1e-6));  g <- g + weight_decay x;  b <- momentum b + g;  x <- x - lr b
    """

    lr: float | Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    apart: Part | None = None  # steps by itself: no share in the norm of the others

    @property
    def rates(self) -> tuple[float | Tensor, ...]:
        """The learning rates."""
        return (self.lr,) if self.apart is None else (self.lr, self.apart.lr)

    def at(self, rates: Sequence[float | Tensor]) -> "Sgd":
        """With other learning rates."""
        return self._replace(lr=rates[0], apart=None if self.apart is None else self.apart._replace(lr=rates[1]))

    def step(self, x: Tensors, g: Tensors, buffer: Tensors) -> tuple[Tensors, Tensors]:
        """(the next point, the next momentum buffer)."""
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
            g = add(mul(buffer, self.momentum), g)
        return add(x, g, -self.lr), g if self.momentum else {}


Guide = Tree
"""What a client's steps are corrected with: control variates, a reference model, push-sum's weight; {} for none."""


def uncorrected(grad: Grad, guide: Guide) -> Grad:
    """The direction is the gradient."""
    return grad


def unmoved(x: Tensors, guide: Guide, lr: float | Tensor) -> Tensors:
    """Nothing happens after a step."""
    return x


class Phase(NamedTuple):
    """A stretch of local work that trains one part of the model."""

    trains: frozenset[str]  # everything else is held: no step, no decay, no share in any norm
    amount: Amount
    lr: float
    stream: int = 0  # 0: the main batches, 1: those of a personal phase
    direction: Callable[[Grad, Guide], Grad] = uncorrected
    after_step: Callable[[Tensors, Guide, float | Tensor], Tensors] = (
        unmoved  # of the point, the guide and the learning rate
    )
    gradients: int = 1  # gradient evaluations a step
    apart: Part | None = None  # of what is trained: this steps by itself


class Start(NamedTuple):
    """Where a client's phase begins."""

    x: Tensors  # what moves
    running: Tensors  # running statistics
    memory: Tensors  # momentum that an earlier round left; empty where none outlives a round


class Walk(NamedTuple):
    """Where some steps led."""

    x: Tensors
    running: Tensors
    buffer: Tensors  # momentum
    loss: Tensor  # summed over the steps


class Reached(NamedTuple):
    """Where a client's phase ended."""

    x: Tensors
    running: Tensors
    memory: Tensors
    loss: Tensor


class Held(NamedTuple):
    """What a client's steps look at and leave as it is."""

    rest: Tensors  # of the model
    guide: Guide


class Descent(NamedTuple):
    """One client's step x <- x - lr * direction(x, batch) of a phase."""

    phase: Phase
    sgd: Sgd
    grad: Grad
    lasting: bool = False  # whether momentum outlives the round

    @property
    def rates(self) -> tuple[float | Tensor, ...]:
        """The learning rates."""
        return self.sgd.rates

    def at(self, rates: Sequence[float | Tensor]) -> "Descent":
        """With other learning rates."""
        return self._replace(sgd=self.sgd.at(rates))

    @property
    def independent(self) -> bool:
        """A batch may have statistics."""
        return False

    def begin(self, given: Start) -> Walk:
        """Every phase starts with a momentum buffer of its own, a zero one unless an earlier round left one."""
        some = next(iter(given.x.values()))
        loss = torch.zeros((), dtype=torch.promote_types(some.dtype, torch.float32), device=some.device)
        buffer = (given.memory or zeros_like(given.x)) if self.sgd.momentum else {}
        return Walk(given.x, given.running, buffer, loss)

    def __call__(self, now: Walk, held: Held, batch: Batch) -> Walk:
        """One step."""
        direction = self.phase.direction(self.grad, held.guide)
        g, seen = direction(now.x, held.rest | now.running, batch)
        x, buffer = self.sgd.step(now.x, g, now.buffer)
        x = self.phase.after_step(x, held.guide, self.sgd.lr)
        return Walk(x, now.running | seen.buffers, buffer, now.loss + seen.loss)

    def end(self, now: Walk) -> Reached:
        """Momentum is kept only where the next round goes on with it."""
        return Reached(now.x, now.running, now.buffer if self.lasting else {}, now.loss)
