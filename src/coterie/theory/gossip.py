"""DFedSAM and DFedSAM-MGS beside Theorem 4.1."""

from collections.abc import Sequence
from typing import Any

import torch

from ..algorithms.base import Program
from ..topology import Topology
from . import bounds
from .mixing import contraction, phi, symmetric
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, judged, plain
from .played import Bound, Path, PhaseFacts
from .quadratic import ClientObjectives, asked_steps, one_of

NOTES = (
    "Theorem 4.1 bounds every gradient by B on all of R^d, which no quadratic has: B is the largest one at the "
    "beginnings of the rounds.",
    "The bound is equation 7 as printed. Its proof drops L/2 lr^2 K^2 B^2 between equations 22 and 24, a factor K "
    "between 20 and 22, and a factor 2 of alpha: the completed one has them.",
)


def defaults(problem: ClientObjectives, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """The largest rate that the theorem allows."""
    L = float(torch.linalg.eigvalsh(problem.hessian()).max())
    chosen = {"rho": 0.01, **one_of("steps", 5, given)}
    return {**chosen, "lr": 1 / (10 * asked_steps(chosen | given) * L)}


def beside(problem: ClientObjectives, topology: Topology, bound: Bound, paths: Sequence[Path]) -> Outcome:
    """min_t |grad f(mean x^t)|^2 of the first T rounds, and the bound for T."""
    x, T = bound.part("u"), len(paths[0].w) - 1
    norms = torch.stack([_norms(problem, p)[:T] for p in paths]).mean(0)
    constants = _constants(problem, topology, bound.program, paths)
    c = {k.name: k.value for k in constants}
    held = _conditions(topology, bound.program, x, c, T)
    spread2, B2 = c["sigma_g"] ** 2 + c["sigma_l"] ** 2, c["B"] ** 2
    given = c["F0"], c["L"], x.steps, x.lr, x.rho, spread2, B2
    second2, rounds = B2 + c["sigma_l"] ** 2, range(1, T + 1)
    return Outcome(
        method=bound.name,
        theorem="DFedSAM, Theorem 4.1, equation 7",
        quantity="min over the first T rounds of |grad f(mean x)|^2",
        settings=bound.settings,
        constants=constants,
        conditions=held,
        measured=torch.cummin(norms, 0).values.tolist(),
        bound=judged(held, [bounds.sam(*given, c["Phi"], t) for t in rounds]),
        completed=judged(held, [bounds.sam_completed(*given, second2, c["Phi"], t) for t in rounds]),
        notes=NOTES,
    )


def _constants(
    problem: ClientObjectives, topology: Topology, program: Program[Any], paths: Sequence[Path]
) -> tuple[Constant, ...]:
    """What the bound is made of."""
    n, Q, lam = problem.clients, program.gossip_steps, contraction(topology, len(paths[0].w) - 1)
    L = float(torch.linalg.eigvalsh(problem.hessian()).max())
    apart = problem.gradients(problem.minima.mean(0))  # grad f_i - grad f, the same everywhere
    sigma_g, beta = float(apart.square().sum(1).mean().sqrt()), float(apart.norm(dim=1).max())
    B = max(float(problem.gradients(p.w).norm(dim=2).max()) for p in paths)
    F0 = problem.value(paths[0].w[0]) - problem.least(personal=False)
    return (
        Constant("L", L, EXACT, "Lipschitz constant of every gradient: the largest eigenvalue of the Hessian"),
        Constant("F0", F0, EXACT, "f(x^1) - f*"),
        Constant(
            "sigma_l",
            (2 * problem.variance(program.training.batch_size)) ** 0.5,
            EXACT,
            "deviation of a batch's gradient",
        ),
        Constant("sigma_g", sigma_g, EXACT, "deviation of the clients' gradients"),
        Constant("beta", beta, EXACT, "homogeneity parameter: the largest distance of a client's gradient to the mean"),
        Constant("B", B, SEEN, "the largest gradient of a client"),
        Constant("lambda", lam, EXACT, "mixing rate of the graph"),
        Constant("Phi", phi(lam, n, Q), EXACT, f"Phi(lambda, m = {n}, Q = {Q})"),
    )


def _conditions(
    topology: Topology, program: Program[Any], x: PhaseFacts, c: dict[str, float], T: int
) -> tuple[Condition, ...]:
    """What the theorem assumes."""
    lr, lam, most = x.lr, c["lambda"], 1 / (10 * x.steps * c["L"])
    return (
        plain(program.training),
        Condition("every W is symmetric and doubly stochastic", symmetric(topology, T), "take ring, grid or random:K"),
        Condition(f"the graph mixes: lambda = {lam:.4g} < 1", lam < 1, "take a graph in which everybody is reached"),
        Condition("one W for all exchanges of a round", not program.fresh_graph, "leave fresh_graph out"),
        Condition(f"lr = {lr:.4g} <= 1 / (10 K L) = {most:.4g}", lr <= most * (1 + 1e-9), "lower lr"),
    )


def _norms(problem: ClientObjectives, p: Path) -> torch.Tensor:
    """[T + 1] |grad f(mean x^t)|^2: with one Hessian the mean gradient is that at the mean minimum."""
    return problem.gradients(p.center, problem.minima.mean(0)).square().sum(1)
