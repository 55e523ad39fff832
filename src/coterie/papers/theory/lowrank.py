"""FedLMT beside Theorem 4.5: does the recovered full model converge where its factors are trained?"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.errors import UserError
from . import bounds
from .bounds import Factored
from .matrices import LAYERS, FactorRuns, FactorTrajectory, MatrixProblem
from .outcome import EXACT, SEEN, Condition, Constant, Outcome, bound_curve, plain_sgd, running_means
from .quadratic import local_steps
from .server import cohort
from .trajectory import BoundMethod

NOTES = (
    "The theorem counts local steps, T = rounds x E, and takes the gradient of the recovered mean at each of them.",
    "Its condition is printed with the power 2/(q0 - 1) in Theorem 4.5 and 2/(2 - q0) in D.10; the proof needs the "
    "first. q0 is the smallest that it allows.",
    "The bound is Theorem 4.5 with its O(.) written out as in equation 70. Dividing equation 67 by gamma^q0 / 2 "
    "doubles that part, which the paper leaves out: the completed one has it.",
)


def defaults(problem: MatrixProblem, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return full rank behind one whole layer, from factors of the identity, with everybody in every round."""
    if given.get("epochs") is not None:
        raise UserError("this theorem counts steps: set steps in place of epochs")
    if cohort(given.get("participation", 1.0), problem.clients).m < problem.clients:
        raise UserError("this theorem has everybody in every round: leave participation out")
    form = {"rank_ratio": 1.0, "keep_layers": "front", "init": "spectral"}
    return {**form, "participation": 1.0, "steps": 2, "lr": 0.01}


class Lemma(NamedTuple):
    """Lemma D.5 at the points of the run."""

    psi: float  # the smallest singular value of all mean factors
    fails: int | None  # the first step, counted from 1, at which it does not hold


def lemma(problem: MatrixProblem, run: FactorTrajectory) -> Lemma:
    """Check |grad g_l|^2 >= (smin(U)^2 + smin(V)^2) |grad f_l|^2 for the layers in factors.

    The lemma is false where the rank is below the dimension and the gradient has a part that the factors do not reach:
    for V^T with fewer rows than columns, smin(V) |X| <= |X V| does not hold.
    """
    psi, holds = math.inf, torch.ones(len(run.W), dtype=torch.bool)
    for U, V, layer in run.factors(run.mean):
        grad = problem.smoothness * (run.W[:, layer] - problem.targets[:, layer].mean(0))
        small = [torch.linalg.svdvals(F)[:, -1] for F in (U, V)]
        psi = min(psi, *(float(s.min()) for s in small))
        below = (small[0] ** 2 + small[1] ** 2) * grad.square().sum((1, 2))
        above = (grad @ V).square().sum((1, 2)) + (grad.mT @ U).square().sum((1, 2))
        holds &= above >= below * (1 - 1e-9)
    wrong = (~holds).nonzero()
    return Lemma(psi, int(wrong[0]) + 1 if len(wrong) else None)


def moments(problem: MatrixProblem, run: FactorTrajectory) -> tuple[float, float]:
    """Return G^2 = sup sqrt(E |grad F_i|^4) and G_g^2 = sup E |grad G_i|^2, of single samples along the run."""
    G2 = Gg2 = 0.0
    factors = run.factors(run.own)
    kept = [i for i in range(len(LAYERS)) if i not in [layer for *_, layer in factors]]
    for t, W in enumerate(run.everybody):
        each = (problem.smoothness * (W - problem.targets))[:, None] - problem.xi  # [n, N, 2, d, d]
        G2 = max(G2, float(each.square().sum((2, 3, 4)).square().mean(1).max().sqrt()))
        total = each[:, :, kept].square().sum((2, 3, 4))
        for U, V, layer in factors:
            grad = each[:, :, layer]
            total = total + (grad @ V[t][:, None]).square().sum((2, 3))
            total = total + (grad.mT @ U[t][:, None]).square().sum((2, 3))
        Gg2 = max(Gg2, float(total.mean(1).max()))
    return G2, Gg2


