"""The first formula: what one client does between two exchanges.

    x  <-  x - lr * direction(x, batch)          in phases, each training one part; the rest is frozen

Everything here is written for ONE client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from ..core.annotations import Example
from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.tensors import Tensors, Tree, add, mul, norm, split, zeros_like
from ..data.batches import Amount, Batch, Batches
from ..engines.base import Grad, StepInfo


class ParamGroup(NamedTuple):
    """Parameters of a phase that have a learning rate of their own, as in the groups of ``torch.optim``."""

    names: frozenset[str]
    lr: float | Tensor
    clipped_alone: bool = False  # follows a loss of its own, so clipping takes the norm of its gradient by itself


class Sgd(NamedTuple):
    """One step of ``torch.optim.SGD`` (no dampening, no Nesterov), after clipping the norm of the gradient.

    g <- g * min(1, clip / (|g| + 1e-6));  g <- g + weight_decay x;  b <- momentum b + g;  x <- x - lr b

    A group has another lr, and with it another step along its decay; the norm is that of the whole gradient.
    """

    lr: float | Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    group: ParamGroup | None = None  # what has another rate

    @property
    def rates(self) -> tuple[float | Tensor, ...]:
        """The learning rates."""
        return (self.lr,) if self.group is None else (self.lr, self.group.lr)

    def at(self, rates: Sequence[float | Tensor]) -> "Sgd":
        """Return it with other learning rates."""
        return self._replace(lr=rates[0], group=None if self.group is None else self.group._replace(lr=rates[1]))

    def step(self, x: Tensors, g: Tensors, buffer: Tensors) -> tuple[Tensors, Tensors]:
        """Return the next point and the next momentum buffer."""
        group = frozenset() if self.group is None else self.group.names
        if self.clip is not None:
            alone, rest = split(g, group if self.group is not None and self.group.clipped_alone else ())
            short: Tensors = {}
            for part in (alone, rest):
                if part:
                    short |= mul(part, (self.clip / (norm(part) + 1e-6)).clamp(max=1.0))
            g = {k: short[k] for k in g}
        if self.weight_decay:
            g = add(g, x, self.weight_decay)
        if self.momentum:
            g = add(mul(buffer, self.momentum), g)
        buffer = g if self.momentum else {}
        if self.group is None:
            return add(x, g, -self.lr), buffer
        own, rest = split(x, group)
        moved = add(own, g, -self.group.lr) | add(rest, g, -self.lr)
        return {k: moved[k] for k in x}, buffer


Aux = Mapping[str, Tree]
"""What a client's corrections look up by name: control variates, a reference model, push-sum's weight, a mask."""
REFERENCE = "reference"  # the model a client began with: the local work has that for whoever looks for it


class Correction:
    """A term of what a step follows; a value, so that steps with equal corrections are one program."""

    needs: ClassVar[str | None] = None  # the name of what it looks up
    gradients: int = 1  # evaluations of the gradient inside it
    renews: frozenset[str] = frozenset()  # names of what it carries from step to step, handed back among the buffers

    def direction(self, grad: Grad, aux: Aux) -> Grad:
        """Return what is followed instead of ``grad``."""
        return grad

    def passes(self, once: int, batches: Batches) -> int:
        """Return how many samples go forward and back, where ``once`` of them do without it."""
        return once * self.gradients

    def after_step(self, x: Tensors, aux: Aux, lr: float | Tensor) -> Tensors:
        """Return what becomes of the point that a step has reached."""
        return x


@checked_class("class", own=("corrections",))
@dataclass(frozen=True)
class Phase:
    """A stretch of local work that trains one part of the model."""

    # Everything else is frozen: no step, no decay, no share in any norm.
    trains: Annotated[frozenset[str], Example("p.parameters")]
    amount: Annotated[Amount, Example("t.amount")]  # how many epochs or steps
    lr: Annotated[float, Example("t.lr")]  # the learning rate of the first round
    corrections: tuple[Correction, ...] = ()  # the first is applied to the gradient, the next to what came out
    stream: int = 0  # 0: the main batches, 1: those of a personal phase
    group: ParamGroup | None = None  # of what is trained: this has another rate
    full_batch: bool = False  # every step sees all samples of the client

    def __post_init__(self) -> None:
        given: object = self.corrections
        if not isinstance(given, tuple) or not all(isinstance(c, Correction) for c in given):
            inside = f" of {', '.join(type(c).__name__ for c in given)}" if isinstance(given, tuple) else ""
            raise UserError(
                f"the corrections of a phase are one tuple of corrections, not a {type(given).__name__}{inside}: write "
                "sam(rho), sam(rho) + proximal(mu), or sam(rho) + (Mine(),) for one of your own"
            )

    @cached_property
    def needs(self) -> frozenset[str]:
        """The names of what its corrections look up."""
        return frozenset(c.needs for c in self.corrections if c.needs is not None)


class Carry(NamedTuple):
    """What one client carries from step to step of a phase."""

    x: Tensors  # the parameters that the phase trains
    running: Tensors  # running statistics, and what corrections renew
    buffer: Tensors  # momentum; empty at the begin and at the end of a phase, unless it outlives the round
    loss: Tensor  # summed over the steps


class Frozen(NamedTuple):
    """What a client's steps look at and leave as it is."""

    rest: Tensors  # of the model
    aux: Aux  # what corrections look up


class Descent(NamedTuple):
    """One client's step x <- x - lr * direction(x, batch) of a phase."""

    phase: Phase
    sgd: Sgd
    grad: Grad
    persistent: bool = False  # whether momentum outlives the round

    @property
    def rates(self) -> tuple[float | Tensor, ...]:
        """The learning rates."""
        return self.sgd.rates

    def at(self, rates: Sequence[float | Tensor]) -> "Descent":
        """Return it with other learning rates."""
        return self._replace(sgd=self.sgd.at(rates))

    @property
    def independent(self) -> bool:
        """A batch may have statistics."""
        return False

    def begin(self, carry: Carry) -> Carry:
        """Start with a momentum buffer of zeros, unless an earlier round left one."""
        if carry.buffer or not self.sgd.momentum:
            return carry
        return carry._replace(buffer=zeros_like(carry.x))

    def __call__(self, carry: Carry, frozen: Frozen, batch: Batch) -> Carry:
        """Take one step."""
        direction = self.grad
        for correction in self.phase.corrections:
            direction = correction.direction(direction, frozen.aux)
        found = direction(carry.x, frozen.rest | carry.running, batch)
        if not isinstance(found, tuple) or not isinstance(found[-1], StepInfo):  # by a correction of one's own
            raise UserError(
                f"the direction of a correction returned a {type(found).__name__}: return what is followed and what "
                "the gradient told beside it, as in `return g, info`"
            )
        g, info = found
        x, buffer = self.sgd.step(carry.x, g, carry.buffer)
        if info.unreached:  # as in ``torch.optim``: without a gradient, neither decay nor momentum moves a parameter
            x, buffer = (new | split(old, info.unreached)[0] for new, old in ((x, carry.x), (buffer, carry.buffer)))
        for correction in self.phase.corrections:
            x = correction.after_step(x, frozen.aux, self.sgd.lr)
        return Carry(x, carry.running | info.buffers, buffer, carry.loss + info.loss)

    def end(self, carry: Carry) -> Carry:
        """Drop the momentum unless the next round goes on with it."""
        return carry if self.persistent else carry._replace(buffer={})
