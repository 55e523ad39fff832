"""What a row of laws is made of, and the arithmetic of closed forms: numpy alone, nothing of the package."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toys import A, B, C, D

Floats = NDArray[np.float64]
Settings = dict[str, Any]

COMMON: Settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "clip": 1.0, "batch_size": 4, "lr_decay": 0.9}
TWICE: Settings = {**COMMON, "epochs": 2}


class Reduction(NamedTuple):
    """Special values that collapse a method into another one."""

    says: str  # what the name of the method is the subject of
    left: Settings
    right: tuple[str, Settings]
    tolerance: float = 0.0  # 0: to the last bit
    by_construction: bool = False  # both sides run the same code on the same phases: this pins wiring, not mathematics
    base: Settings = TWICE  # what both sides have beside


def identity(says: str, left: Settings, right: tuple[str, Settings], base: Settings = TWICE) -> Reduction:
    """A reduction by construction."""
    return Reduction(says, left, right, by_construction=True, base=base)


class ClosedForm(NamedTuple):
    """What everybody's model is on the golden quadratic, with lr 0.1 and two steps a round unless settings say more."""

    settings: Settings
    after: Callable[[int], tuple[Floats, Floats]]  # rounds -> (u, v), a number for each of the four clients


class Law(NamedTuple):
    """All that the tests know of one method."""

    method: str
    cases: dict[str, Settings]  # beside the common ones; every law runs over all of them; the first has few settings
    closed_form: ClosedForm | str  # or the test that has it: file::name, where it takes more than the quadratic
    reductions: tuple[Reduction, ...] = ()
    stateless: tuple[str, ...] = ()  # cases where clients keep nothing from one round to the next
    staged: bool = False  # whether it trains networks that are built in stages


LR, STEPS = 0.1, 2
a, b, c, d = (np.array(x) for x in (A, B, C, D))
RING = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
# Directed: 0 -> {1, 2}, 1 -> {2}, 2 -> {0, 3}, 3 -> {0}, everybody keeps a share; columns sum to 1.
PUSH = np.array([[1 / 3, 0, 1 / 3, 1 / 2], [1 / 3, 1 / 2, 0, 0], [1 / 3, 1 / 2, 1 / 3, 0], [0, 0, 1 / 3, 1 / 2]])


def each_round(step: Callable[..., tuple[Any, ...]], *more: Any) -> Callable[[int], tuple[Floats, Floats]]:
    """Repeats ``step(u, v, *more)``, from where everybody begins; what it returns begins with the models, too."""

    def after(rounds: int) -> tuple[Floats, Floats]:
        state: tuple[Any, ...] = (np.full(4, 0.5), np.full(4, 1.0), *more)
        for _ in range(rounds):
            state = step(*state)
        return state[0], state[1]

    return after


def descend(x: Floats, curvature: Any, minimum: Any, lr: Any = LR, steps: int = STEPS) -> Floats:
    """Where gradient descent on curvature/2 (x - minimum)^2 ends: what is left of the distance shrinks by a factor."""
    end: Floats = minimum + (1 - lr * curvature) ** steps * (x - minimum)
    return end


def down_u(u: Floats, lr: Any = LR, steps: int = STEPS) -> Floats:
    return descend(u, a, b, lr, steps)


def down_v(v: Floats, lr: Any = LR, steps: int = STEPS) -> Floats:
    return descend(v, c, d, lr, steps)


def mean(x: Floats) -> Floats:
    """What a server makes of it that counts everybody alike."""
    return np.full(4, x.mean())


def adaptive(x: Floats, slope: Floats, lowest: Floats, rho: float, eta: float = 0.0) -> Floats:
    """The gradient where adaptive SAM looks in one dimension: rho (|x| + eta) uphill."""
    gradient: Floats = slope * (x + rho * (np.abs(x) + eta) * np.sign(x - lowest) - lowest)
    return gradient


def sharp(u: Floats, v: Floats, rho: float) -> tuple[Floats, Floats]:
    """Two steps along the gradients at rho away, uphill; the length is that of both together."""
    for _ in range(STEPS):
        g, h = a * (u - b), c * (v - d)
        length = np.sqrt(g**2 + h**2)
        u, v = u - LR * a * (u + rho * g / length - b), v - LR * c * (v + rho * h / length - d)
    return u, v
