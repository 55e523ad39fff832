"""DFedSAM and DFedSAM-MGS beside Theorem 4.1."""

from typing import Any

import torch

from ...topology import Topology
from . import bounds
from .mixing import contraction, mixing_conditions, phi
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, bound_curve, plain_sgd
from .quadratic import QuadraticProblem, requested_steps, steps_unless_epochs
from .trajectory import BoundMethod, Runs

NOTES = (
    "Theorem 4.1 bounds every gradient by B on all of R^d, which no quadratic has: B is the largest one at the "
    "beginnings of the rounds.",
    "The bound is equation 7 as printed. Its proof drops L/2 lr^2 K^2 B^2 between equations 22 and 24, a factor K "
    "between 20 and 22, and a factor 2 of alpha: the completed one has them.",
)


def defaults(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return the largest rate that the theorem allows."""
    L = float(torch.linalg.eigvalsh(problem.hessian()).max())
    chosen = {"rho": 0.01, **steps_unless_epochs("steps", 5, given)}
    return {**chosen, "lr": 1 / (10 * requested_steps(chosen | given) * L)}


def compare(problem: QuadraticProblem, topology: Topology, bound: BoundMethod, runs: Runs) -> Outcome:
    """Compare min_t |grad f(mean x^t)|^2 of the first T rounds with the bound for T."""
    x, T = bound.part("u"), len(runs[0].w) - 1
    # With one Hessian the mean gradient is that at the mean minimum.
    norms = [problem.gradients(r.center, problem.minima.mean(0)).square().sum(1)[:T] for r in runs]
    constants = _constants(problem, topology, bound, runs)
    c = {k.name: k.value for k in constants}
    most = 1 / (10 * x.steps * c["L"])
    conditions = (
        plain_sgd(bound.program.training),
        bound.plain_sam,
        *mixing_conditions(topology, c["lambda"], T),
        Condition("one W for all exchanges of a round", not bound.program.fresh_graph, "leave fresh_graph out"),
        Condition(f"lr = {x.lr:.4g} <= 1 / (10 K L) = {most:.4g}", x.lr <= most * (1 + 1e-9), "lower lr"),
    )
    spread2, B2, second2 = c["sigma_g"] ** 2 + c["sigma_l"] ** 2, c["B"] ** 2, c["B"] ** 2 + c["sigma_l"] ** 2
    given = c["F0"], c["L"], x.steps, x.lr, x.rho, spread2, B2
    return Outcome(
        bound.name,
        "DFedSAM, Theorem 4.1, equation 7",
        "min over the first T rounds of |grad f(mean x)|^2",
        bound.settings,
        constants,
        conditions,
        torch.cummin(torch.stack(norms).mean(0), 0).values.tolist(),
        bound_curve(conditions, T, lambda t: bounds.sam(*given, c["Phi"], t)),
        bound_curve(conditions, T, lambda t: bounds.sam_completed(*given, second2, c["Phi"], t)),
        NOTES,
    )


def _constants(problem: QuadraticProblem, topology: Topology, bound: BoundMethod, runs: Runs) -> tuple[Constant, ...]:
    n, Q, lam = problem.clients, bound.program.gossip_steps, contraction(topology, len(runs[0].w) - 1)
    L = float(torch.linalg.eigvalsh(problem.hessian()).max())
    sigma_l = (2 * bound.variance(problem)) ** 0.5
    apart = problem.gradients(problem.minima.mean(0))  # grad f_i - grad f, the same everywhere
    sigma_g, beta = float(apart.square().sum(1).mean().sqrt()), float(apart.norm(dim=1).max())
    B = max(float(problem.gradients(r.w).norm(dim=2).max()) for r in runs)
    F0 = problem.value(runs[0].w[0]) - problem.least(personal=False)
    return (
        Constant("L", L, EXACT, "Lipschitz constant of every gradient: the largest eigenvalue of the Hessian"),
        Constant("F0", F0, EXACT, "f(x^1) - f*"),
        Constant("sigma_l", sigma_l, EXACT, "deviation of a batch's gradient"),
        Constant("sigma_g", sigma_g, EXACT, "deviation of the clients' gradients"),
        Constant("beta", beta, EXACT, "homogeneity parameter: the largest distance of a client's gradient to the mean"),
        Constant("B", B, SEEN, "the largest gradient of a client"),
        Constant("lambda", lam, EXACT, "mixing rate of the graph"),
        Constant("Phi", phi(lam, n, Q), EXACT, f"Phi(lambda, m = {n}, Q = {Q})"),
    )
