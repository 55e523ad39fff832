"""FedAvg-P and Scaffold-P beside Theorems 3.7, 3.11 and 4.5."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...training.schedule import Schedule
from ...training.settings import RunSettings
from . import bounds
from .bounds import Cohort
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, bound_curve, plain_sgd, running_means
from .partial import smoothness
from .quadratic import QuadraticProblem, requested_steps, steps_unless_epochs
from .trajectory import BoundMethod, Runs, Trajectory

SLACK = 1 + 1e-9  # of what is computed both ways


class Norms(NamedTuple):
    """What the theorems bound, before every round."""

    shared: Tensor  # [T] G_u = |(1/n) sum_i grad_u f_i(u^t, v_i^t)|^2
    personal: Tensor  # [T] G_v = (1/n) sum_i |grad_v f_i(u^t, v_i^t)|^2
    apart: Tensor  # [T] (1/n) sum_i |grad_u f_i|^2 - G_u


def norms(problem: QuadraticProblem, run: Trajectory) -> Norms:
    """Compute the norms of one run."""
    g = problem.gradients(run.w[:-1])
    u, v = g[..., : run.dim], g[..., run.dim :]
    mean = u.mean(1)
    apart = u.square().sum(2).mean(1) - mean.square().sum(1)
    return Norms(mean.square().sum(1), v.square().sum(2).mean(1), apart)


def cohort(participation: float | int, n: int) -> Cohort:
    """Return how many of n clients take part in a round."""
    return Cohort(len(Schedule(n, participation, RunSettings(rounds=1)).cohort(0)), n)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Return who takes part and how long where that is not asked for."""
    return {"participation": 0.5, "personal": "v", **steps_unless_epochs("steps", 5, given)}


class Start(NamedTuple):
    """What the corollaries make their rates of, at the first model."""

    c: Cohort
    K: int
    L: float
    F0: float
    b2: float
    su2: float
    sv2: float

    @classmethod
    def of(cls, problem: QuadraticProblem, given: dict[str, Any]) -> "Start":
        """Return the constants before there is a run; ``given``: the settings that are asked for."""
        s = _chosen(given) | given
        first = torch.zeros_like(problem.minima)
        g = problem.gradients(first)[:, : len(problem.a)]
        noise = problem.variance(s.get("batch_size"), s.get("replacement", False))
        return cls(
            c=cohort(s["participation"], problem.clients),
            K=requested_steps(s),
            L=smoothness(problem).largest,
            F0=problem.value(first) - problem.least(personal=True),
            b2=float(g.square().sum(1).mean() - g.mean(0).square().sum()),
            su2=noise,
            sv2=0.0 if s.get("exact_personal") else noise,
        )


def rates(problem: QuadraticProblem, given: dict[str, Any], largest: float) -> dict[str, Any]:
    """Return the outer rates of the theorem, and inner ones with gamma = lr outer_lr the ``largest``."""
    chosen = _chosen(given)
    c = cohort((chosen | given)["participation"], problem.clients)
    outer = given.get("outer_lr", math.sqrt(c.m))
    own = given.get("personal_outer_lr", math.sqrt(c.n / c.m))
    gamma = given["lr"] * outer if "lr" in given else largest
    return {**chosen, "outer_lr": outer, "personal_outer_lr": own, "lr": gamma / outer, "personal_lr": gamma / own}


