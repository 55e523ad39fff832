"""DFedAlt, DFedSalt and DFedPGP beside their theorems: shared parts travel between peers, personal ones stay."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, stack

from ..topology import Topology
from . import bounds
from .bounds import Decrease, Smoothness, Steps
from .mixing import Window, connected_window, contraction, existence_constants, push_sum_constants, symmetric
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, judged, plain
from .played import Bound, Path
from .quadratic import ClientObjectives, asked_steps, one_of

QUANTITY = "mean over the first T rounds of Delta_u / L_u + Delta_v / L_v"
HALVINGS = 60  # of a rate, until the inequality of a round leaves half of the descent


class Sampled(NamedTuple):
    """What the theorems bound, and what they are made of, at the points where the papers take them."""

    delta_u: Tensor  # [T] |grad_u F(mean u^t, V^(t+1))|^2
    delta_v: Tensor  # [T] (1/m) sum_i |grad_v F_i(u_i^t, v_i^t)|^2
    apart: Tensor  # [T, n] |grad_u F_i(u, v_i^(t+1)) - grad_u F(u, V^(t+1))|^2, whatever u: the Hessian is one


def seen(problem: ClientObjectives, p: Path) -> Sampled:
    """Of one run."""
    d = p.dim
    partial = problem.gradients(p.with_shared(p.center[:-1, :d], p.w[1:]))[..., :d]
    own = problem.gradients(p.w[:-1])[..., d:]
    mean = partial.mean(1, keepdim=True)
    return Sampled(mean.square().sum((1, 2)), own.square().sum(2).mean(1), (partial - mean).square().sum(2))


def smoothness(problem: ClientObjectives) -> Smoothness:
    """In closed form: the blocks of the Hessian are diagonal."""
    return Smoothness(*(float(x.abs().max()) for x in (problem.a, problem.c, problem.e)))


def steps_of(bound: Bound) -> Steps:
    """The two phases of a round."""
    u, v = bound.part("u"), bound.part("v")
    return Steps(u.lr, u.steps, v.lr, v.steps)


def rates(
    L: Smoothness, rounds: int, given: dict[str, Any], decrease: Callable[[Steps], Decrease], most: float = math.inf
) -> dict[str, Any]:
    """lr = 1 / (L K sqrt(T)) for both parts, halved until half of the descent is left; below ``most`` / (L_u K_u)."""
    chosen = {**one_of("personal_steps", 2, given), **one_of("steps", 5, given), "personal": "v"}
    K_u, K_v = (asked_steps(chosen | given, part) for part in ("", "personal_"))
    s = Steps(1 / (L.u * K_u * rounds**0.5), K_u, 1 / (L.v * K_v * rounds**0.5), K_v)
    s = s._replace(lr_u=given.get("lr", s.lr_u), lr_v=given.get("personal_lr", s.lr_v))
    for _ in range(HALVINGS):
        d = decrease(s)
        if "lr" not in given and (d.shared < s.lr_u * K_u / 4 or s.lr_u * L.u * K_u >= most):
            s = s._replace(lr_u=s.lr_u / 2)
        if "personal_lr" not in given and d.personal < s.lr_v * K_v / 2:
            s = s._replace(lr_v=s.lr_v / 2)
    return {**chosen, "lr": s.lr_u, "personal_lr": s.lr_v}


def gossip_defaults(
    problem: ClientObjectives, topology: Topology, rounds: int, given: dict[str, Any]
) -> dict[str, Any]:
    """Rates for DFedAlt."""
    L, lam = smoothness(problem), contraction(topology, rounds)
    return rates(L, rounds, given, lambda s: bounds.alternating(L, s, 0, 0, 0, lam))


def salt_defaults(problem: ClientObjectives, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Rates for DFedSalt, and a radius that shrinks with the rounds as its theorem wants."""
    L, lam = smoothness(problem), contraction(topology, rounds)
    chosen = rates(L, rounds, given, lambda s: bounds.alternating_sam(L, s, 0, 0, 0, 0, lam))
    return {**chosen, "rho": rounds**-0.5}


