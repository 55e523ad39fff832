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
from ..core.tensors import Tensors, Tree, norm, split
from ..data.batches import Amount, Batch, Batches
from ..engines.base import Grad, Pace, StepInfo
from .optimizers import Optimizer, Slots, part_of, put_together


class ParamGroup(NamedTuple):
    """Parameters of a phase that have a learning rate of their own, as in the groups of ``torch.optim``."""

    names: frozenset[str]
    lr: float
    clipped_alone: bool = False  # follows a loss of its own, so clipping takes the norm of its gradient by itself


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
    optimizer: str | Optimizer | None = None  # instead of that of the training

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
    opt: Slots  # of the optimizer; empty at the begin and at the end of a phase, unless it outlives the round
    loss: Tensor  # summed over the steps


class Frozen(NamedTuple):
    """What a client's steps look at and leave as it is."""

    rest: Tensors  # of the model
    aux: Aux  # what corrections look up


class Descent(NamedTuple):
    """One client's step along direction(x, batch) in a phase, after clipping the norm of the direction.

    g <- direction(x, batch);  g <- g * min(1, clip / (|g| + 1e-6));  x <- the optimizer's step along g

    A group of parameters steps at the second of the rates; the norm is that of the whole direction, unless the group
    is clipped alone.
    """

    phase: Phase
    optimizer: Optimizer
    grad: Grad
    rates: tuple[float | Tensor, ...]  # of the phase, and of its group if it has one
    clip: float | None = None
    persistent: bool = False  # whether the optimizer's state outlives the round
    pace: Pace | None = None

    def at(self, rates: Sequence[float | Tensor]) -> "Descent":
        """Return it with other learning rates, the same in every step."""
        return self._replace(rates=tuple(rates), pace=None)

    @property
    def independent(self) -> bool:
        """A batch may have statistics."""
        return False

    def begin(self, carry: Carry) -> Carry:
        """Start with the optimizer's first state, unless an earlier round left one."""
        return carry if carry.opt else carry._replace(opt=self.optimizer.init(carry.x))

    def __call__(self, carry: Carry, frozen: Frozen, batch: Batch) -> Carry:
        """Take one step."""
        direction, (x, running, opt, loss) = self.grad, carry
        for correction in self.phase.corrections:
            direction = correction.direction(direction, frozen.aux)
        found = direction(x, frozen.rest | running, batch)
        if not isinstance(found, tuple) or not isinstance(found[-1], StepInfo):  # by a correction of one's own
            raise UserError(
                f"the direction of a correction returned a {type(found).__name__}: return what is followed and what "
                "the gradient told beside it, as in `return g, info`"
            )
        g, info = found
        if self.clip is not None:
            g = clipped(g, self.clip, self.phase.group)
        if self.phase.group is None:
            x, opt = self.optimizer.step(x, g, opt, self.rates[0])
        else:
            x, opt = self._by_groups(x, g, opt, self.phase.group.names)
        if info.unreached:  # as in ``torch.optim``: what has no gradient neither moves nor changes its state
            x = x | split(carry.x, info.unreached)[0]
            opt = put_together(opt, part_of(carry.opt, info.unreached))
        for correction in self.phase.corrections:
            x = correction.after_step(x, frozen.aux, self.rates[0])
        return Carry(x, running | info.buffers, opt, loss + info.loss)

    def _by_groups(self, x: Tensors, g: Tensors, opt: Slots, names: frozenset[str]) -> tuple[Tensors, Slots]:
        """Return the next point and state where a group of parameters has another rate."""
        new, state = dict(x), opt
        for part, lr in zip(split(x, names), reversed(self.rates), strict=True):
            if part:
                moved, after = self.optimizer.step(part, {k: g[k] for k in part}, part_of(opt, part), lr)
                new, state = new | moved, put_together(state, after)
        return new, state

    def end(self, carry: Carry) -> Carry:
        """Drop the optimizer's state unless the next round goes on with it."""
        return carry if self.persistent else carry._replace(opt={})


def clipped(g: Tensors, clip: float, group: ParamGroup | None) -> Tensors:
    """Return g * min(1, clip / (|g| + 1e-6)); a group that follows a loss of its own has a norm of its own."""
    alone, rest = split(g, group.names if group is not None and group.clipped_alone else ())
    short: Tensors = {}
    for part in (alone, rest):
        if part:
            scale = (clip / (norm(part) + 1e-6)).clamp(max=1.0)
            short |= {k: v * scale for k, v in part.items()}
    return {k: short[k] for k in g}
