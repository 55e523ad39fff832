"""DFedAlt, DFedSalt and DFedPGP beside their theorems: shared parts travel between peers, personal ones stay."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...topology import Topology
from . import bounds, mixing
from .bounds import Decrease, Smoothness, Steps
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, bound_curve, plain_sgd, running_means
from .quadratic import QuadraticProblem, requested_steps, steps_unless_epochs
from .trajectory import BoundMethod, Runs, Trajectory

QUANTITY = "mean over the first T rounds of Delta_u / L_u + Delta_v / L_v"
HALVINGS = 60  # of a rate, until the inequality of a round leaves half of the descent


class PartialGradients(NamedTuple):
    """What the theorems bound, and what they are made of, at the points where the papers take them."""

    delta_u: Tensor  # [T] |grad_u F(mean u^t, V^(t+1))|^2
    delta_v: Tensor  # [T] (1/m) sum_i |grad_v F_i(u_i^t, v_i^t)|^2
    apart: Tensor  # [T, n] |grad_u F_i(u, v_i^(t+1)) - grad_u F(u, V^(t+1))|^2, whatever u: the Hessian is one


def partial_gradients(problem: QuadraticProblem, run: Trajectory) -> PartialGradients:
    """Compute the partial gradients of one run."""
    d = run.dim
    partial = problem.gradients(run.with_shared(run.center[:-1, :d], run.w[1:]))[..., :d]
    own = problem.gradients(run.w[:-1])[..., d:]
    mean = partial.mean(1, keepdim=True)
    return PartialGradients(mean.square().sum((1, 2)), own.square().sum(2).mean(1), (partial - mean).square().sum(2))


def smoothness(problem: QuadraticProblem) -> Smoothness:
    """Return the constants in closed form: the blocks of the Hessian are diagonal."""
    return Smoothness(*(float(x.abs().max()) for x in (problem.a, problem.c, problem.e)))


def _steps(bound: BoundMethod) -> Steps:
    """Return the two phases of a round."""
    u, v = bound.part("u"), bound.part("v")
    return Steps(u.lr, u.steps, v.lr, v.steps)


def chosen_steps(given: dict[str, Any]) -> dict[str, Any]:
    """Return the lengths of both phases where none are asked for."""
    return {**steps_unless_epochs("personal_steps", 2, given), **steps_unless_epochs("steps", 5, given)}


def _rates(
    L: Smoothness, rounds: int, given: dict[str, Any], decrease: Callable[[Steps], Decrease], most: float = math.inf
) -> dict[str, Any]:
    """Return lr = 1 / (L K sqrt(T)), halved until half of the descent is left; below ``most`` / (L_u K_u)."""
    chosen = chosen_steps(given)
    K_u, K_v = (requested_steps(chosen | given, part) for part in ("", "personal_"))
    s = Steps(1 / (L.u * K_u * rounds**0.5), K_u, 1 / (L.v * K_v * rounds**0.5), K_v)
    s = s._replace(lr_u=given.get("lr", s.lr_u), lr_v=given.get("personal_lr", s.lr_v))
    for _ in range(HALVINGS):
        d = decrease(s)
        if "lr" not in given and (d.shared < s.lr_u * K_u / 4 or s.lr_u * L.u * K_u >= most):
            s = s._replace(lr_u=s.lr_u / 2)
        if "personal_lr" not in given and d.personal < s.lr_v * K_v / 2:
            s = s._replace(lr_v=s.lr_v / 2)
    return {**chosen, "personal": "v", "lr": s.lr_u, "personal_lr": s.lr_v}


def alt_defaults(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return rates for DFedAlt."""
    L, lam = smoothness(problem), mixing.contraction(topology, rounds)
    return _rates(L, rounds, given, lambda s: bounds.alternating(L, s, 0, 0, 0, lam))