def push_defaults(problem: ClientObjectives, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Rates for DFedPGP."""
    L, g = smoothness(problem), push_sum_constants(topology, rounds)
    return rates(L, rounds, given, lambda s: bounds.alternating_push(L, s, 0, 0, 0, g.C, g.q, g.delta), g.delta / 8)


def _outcome(
    problem: ClientObjectives,
    bound: Bound,
    looks: Sequence[Sampled],
    F0: float,
    d: Decrease,
    constants: tuple[Constant, ...],
    conditions: tuple[Condition, ...],
    theorem: str,
    notes: tuple[str, ...],
) -> Outcome:
    """The means of the first T rounds beside the bound for T."""
    L = smoothness(problem)
    each = stack([x.delta_u / L.u + x.delta_v / L.v for x in looks]).mean(0)
    T = len(each)
    means = [float(x) / t for t, x in enumerate(each.cumsum(0), start=1)]
    steps = steps_of(bound)
    k = steps.lr_v * steps.K_v
    left = (
        plain(bound.program.training),
        Condition(f"lr_v K_v = {k:.4g} <= 1 / (2 L_v) = {1 / (2 * L.v):.4g}", 2 * k * L.v <= 1, "lower personal_lr"),
        Condition(f"the coefficient of Delta_u, {d.shared:.4g}, is above 0", d.shared > 0, "lower lr, or mix better"),
        Condition(f"the coefficient of Delta_v, {d.personal:.4g}, is above 0", d.personal > 0, "lower personal_lr"),
    )
    held = (*conditions, *left)
    above = judged(held, [d.bound(F0, t, L) for t in range(1, T + 1)])
    known = (*_common(problem, bound.batch_size, F0), *constants)
    return Outcome(bound.name, theorem, QUANTITY, bound.settings, known, held, means, above, None, notes)


def _common(problem: ClientObjectives, batch_size: int | None, F0: float) -> tuple[Constant, ...]:
    """The constants that all three theorems have."""
    L, noise = smoothness(problem), problem.variance(batch_size) ** 0.5
    return (
        Constant("L_u", L.u, EXACT, "Lipschitz constant of grad_u in u"),
        Constant("L_v", L.v, EXACT, "of grad_v in v"),
        Constant("L_uv", L.vu, EXACT, "of grad_u in v, and of grad_v in u"),
        Constant("chi", L.chi, EXACT, "max(L_uv, L_vu) / sqrt(L_u L_v)"),
        Constant("F0", F0, EXACT, "F(mean u^1, V^1) - F*"),
        Constant("sigma_u", noise, EXACT, "deviation of a batch's grad_u"),
        Constant("sigma_v", noise, EXACT, "of its grad_v"),
    )


def _start(problem: ClientObjectives, paths: Sequence[Path]) -> float:
    """F(mean u^1, V^1) - F*."""
    return problem.value(paths[0].w[0]) - problem.least(personal=True)


def gossip_beside(
    problem: ClientObjectives, topology: Topology, bound: Bound, paths: Sequence[Path], salt: bool = False
) -> Outcome:
    """DFedAlt, or with a radius DFedSalt."""
    looks, L, T = [seen(problem, p) for p in paths], smoothness(problem), len(paths[0].w) - 1
    delta2 = max(float(x.apart.mean(1).max()) for x in looks)
    lam, sigma2 = contraction(topology, T), problem.variance(bound.batch_size)
    d = (
        bounds.alternating_sam(L, steps_of(bound), bound.part("u").rho, sigma2, sigma2, delta2, lam)
        if salt
        else bounds.alternating(L, steps_of(bound), sigma2, sigma2, delta2, lam)
    )
    constants = (
        Constant("delta", delta2**0.5, SEEN, "partial gradient diversity"),
        Constant("lambda", lam, EXACT, "mixing rate of the graph"),
    )
    conditions = [
        Condition("every W is symmetric and doubly stochastic", symmetric(topology, T), "take ring, grid or random:K"),
        Condition(f"the graph mixes: lambda = {lam:.4g} < 1", lam < 1, "take a graph in which everybody is reached"),
    ]
    if salt:
        conditions.append(Condition("the perturbation is on the shared part", not bound.part("v").rho, "leave it so"))
    theorem = "DFedAlt/DFedSalt, Theorem 2, equations 27 and 32" if salt else "DFedAlt/DFedSalt, Theorem 1, equation 19"
    notes = ("The theorem has O(.): the bound is the sum of the inequality of a round, of which its proof is made.",)
    return _outcome(problem, bound, looks, _start(problem, paths), d, constants, tuple(conditions), theorem, notes)


def salt_beside(problem: ClientObjectives, topology: Topology, bound: Bound, paths: Sequence[Path]) -> Outcome:
    """DFedSalt."""
    return gossip_beside(problem, topology, bound, paths, salt=True)


def push_beside(problem: ClientObjectives, topology: Topology, bound: Bound, paths: Sequence[Path]) -> Outcome:
    """DFedPGP."""
    looks, L, T = [seen(problem, p) for p in paths], smoothness(problem), len(paths[0].w) - 1
    g, steps, sigma2 = push_sum_constants(topology, T), steps_of(bound), problem.variance(bound.batch_size)
    sigma_g2 = max(float(x.apart.max()) for x in looks)
    d = bounds.alternating_push(L, steps, sigma2, sigma2, sigma_g2, g.C, g.q, g.delta)
    window = connected_window(topology, T)
    constants = (
        Constant("sigma_g", sigma_g2**0.5, SEEN, "partial gradient diversity of the client farthest off"),
        Constant("C", g.C, EXACT, "push-sum: at most C q^k of a distance is left after k rounds"),
        Constant("q", g.q, EXACT, "of all such pairs, the one with the least C / (1 - q)"),
        Constant("delta", g.delta, EXACT, "the smallest mass mu of any client in any round"),
        Constant("mu_max", float(g.mass.max()), EXACT, "the largest"),
    )
    most = g.delta / (8 * L.u * steps.K_u)
    conditions = (
        Condition("the graphs of some rounds together connect everybody", window is not None, "take a denser graph"),
        Condition(f"lr = {steps.lr_u:.4g} < delta / (8 L_u K_u) = {most:.4g}", steps.lr_u < most, "lower lr"),
    )
    notes = _notes(problem, window, steps)
    return _outcome(
        problem,
        bound,
        looks,
        _start(problem, paths),
        d,
        constants,
        conditions,
        "DFedPGP, Theorem 1, equation 32",
        notes,
    )


def _notes(problem: ClientObjectives, window: Window | None, steps: Steps) -> tuple[str, ...]:
    """Where DFedPGP's text is open, and what its lemma would give."""
    notes = [
        "The theorem has O(.): the bound is the sum of equation 32, the inequality of a round.",
        "Delta_v is taken at the ratios z_i = u_i / mu_i, where the gradients are; the theorem prints u_i.",
        "C and q are the best for the matrices of this run.",
    ]
    if window is not None:
        named = existence_constants(problem.clients, window, steps.K_u, len(problem.a))
        notes[2] += (
            f" The lemma it cites only names C = {named.C:.3g} and q = {named.q:.6g}, with which no bound is left."
        )
    return tuple(notes)
