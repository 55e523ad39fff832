"""FedAvg-P and Scaffold-P beside Theorems 3.7, 3.11 and 4.5."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, stack

from ..training.participation import Participation
from . import bounds
from .bounds import Cohort
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, judged, plain
from .partial import smoothness
from .played import Bound, Path
from .quadratic import ClientObjectives, asked_steps, one_of

SLACK = 1 + 1e-9  # of what is computed both ways


class Norms(NamedTuple):
    """What the theorems bound, before every round."""

    shared: Tensor  # [T] G_u = |(1/n) sum_i grad_u f_i(u^t, v_i^t)|^2
    personal: Tensor  # [T] G_v = (1/n) sum_i |grad_v f_i(u^t, v_i^t)|^2
    apart: Tensor  # [T] (1/n) sum_i |grad_u f_i|^2 - G_u


def norms(problem: ClientObjectives, p: Path) -> Norms:
    """Of one run."""
    g = problem.gradients(p.w[:-1])
    u, v = g[..., : p.dim], g[..., p.dim :]
    mean = u.mean(1)
    apart = u.square().sum(2).mean(1) - mean.square().sum(1)
    return Norms(mean.square().sum(1), v.square().sum(2).mean(1), apart)


def cohort(participation: float | int, n: int) -> Cohort:
    """m of n clients."""
    return Cohort(len(Participation(n, participation, 0, 1, 1).cohort(0)), n)


def _defaults(problem: ClientObjectives, given: dict[str, Any], most: float) -> dict[str, Any]:
    """The outer rates of the theorem, inner ones with gamma = lr outer_lr = personal_lr personal_outer_lr the most."""
    chosen = {"participation": 0.5, "personal": "v", **one_of("steps", 5, given)}
    s = chosen | given
    c = cohort(s["participation"], problem.clients)
    outer = given.get("outer_lr", math.sqrt(c.m))
    own = given.get("personal_outer_lr", math.sqrt(c.n / c.m))
    gamma = given["lr"] * outer if "lr" in given else most / (smoothness(problem).largest * asked_steps(s))
    return {**chosen, "outer_lr": outer, "personal_outer_lr": own, "lr": gamma / outer, "personal_lr": gamma / own}


def average_defaults(problem: ClientObjectives, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """gamma = 1 / (32 L K), or 1 / (84 L K) where the outer rate is one for Theorem 3.11."""
    c = cohort(given.get("participation", 0.5), problem.clients)
    full = c.m == c.n and given.get("outer_lr", 0) >= rounds
    return _defaults(problem, given, 1 / 84 if full else 1 / 32)


def scaffold_defaults(problem: ClientObjectives, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """gamma = min(m / n^(2/3), 1) / (72 L K)."""
    c = cohort(given.get("participation", 0.5), problem.clients)
    return _defaults(problem, given, min(c.m / c.n ** (2 / 3), 1) / 72)


class Setting(NamedTuple):
    """What all three theorems are made of."""

    c: Cohort
    K: int
    gamma: float  # lr outer_lr
    gamma_v: float  # personal_lr personal_outer_lr
    eta_u: float
    eta_v: float
    L: float
    F0: float
    b2: float
    B0: float  # (1/n) sum_i |grad_u f_i(u^0, v_i^0)|^2
    su2: float  # sigma_u^2
    sv2: float  # sigma_v^2
    T: int

    @classmethod
    def of(cls, problem: ClientObjectives, bound: Bound, looks: Sequence[Norms], start: Tensor) -> "Setting":
        """From the bound method and what was seen."""
        u, v, s = bound.part("u"), bound.part("v"), bound.settings
        F0 = problem.value(start) - problem.least(personal=True)
        b2 = max(float(x.apart.max()) for x in looks)
        noise = problem.variance(bound.batch_size)
        first = looks[0]
        return cls(
            cohort(bound.program.participation, problem.clients),
            u.steps,
            u.lr * s["outer_lr"],
            v.lr * s["personal_outer_lr"],
            s["outer_lr"],
            s["personal_outer_lr"],
            smoothness(problem).largest,
            F0,
            b2,
            float(first.apart[0] + first.shared[0]),
            noise,
            0.0 if v.exact else noise,
            len(first.shared),
        )

    def at_most(self, limit: float, text: str) -> Condition:
        """gamma is small enough."""
        return Condition(f"gamma = {self.gamma:.4g} <= {text} = {limit:.4g}", self.gamma <= limit * SLACK, "lower lr")

    def outer(self) -> tuple[Condition, Condition]:
        """The outer rates are large enough."""
        m, n = self.c
        return (
            Condition(
                f"outer_lr = {self.eta_u:.4g} >= sqrt(m) = {m**0.5:.4g}",
                self.eta_u * SLACK >= m**0.5,
                f"set outer_lr={m**0.5:.4g} and lr lower",
            ),
            Condition(
                f"personal_outer_lr = {self.eta_v:.4g} >= sqrt(n/m) = {(n / m) ** 0.5:.4g}",
                self.eta_v * SLACK >= (n / m) ** 0.5,
                f"set personal_outer_lr={(n / m) ** 0.5:.4g} and personal_lr lower",
            ),
        )


def _outcome(
    x: Setting, bound: Bound, looks: Sequence[Norms], held: tuple[Condition, ...], each: list[float], theorem: str
) -> Outcome:
    """The means of the first T rounds beside the bound for T."""
    sums = stack([n.shared + x.c.m / x.c.n * n.personal for n in looks]).mean(0).cumsum(0)
    constants = (
        Constant("L", x.L, EXACT, "the largest of L_u, L_v, L_uv and L_vu"),
        Constant("F0", x.F0, EXACT, "f(u^0, v^0) - f*"),
        Constant("sigma_u", x.su2**0.5, EXACT, "deviation of a batch's grad_u"),
        Constant("sigma_v", x.sv2**0.5, EXACT, "of its grad_v"),
        Constant("b", x.b2**0.5, SEEN, "gradient dissimilarity: (1/n) sum_i |grad_u f_i|^2 <= b^2 + |grad_u f|^2"),
        Constant("gamma", x.gamma, EXACT, "lr outer_lr"),
    )
    means = [float(total) / t for t, total in enumerate(sums, start=1)]
    quantity = "mean over the first T rounds of G_u + (m/n) G_v"
    return Outcome(bound.name, theorem, quantity, bound.settings, constants, held, means, judged(held, each), None, ())


def _common(x: Setting, bound: Bound) -> tuple[Condition, ...]:
    same = math.isclose(x.gamma, x.gamma_v, rel_tol=1e-9)
    text = f"lr outer_lr = {x.gamma:.4g} equals personal_lr personal_outer_lr = {x.gamma_v:.4g}"
    fix = f"set personal_lr={x.gamma / x.eta_v:.6g}"
    return plain(bound.program.training), Condition(text, same, fix), *x.outer()


def average_beside(problem: ClientObjectives, topology: None, bound: Bound, paths: Sequence[Path]) -> Outcome:
    """FedAvg-P: Theorem 3.11 where everybody takes part and outer_lr is as large as it wants, else Theorem 3.7."""
    looks = [norms(problem, p) for p in paths]
    x = Setting.of(problem, bound, looks, paths[0].w[0])
    rounds = range(1, x.T + 1)
    large = max(x.T, math.sqrt(x.B0 * x.T / (x.L * x.F0)) if x.F0 else 0.0, math.sqrt(x.c.n))
    if x.c.m == x.c.n and x.eta_u * SLACK >= large:
        held = (*_common(x, bound), x.at_most(1 / (84 * x.L * x.K), "1 / (84 L K)"))
        each = [bounds.joint_full(x.F0, x.L, x.K, x.gamma, x.c.n, x.su2, x.sv2, t) for t in rounds]
        return _outcome(x, bound, looks, held, each, "FedAvg-P/Scaffold-P, Theorem 3.11")
    held = (*_common(x, bound), x.at_most(1 / (32 * x.L * x.K), "1 / (32 L K)"))
    each = [bounds.joint(x.F0, x.L, x.K, x.gamma, x.eta_u, x.c, x.b2, x.su2, x.sv2, t) for t in rounds]
    return _outcome(x, bound, looks, held, each, "FedAvg-P/Scaffold-P, Theorem 3.7")


def scaffold_beside(problem: ClientObjectives, topology: None, bound: Bound, paths: Sequence[Path]) -> Outcome:
    """Scaffold-P: Theorem 4.5."""
    looks = [norms(problem, p) for p in paths]
    x = Setting.of(problem, bound, looks, paths[0].w[0])
    most = min(x.c.m / x.c.n ** (2 / 3), 1) / (72 * x.L * x.K)
    held = (
        *_common(x, bound),
        x.at_most(most, "min(m / n^(2/3), 1) / (72 L K)"),
        Condition(
            "the control variates begin as gradients", bound.settings["c_init"] == "gradient", "set c_init=gradient"
        ),
    )
    each = [bounds.joint_controlled(x.F0, x.L, x.K, x.gamma, x.c, x.su2, x.sv2, t) for t in range(1, x.T + 1)]
    return _outcome(x, bound, looks, held, each, "FedAvg-P/Scaffold-P, Theorem 4.5")
