"""The server's optimizer: how the common model steps toward the mean of what a cohort has sent."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.annotations import Positive, Range
from ..core.errors import unknown
from ..core.spec import bind, parameters, parse, spelled
from ..core.tensors import Tensors, split, sub, zeros_like
from ..exchange.mixing import interpolate
from ..local.optimizers import Optimizer, Sgd, Slots

Rate = Annotated[float, Range()]
Share = Annotated[float, Range(0, 1, below=True)]


class Adaptive(NamedTuple):
    """FedAdam, FedYogi and FedAdagrad, without a correction of their first steps.

    m <- beta_1 m + (1 - beta_1) g;  x <- x - lr m / (sqrt(v) + tau),  from m = 0 and v = tau^2
    "adam": v <- beta_2 v + (1 - beta_2) g^2;  "yogi": v <- v - (1 - beta_2) g^2 sign(v - g^2);  "adagrad": v <- v + g^2

    Reference: Reddi et al., "Adaptive Federated Optimization", 2021, Algorithm 2.
    """

    second: Literal["adam", "yogi", "adagrad"]
    beta_1: float
    beta_2: float
    tau: float

    def init(self, x: Tensors) -> Slots:
        """Return a mean of zeros and squares of tau^2."""
        return {"first": zeros_like(x), "second": {k: torch.full_like(v, self.tau**2) for k, v in x.items()}}

    def step(self, x: Tensors, g: Tensors, state: Slots, lr: float | Tensor) -> tuple[Tensors, Slots]:
        """Return the next point and the next moments."""
        first = {k: torch.lerp(m, g[k], 1 - self.beta_1) for k, m in state["first"].items()}
        second = {k: self._squares(v, g[k].square()) for k, v in state["second"].items()}
        new = {k: w - lr * first[k] / (second[k].sqrt() + self.tau) for k, w in x.items()}
        return new, {"first": first, "second": second}

    def _squares(self, v: Tensor, square: Tensor) -> Tensor:
        if self.second == "adagrad":
            return v + square
        if self.second == "yogi":
            return v - (1 - self.beta_2) * square * (v - square).sign()
        return self.beta_2 * v + (1 - self.beta_2) * square


@dataclass(frozen=True)
class ServerStep:
    """A step of the common model along g = x - mean, at a rate that stays the same."""

    optimizer: Optimizer | None  # None: x + lr (mean - x), and the mean itself for lr = 1
    lr: float | None  # None: that of the method

    def init(self, x: Tensors) -> Slots:
        """Return the optimizer's first state; ``x``: the parameters that it steps on."""
        return {} if self.optimizer is None else self.optimizer.init(x)

    def __call__(
        self, x: Tensors, mean: Tensors, state: Slots, lr: float, steps_on: Collection[str]
    ) -> tuple[Tensors, Slots]:
        """Return the next model and state; ``lr``: the method's; running statistics become their means."""
        lr = lr if self.lr is None else self.lr
        if self.optimizer is None:
            return interpolate(x, mean, lr), state
        point, target = split(x, steps_on)[0], split(mean, steps_on)[0]
        new, state = self.optimizer.step(point, sub(point, target), state, lr)
        return mean | new, state


def sgd(lr: Rate | None = None) -> ServerStep:
    """Step to the mean, or ``lr`` of the way."""
    return ServerStep(None, lr)


def momentum(lr: Rate | None = None, beta: Share = 0.9) -> ServerStep:
    """FedAvgM: m <- beta m + g;  x <- x - lr m.

    Reference: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019, Section 4.3.
    """
    return ServerStep(Sgd(beta), lr)


def adam(lr: Rate = 0.01, beta_1: Share = 0.9, beta_2: Share = 0.99, tau: Positive = 1e-3) -> ServerStep:
    """FedAdam."""
    return ServerStep(Adaptive("adam", beta_1, beta_2, tau), lr)


def yogi(lr: Rate = 0.01, beta_1: Share = 0.9, beta_2: Share = 0.99, tau: Positive = 1e-3) -> ServerStep:
    """FedYogi."""
    return ServerStep(Adaptive("yogi", beta_1, beta_2, tau), lr)


def adagrad(lr: Rate = 0.01, beta_1: Share = 0.0, tau: Positive = 1e-3) -> ServerStep:
    """FedAdagrad."""
    return ServerStep(Adaptive("adagrad", beta_1, 0.0, tau), lr)


SERVER: Mapping[str, Callable[..., ServerStep]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
    "yogi": yogi,
    "adagrad": adagrad,
}


def server_step(text: str) -> ServerStep:
    """Return the step that a text stands for.

    >>> server_step("momentum:lr=0.5").lr, server_step("sgd").optimizer
    (0.5, None)
    """
    spec = parse(spelled(text, SERVER))
    if spec.name not in SERVER:
        raise unknown("server_optimizer", spec.name, SERVER)
    return SERVER[spec.name](**bind("server_optimizer", spec, parameters(SERVER[spec.name])))