def curvature(problem: MatrixProblem, run: FactorTrajectory) -> float:
    """Return the largest eigenvalue of the clients' Hessians of g at the first, middle and last mean, and of f."""
    largest = problem.smoothness
    for U, V, layer in run.factors(run.mean):
        for t in sorted({0, len(U) // 2, len(U) - 1}):
            for target in problem.targets[:, layer]:
                H = _hessian(problem, torch.stack([U[t], V[t]]), target)
                largest = max(largest, float(torch.linalg.eigvalsh(H).abs().max()))
    return largest


def _hessian(problem: MatrixProblem, factors: Tensor, target: Tensor) -> Tensor:
    """Return the Hessian of g in both factors, for one layer of one client."""

    def g(x: Tensor) -> Tensor:
        return problem.smoothness / 2 * (x[0] @ x[1].T - target).square().sum()

    # Backwards twice: forward mode would load parts of torch that warn.
    H: Tensor = torch.func.jacrev(torch.func.jacrev(g))(factors)
    return H.reshape(factors.numel(), factors.numel())


def factored_constants(problem: MatrixProblem, bound: BoundMethod, runs: FactorRuns) -> Factored:
    """Return the constants of the bound."""
    each = [moments(problem, r) for r in runs]
    factors = [(U, V, r.everybody[:, :, layer]) for r in runs for U, V, layer in r.factors(r.own)]
    norms = [[float(x.square().sum((-2, -1)).max().sqrt()) for x in three] for three in factors]
    kappa_u, kappa_v, kappa_uv = (max((three[k] for three in norms), default=0.0) for k in range(3))
    return Factored(
        layers=len(LAYERS),
        rho=len(LAYERS) - len(runs[0].pairs),
        N=problem.clients,
        E=local_steps(bound.program.phases[0].amount, bound.batch_size),
        L_s=max(curvature(problem, r) for r in runs),
        sigma2=bound.variance(problem),
        G2=max(G2 for G2, _ in each),
        Gg2=max(Gg2 for _, Gg2 in each),
        kappa_u=kappa_u,
        kappa_v=kappa_v,
        kappa_uv=kappa_uv,
    )


def _expected_start(init: str, run: FactorTrajectory) -> tuple[Constant, ...]:
    """Return the psi to expect at the start, where the factors are drawn from N(0, 2 / rows) and N(0, 2 / rank)."""
    if init != "kaiming" or not run.pairs:
        return ()
    rows, rank = run.mean[0][run.pairs[0][0]].shape
    edges = [bounds.marchenko_pastur(rows, min(rank, rows), variance)[0] for variance in (2 / rows, 2 / rank)]
    return (Constant("psi_0", min(edges), EXACT, "what Marchenko-Pastur expects psi to be at the start"),)


def smallest_power(gamma: float, psi: float) -> float:
    """Return the least q0 above 1 with gamma^(q0 - 1) <= psi^2; 2 and more: there is none.

    >>> smallest_power(0.01, 0.5), smallest_power(0.01, 1.5)
    (1.3010299956639813, 1.0)
    """
    if not 0 < gamma < 1 or psi <= 0:
        return math.inf
    return 1 + max(0.0, 2 * math.log(psi) / math.log(gamma)) if psi < 1 else 1.0


def compare(problem: MatrixProblem, topology: None, bound: BoundMethod, runs: FactorRuns) -> Outcome:
    """Compare the mean of |grad f(recovered w)|^2 over the first T steps with the bound for T."""
    c, gamma = factored_constants(problem, bound, runs), bound.program.phases[0].lr
    lemmas = [lemma(problem, r) for r in runs]
    psi, fails = min(x.psi for x in lemmas), min((x.fails for x in lemmas if x.fails is not None), default=None)
    q0 = smallest_power(gamma, psi)
    conditions = _conditions(bound, gamma, c, psi, q0, fails)
    F0 = problem.value(runs[0].W[0]) - problem.least()
    gradients = [problem.smoothness * (r.W - problem.targets.mean(0)) for r in runs]
    means = running_means([g.square().sum((1, 2, 3)) for g in gradients])
    constants = (
        *_constants(c, F0, psi),
        *_expected_start(bound.settings["init"], runs[0]),
        Constant("q0", q0, EXACT, "the power of gamma in the bound"),
        Constant("C_1", c.slope(gamma, q0), SEEN, "Corollary 4.6: what one more whole layer adds to the bound"),
    )
    return Outcome(
        bound.name,
        "FedLMT/pFedLMT, Theorem 4.5",
        "mean over the first T local steps of |grad f(recovered w)|^2",
        bound.settings,
        constants,
        conditions,
        means,
        bound_curve(conditions, len(means), lambda t: bounds.low_rank(c, F0, gamma, q0, t)),
        bound_curve(conditions, len(means), lambda t: bounds.low_rank(c, F0, gamma, q0, t, completed=True)),
        NOTES,
    )


def _constants(c: Factored, F0: float, psi: float) -> tuple[Constant, ...]:
    at = "at the first, middle and last step"
    return (
        Constant("L_s", c.L_s, SEEN, f"Lipschitz constant of the gradients of f and g, {at}"),
        Constant("F0", F0, EXACT, "f(w^0) - f*"),
        Constant("sigma", c.sigma2**0.5, EXACT, "deviation of a batch's gradient of f"),
        Constant("G", c.G2**0.5, SEEN, "E |grad F|^4 <= G^4"),
        Constant("G_g", c.Gg2**0.5, SEEN, "E |grad G|^2 <= G_g^2, of the factors"),
        Constant("kappa_u", c.kappa_u, SEEN, "the largest |U|"),
        Constant("kappa_v", c.kappa_v, SEEN, "the largest |V|"),
        Constant("kappa_uv", c.kappa_uv, SEEN, "the largest |U V^T|"),
        Constant("psi", psi, SEEN, "the smallest singular value of the mean factors"),
    )


def _conditions(
    bound: BoundMethod, gamma: float, c: Factored, psi: float, q0: float, fails: int | None
) -> tuple[Condition, ...]:
    """Return what the theorem and its proof assume."""
    most = min(1 / c.L_s, 1)
    lemma_text = "Lemma D.5, of which the proof is made, holds on the way"
    where = "" if fails is None else f": it fails at step {fails}"
    return (
        plain_sgd(bound.program.training),
        Condition("no regularizer is in the loss", bound.settings["regularizer"] == "none", "leave regularizer out"),
        Condition(f"gamma = lr = {gamma:.4g} <= min(1 / L_s, 1) = {most:.4g}", gamma <= most, "lower lr"),
        Condition(f"gamma^(q0 - 1) <= psi^2 with q0 < 2: psi = {psi:.4g}", q0 < 2, "lower lr, or take another init"),
        Condition(lemma_text + where, fails is None, "raise rank_ratio to 1"),
    )
