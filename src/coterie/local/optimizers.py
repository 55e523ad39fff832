"""Optimizers: what becomes of a point along a direction, and the rates of every round.

    x, state  <-  step(x, g, state, lr)          one client; the state is a tree by slot and by parameter

Everything here is written for ONE client.
"""

import math
from collections.abc import Collection
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.annotations import LARGEST
from ..core.errors import UserError
from ..core.tensors import Tensors, add, split, zeros_like

Slots = dict[str, Tensors]
"""What an optimizer carries from step to step: by slot, such as "momentum", and in it by parameter."""


@runtime_checkable
class Optimizer(Protocol):
    """How a client steps: a value, so that steps with equal optimizers are one program.

    The rate is an argument of the step, because it changes from round to round. Every slot has an entry for every
    parameter, so that phases which train different parts, and rounds, can split the state and put it together.
    """

    def init(self, x: Tensors, /) -> Slots:
        """Return the state before the first step; empty where nothing is carried."""

    def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor, /) -> tuple[Tensors, Slots]:
        """Return the next point and the next state; what was given stays as it is."""


class Sgd(NamedTuple):
    """``torch.optim.SGD`` without dampening and Nesterov.

    g <- g + weight_decay x;  b <- momentum b + g;  x <- x - lr b
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, x: Tensors) -> Slots:
        """Return a momentum of zeros, if there is one."""
        return {"momentum": zeros_like(x)} if self.momentum else {}

    def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor) -> tuple[Tensors, Slots]:
        """Return the next point and the next momentum."""
        if self.weight_decay:
            g = add(g, x, self.weight_decay)
        if not self.momentum:
            return add(x, g, -lr), {}
        b = {k: v * self.momentum + g[k] for k, v in state["momentum"].items()}
        return add(x, b, -lr), {"momentum": b}


class Adam(NamedTuple):
    """``torch.optim.Adam``, or ``torch.optim.AdamW`` where the decay is decoupled.

    m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) g^2;  k <- k + 1
    x <- x - lr m / (1 - beta_1^k) / (sqrt(v / (1 - beta_2^k)) + eps)

    The decay is added to the gradient, g <- g + weight_decay x, or decoupled, x <- (1 - lr weight_decay) x before the
    step. Every parameter has its own count k, because one that a loss does not reach makes no step.
    """

    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def init(self, x: Tensors) -> Slots:
        """Return moments and counts of zero."""
        none = {k: torch.zeros((), dtype=torch.float64, device=v.device) for k, v in x.items()}
        return {"first": zeros_like(x), "second": zeros_like(x), "steps": none}

    def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor) -> tuple[Tensors, Slots]:
        """Return the next point, the next moments and the next counts."""
        one, two = self.betas
        if self.weight_decay and self.decoupled:
            x = {k: v * (1 - lr * self.weight_decay) for k, v in x.items()}
        elif self.weight_decay:
            g = add(g, x, self.weight_decay)
        m = {k: torch.lerp(v, g[k], 1 - one) for k, v in state["first"].items()}
        v = {k: torch.addcmul(v * two, g[k], g[k], value=1 - two) for k, v in state["second"].items()}
        count = torch.stack([state["steps"][k] for k in x]) + 1  # in double precision: 1 - beta^k loses digits
        scales, roots = (lr / (1 - one**count)).unbind(), (1 - two**count).sqrt().unbind()
        new = {
            k: torch.addcmul(w, m[k] / (v[k].sqrt() / root.to(w) + self.eps), -scale.to(w))
            for (k, w), scale, root in zip(x.items(), scales, roots, strict=True)
        }
        return new, {"first": m, "second": v, "steps": dict(zip(x, count.unbind(), strict=True))}


def part_of(state: Slots, names: Collection[str]) -> Slots:
    """Return the part of a state that belongs to some parameters, without the slots that have nothing of them.

    >>> part_of({"momentum": {"a": 1, "b": 2}, "first": {"c": 3}}, {"a"})
    {'momentum': {'a': 1}}
    """
    parts = {slot: split(values, names)[0] for slot, values in state.items()}
    return {slot: values for slot, values in parts.items() if values}


def put_together(state: Slots, new: Slots) -> Slots:
    """Return a state with the values of another one in their places.

    >>> put_together({"momentum": {"a": 1, "b": 2}}, {"momentum": {"b": 3}, "first": {"c": 4}})
    {'momentum': {'a': 1, 'b': 3}, 'first': {'c': 4}}
    """
    return {slot: state.get(slot, {}) | new.get(slot, {}) for slot in (*state, *(new.keys() - state.keys()))}


class RoundRates(NamedTuple):
    """How learning rates change from round to round."""

    decay: float = 1.0  # what they are multiplied by after each round
    end: float | None = None  # where a cosine over all rounds ends, instead
    milestones: tuple[float, ...] = ()  # shares of the rounds after which they are multiplied by gamma
    gamma: float = 1.0
    warmup: int = 0  # rounds in which they rise in equal steps

    def rate(self, lr: float, t: int, rounds: int) -> float:
        """Return a learning rate as it is in round ``t`` of ``rounds``; one of 0 stays 0, wherever a cosine ends.

        >>> [RoundRates(end=0.01).rate(lr, t=9, rounds=10) > 0 for lr in (0.1, 0.0)]
        [True, False]
        >>> [RoundRates(warmup=3).rate(0.4, t, rounds=10) for t in (0, 1, 3, 9)]
        [0.1, 0.2, 0.4, 0.4]
        >>> RoundRates().rate(LARGEST, t=9, rounds=10) == LARGEST  # what may be typed stays possible
        True
        """
        if t < self.warmup:
            lr = lr * ((t + 1) / (self.warmup + 1))
        if self.end is not None:
            return cosine(lr, self.end, t, rounds) if lr else 0.0
        passed = sum(t >= m * rounds - 1e-9 for m in self.milestones)  # 0.07 * 100 is a little above 7
        try:
            lr = lr * self.decay**t * self.gamma**passed
        except OverflowError:
            lr = math.inf
        if lr > LARGEST:
            growing = f"lr_decay={self.decay:g}" if self.decay > 1 else f"lr_gamma={self.gamma}"
            raise UserError(f"lr has grown beyond all numbers in round {t + 1}: choose {growing} lower")
        return lr


def cosine(start: float, end: float, t: int, rounds: int) -> float:
    """Return the value in round ``t`` of half a cosine from ``start`` to ``end`` over all rounds.

    >>> [cosine(0.5, 0.0, t, 100) for t in (0, 50)]
    [0.5, 0.25]
    """
    return end + (start - end) / 2 * (1 + math.cos(math.pi * t / max(rounds, 1)))