def average_defaults(problem: QuadraticProblem, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return rates with gamma = 1 / (32 L K), or 1 / (84 L K) where the outer rate is one for Theorem 3.11."""
    c = cohort(given.get("participation", 0.5), problem.clients)
    full = c.m == c.n and given.get("outer_lr", 0) >= rounds
    return rates(problem, given, 1 / ((84 if full else 32) * _length(problem, given)))


def scaffold_defaults(problem: QuadraticProblem, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return rates with gamma = min(m / n^(2/3), 1) / (72 L K)."""
    c = cohort(given.get("participation", 0.5), problem.clients)
    return rates(problem, given, min(c.m / c.n ** (2 / 3), 1) / (72 * _length(problem, given)))


def _length(problem: QuadraticProblem, given: dict[str, Any]) -> float:
    """Return L K, which every rate is divided by."""
    return smoothness(problem).largest * requested_steps(_chosen(given) | given)


class Setting(NamedTuple):
    """What all three theorems are made of."""

    norms: Sequence[Norms]  # one per seed
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

    @classmethod
    def of(cls, problem: QuadraticProblem, bound: BoundMethod, runs: Runs) -> "Setting":
        """Return the constants of the bound method and of its runs."""
        u, v, s = bound.part("u"), bound.part("v"), bound.settings
        each, noise = [norms(problem, r) for r in runs], bound.variance(problem)
        return cls(
            norms=each,
            c=cohort(bound.program.participation, problem.clients),
            K=u.steps,
            gamma=u.lr * s["outer_lr"],
            gamma_v=v.lr * s["personal_outer_lr"],
            eta_u=s["outer_lr"],
            eta_v=s["personal_outer_lr"],
            L=smoothness(problem).largest,
            F0=problem.value(runs[0].w[0]) - problem.least(personal=True),
            b2=max(float(x.apart.max()) for x in each),
            B0=float(each[0].apart[0] + each[0].shared[0]),
            su2=noise,
            sv2=0.0 if v.exact else noise,
        )

    def conditions(self, bound: BoundMethod, limit: float, text: str) -> tuple[Condition, ...]:
        """Return what all three theorems assume: equal rates, large outer ones, and gamma below a limit."""
        same = math.isclose(self.gamma, self.gamma_v, rel_tol=1e-9)
        outer, own = self.c.m**0.5, (self.c.n / self.c.m) ** 0.5
        return (
            plain_sgd(bound.program.training),
            Condition(
                f"lr outer_lr = {self.gamma:.4g} equals personal_lr personal_outer_lr = {self.gamma_v:.4g}",
                same,
                f"set personal_lr={self.gamma / self.eta_v:.6g}",
            ),
            Condition(
                f"outer_lr = {self.eta_u:.4g} >= sqrt(m) = {outer:.4g}",
                self.eta_u * SLACK >= outer,
                f"set outer_lr={outer:.4g} and lr lower",
            ),
            Condition(
                f"personal_outer_lr = {self.eta_v:.4g} >= sqrt(n/m) = {own:.4g}",
                self.eta_v * SLACK >= own,
                f"set personal_outer_lr={own:.4g} and personal_lr lower",
            ),
            Condition(f"gamma = {self.gamma:.4g} <= {text} = {limit:.4g}", self.gamma <= limit * SLACK, "lower lr"),
        )


def compare_average(problem: QuadraticProblem, topology: None, bound: BoundMethod, runs: Runs) -> Outcome:
    """Compare FedAvg-P with Theorem 3.11 where all take part and outer_lr is large enough, else with Theorem 3.7."""
    x, T = Setting.of(problem, bound, runs), len(runs[0].w) - 1
    large = max(T, math.sqrt(x.B0 * T / (x.L * x.F0)) if x.F0 else 0.0, math.sqrt(x.c.n))
    full = x.c.m == x.c.n and x.eta_u * SLACK >= large

    def above(t: int) -> float:
        if full:
            return bounds.joint_full(x.F0, x.L, x.K, x.gamma, x.c.n, x.su2, x.sv2, t)
        return bounds.joint(x.F0, x.L, x.K, x.gamma, x.eta_u, x.c, x.b2, x.su2, x.sv2, t)

    theorem, factor = ("3.11", 84) if full else ("3.7", 32)
    conditions = x.conditions(bound, 1 / (factor * x.L * x.K), f"1 / ({factor} L K)")
    return _outcome(x, bound, conditions, above, theorem)


def compare_scaffold(problem: QuadraticProblem, topology: None, bound: BoundMethod, runs: Runs) -> Outcome:
    """Compare Scaffold-P with Theorem 4.5."""
    x = Setting.of(problem, bound, runs)
    most = min(x.c.m / x.c.n ** (2 / 3), 1) / (72 * x.L * x.K)
    exact = bound.settings["c_init"] == "gradient"
    conditions = (
        *x.conditions(bound, most, "min(m / n^(2/3), 1) / (72 L K)"),
        Condition("the control variates begin as gradients", exact, "set c_init=gradient"),
    )

    def above(t: int) -> float:
        return bounds.joint_controlled(x.F0, x.L, x.K, x.gamma, x.c, x.su2, x.sv2, t)

    return _outcome(x, bound, conditions, above, "4.5")


def _outcome(
    x: Setting, bound: BoundMethod, conditions: tuple[Condition, ...], above: Callable[[int], float], theorem: str
) -> Outcome:
    """Compare the means of the first T rounds with the bound for T."""
    constants = (
        Constant("L", x.L, EXACT, "the largest of L_u, L_v, L_uv and L_vu"),
        Constant("F0", x.F0, EXACT, "f(u^0, v^0) - f*"),
        Constant("sigma_u", x.su2**0.5, EXACT, "deviation of a batch's grad_u"),
        Constant("sigma_v", x.sv2**0.5, EXACT, "of its grad_v"),
        Constant("b", x.b2**0.5, SEEN, "gradient dissimilarity: (1/n) sum_i |grad_u f_i|^2 <= b^2 + |grad_u f|^2"),
        Constant("gamma", x.gamma, EXACT, "lr outer_lr"),
    )
    means = running_means([n.shared + x.c.m / x.c.n * n.personal for n in x.norms])
    where = f"FedAvg-P/Scaffold-P, Theorem {theorem}"
    quantity = "mean over the first T rounds of G_u + (m/n) G_v"
    values = bound_curve(conditions, len(means), above)
    return Outcome(bound.name, where, quantity, bound.settings, constants, conditions, means, values)