def salt_defaults(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return rates for DFedSalt, and a radius that shrinks with the rounds as its theorem wants."""
    L, lam = smoothness(problem), mixing.contraction(topology, rounds)
    chosen = _rates(L, rounds, given, lambda s: bounds.alternating_sam(L, s, 0, 0, 0, 0, lam))
    return {**chosen, "sam": "plain", "rho": rounds**-0.5}


def push_defaults(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return rates for DFedPGP."""
    L, g = smoothness(problem), mixing.push_sum_constants(topology, rounds)
    return _rates(L, rounds, given, lambda s: bounds.alternating_push(L, s, 0, 0, 0, g.C, g.q, g.delta), g.delta / 8)


def compare_alt(
    problem: QuadraticProblem, topology: Topology, bound: BoundMethod, runs: Runs, salt: bool = False
) -> Outcome:
    """Compare DFedAlt, or with a radius DFedSalt, with its theorem."""
    gradients, L, T = [partial_gradients(problem, r) for r in runs], smoothness(problem), len(runs[0].w) - 1
    delta2 = max(float(x.apart.mean(1).max()) for x in gradients)
    lam, sigma2 = mixing.contraction(topology, T), bound.variance(problem)
    constants = (
        Constant("delta", delta2**0.5, SEEN, "partial gradient diversity"),
        Constant("lambda", lam, EXACT, "mixing rate of the graph"),
    )
    conditions: tuple[Condition, ...] = mixing.mixing_conditions(topology, lam, T)
    if salt:
        theorem = "DFedAlt/DFedSalt, Theorem 2, equations 27 and 32"
        d = bounds.alternating_sam(L, _steps(bound), bound.part("u").rho, sigma2, sigma2, delta2, lam)
        shared_only = Condition("the perturbation is on the shared part", not bound.part("v").rho, "leave it so")
        conditions = (*conditions, shared_only, bound.plain_sam)
    else:
        theorem = "DFedAlt/DFedSalt, Theorem 1, equation 19"
        d = bounds.alternating(L, _steps(bound), sigma2, sigma2, delta2, lam)
        conditions = (*conditions, *_as_listed(bound))
    notes = ("The theorem has O(.): the bound is the sum of the inequality of a round, of which its proof is made.",)
    return _outcome(problem, bound, runs, gradients, d, constants, conditions, theorem, notes)


def _as_listed(bound: BoundMethod) -> tuple[Condition, Condition]:
    """Return the conditions of a round as the papers list it: one exchange, and steps that climb nowhere."""
    return (
        Condition("a round has one exchange", bound.program.gossip_steps == 1, "leave gossip_steps out"),
        Condition("steps follow the gradient at the point itself", not bound.part("u").rho, "leave rho out"),
    )


def compare_salt(problem: QuadraticProblem, topology: Topology, bound: BoundMethod, runs: Runs) -> Outcome:
    """Compare DFedSalt with its theorem."""
    return compare_alt(problem, topology, bound, runs, salt=True)


def compare_push(problem: QuadraticProblem, topology: Topology, bound: BoundMethod, runs: Runs) -> Outcome:
    """Compare DFedPGP with its theorem."""
    gradients, L, T = [partial_gradients(problem, r) for r in runs], smoothness(problem), len(runs[0].w) - 1
    g, steps, sigma2 = mixing.push_sum_constants(topology, T), _steps(bound), bound.variance(problem)
    sigma_g2 = max(float(x.apart.max()) for x in gradients)
    d = bounds.alternating_push(L, steps, sigma2, sigma2, sigma_g2, g.C, g.q, g.delta)
    window = mixing.connected_window(topology, T)
    constants = (
        Constant("sigma_g", sigma_g2**0.5, SEEN, "partial gradient diversity of the client farthest off"),
        Constant("C", g.C, EXACT, "push-sum: at most C q^k of a distance is left after k rounds"),
        Constant("q", g.q, EXACT, "of all such pairs, the one with the least C / (1 - q)"),
        Constant("delta", g.delta, EXACT, "the smallest mass mu of any client in any round"),
        Constant("mu_max", float(g.mass.max()), EXACT, "the largest"),
    )
    most = g.delta / (8 * L.u * steps.K_u)
    conditions = (
        *_as_listed(bound),
        Condition("the graphs of some rounds together connect everybody", window is not None, "take a denser graph"),
        Condition(f"lr = {steps.lr_u:.4g} < delta / (8 L_u K_u) = {most:.4g}", steps.lr_u < most, "lower lr"),
    )
    notes, theorem = _push_notes(problem, window, steps), "DFedPGP, Theorem 1, equation 32"
    return _outcome(problem, bound, runs, gradients, d, constants, conditions, theorem, notes)


def _push_notes(problem: QuadraticProblem, window: mixing.Window | None, steps: Steps) -> tuple[str, ...]:
    """Say where DFedPGP's text is open, and what its lemma would give."""
    best = "C and q are the best for the matrices of this run."
    if window is not None:
        lemma = mixing.existence_constants(problem.clients, window, steps.K_u, len(problem.a))
        best += f" The lemma it cites only names C = {lemma.C:.3g} and q = {lemma.q:.6g}, with which no bound is left."
    return (
        "The theorem has O(.): the bound is the sum of equation 32, the inequality of a round.",
        "Delta_v is taken at the ratios z_i = u_i / mu_i, where the gradients are; the theorem prints u_i.",
        best,
    )


def _outcome(
    problem: QuadraticProblem,
    bound: BoundMethod,
    runs: Runs,
    gradients: Sequence[PartialGradients],
    d: Decrease,
    constants: tuple[Constant, ...],
    conditions: tuple[Condition, ...],
    theorem: str,
    notes: tuple[str, ...],
) -> Outcome:
    """Compare the means of the first T rounds with the bound for T."""
    L, steps, noise = smoothness(problem), _steps(bound), bound.variance(problem) ** 0.5
    F0 = problem.value(runs[0].w[0]) - problem.least(personal=True)
    common = (
        Constant("L_u", L.u, EXACT, "Lipschitz constant of grad_u in u"),
        Constant("L_v", L.v, EXACT, "of grad_v in v"),
        Constant("L_uv", L.vu, EXACT, "of grad_u in v, and of grad_v in u"),
        Constant("chi", L.chi, EXACT, "max(L_uv, L_vu) / sqrt(L_u L_v)"),
        Constant("F0", F0, EXACT, "F(mean u^1, V^1) - F*"),
        Constant("sigma_u", noise, EXACT, "deviation of a batch's grad_u"),
        Constant("sigma_v", noise, EXACT, "of its grad_v"),
    )
    k = steps.lr_v * steps.K_v
    conditions = (
        *conditions,
        plain_sgd(bound.program.training),
        Condition(f"lr_v K_v = {k:.4g} <= 1 / (2 L_v) = {1 / (2 * L.v):.4g}", 2 * k * L.v <= 1, "lower personal_lr"),
        Condition(f"the coefficient of Delta_u, {d.shared:.4g}, is above 0", d.shared > 0, "lower lr, or mix better"),
        Condition(f"the coefficient of Delta_v, {d.personal:.4g}, is above 0", d.personal > 0, "lower personal_lr"),
    )
    means = running_means([x.delta_u / L.u + x.delta_v / L.v for x in gradients])
    above = bound_curve(conditions, len(means), lambda t: d.bound(F0, t, L))
    every = (*common, *constants)
    return Outcome(bound.name, theorem, QUANTITY, bound.settings, every, conditions, means, above, None, notes)
