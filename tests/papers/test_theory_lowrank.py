"""FedLMT's theorem: the gradient of the recovered model, kappas, psi, and where the bound is void."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.base import Problem
from coterie.core.errors import UserError
from coterie.papers.theory import bounds, examine
from coterie.papers.theory.bounds import Factored, marchenko_pastur
from coterie.papers.theory.lowrank import curvature, factored_constants, lemma, moments, smallest_power
from coterie.papers.theory.matrices import FactorTrajectory, MatrixProblem, matrices, run_factors
from coterie.papers.theory.trajectory import BoundMethod
from helpers_cli import Cli

C = Factored(layers=5, rho=2, N=7, E=3, L_s=1.7, sigma2=0.3, G2=1.9, Gg2=2.3, kappa_u=1.1, kappa_v=1.3, kappa_uv=1.2)
PLAIN: dict[str, Any] = {
    "momentum": 0.0,
    "weight_decay": 0.0,
    "lr_decay": 1.0,
    "participation": 1.0,
    "batch_size": 1,
    "init": "spectral",
    "keep_layers": "front",
}


def run(problem: MatrixProblem, rounds: int = 3, **settings: Any) -> tuple[BoundMethod, FactorTrajectory]:
    alg = ct.algorithms.fedlmt(**{**PLAIN, "rank_ratio": 0.5, "steps": 3, "lr": 0.05, **settings})
    program = alg.bind(Problem(alg.adapt(problem.model), problem.clients, rounds, seed=0))
    return BoundMethod(alg.name, program, dict(alg.settings)), run_factors(problem, alg, rounds, seed=0)


def _equation_70(c: Factored, g: float) -> float:
    """Typed once more from the paper."""
    L, rho, N, E, Ls, s2, G2, Gg2, ku, kv, kuv = c
    both, cross = ku**4 + kv**4, kuv**2 + ku**2 * kv**2 * (N - 1) ** 2
    total = g**2 * (Ls * s2 / (2 * N) + 1.5 * Ls * (L - rho) * G2 * both + (L - rho) * G2**2 / N**2 * cross)
    total += g**3 * (2 * rho * Ls**2 * E**2 * G2 + 6 * (L - rho) * Ls**2 * E**2 * G2 * both + 4 * Ls**2 * E**2 * Gg2)
    total += g**4 * 3 * Ls * (L - rho) * G2**2 / N**2 * cross
    return total + g**5 * 3 * (L - rho) * Ls**2 * E**4 * G2**2 * both


def test_the_bound_is_equation_70_over_gamma_to_the_q0() -> None:
    g, q0 = 0.02, 1.3
    assert C.floor(g) == pytest.approx(_equation_70(C, g), rel=1e-12)
    assert bounds.low_rank(C, 4.0, g, q0, 50) == pytest.approx((2 * 4.0 / 50 + _equation_70(C, g)) / g**q0, rel=1e-12)
    assert bounds.low_rank(C, 0.0, g, q0, 50, completed=True) == pytest.approx(
        2 * _equation_70(C, g) / g**q0, rel=1e-12
    )


def test_the_bound_is_linear_in_the_whole_layers_and_falls_with_them() -> None:
    """Corollary 4.6: C_1 rho + C_2, with C_1 < 0 for gamma < 3 (kappa_u^4 + kappa_v^4) / (4 L_s E^2)."""
    q0 = 1.2
    small = 3 * (C.kappa_u**4 + C.kappa_v**4) / (4 * C.L_s * C.E**2)
    for g in (0.9 * small, small / 100):
        each = [bounds.low_rank(C._replace(rho=rho), 1.0, g, q0, 9) for rho in range(6)]
        np.testing.assert_allclose(np.diff(each), C.slope(g, q0), rtol=1e-9)
        assert C.slope(g, q0) < 0
    few = C._replace(kappa_u=0.1, kappa_v=0.1, kappa_uv=0.1)
    assert few.slope(0.5, q0) > 0  # a large rate and small factors: whole layers only add


def test_q0_is_the_smallest_that_the_proof_allows() -> None:
    for gamma, psi in ((0.01, 0.5), (1e-4, 0.02)):
        q0 = smallest_power(gamma, psi)
        assert gamma ** (q0 - 1) == pytest.approx(psi**2)
    assert smallest_power(0.01, 0.05) >= 2  # gamma > psi^2: no q0 below 2
    assert smallest_power(2.0, 1.0) == smallest_power(0.1, 0.0) == float("inf")


def test_every_local_step_is_seen() -> None:
    """Equal clients without noise are one: then the steps are those of gradient descent on g."""
    problem = matrices(clients=3, noise=0.0, spread=0.0, dim=3)
    _, p = run(problem, rounds=2, rank_ratio=0.67, init="kaiming")
    A, B = problem.targets[0]
    ((u, v, at),) = p.pairs
    assert (at, p.mean[0][u].shape) == (1, (3, 2))

    def g(x: dict[str, torch.Tensor]) -> torch.Tensor:
        return ((x["front.weight"] - A) ** 2).sum() / 2 + ((x[u] @ x[v].T - B) ** 2).sum() / 2

    assert len(p.mean) == 6
    for now, later in zip(p.mean, p.mean[1:], strict=False):
        slope = torch.func.grad(g)(now)
        for name, value in now.items():
            torch.testing.assert_close(later[name], value - 0.05 * slope[name])


def test_the_constants_of_the_factors_against_autograd() -> None:
    problem = matrices(clients=3, seed=4, dim=3, noise=0.4, spread=0.5)
    s, p = run(problem, rank_ratio=0.67, init="kaiming")
    c = factored_constants(problem, s, [p])
    ((u, v, _),) = p.pairs
    kappas = [max(float(x[k][i].norm()) for x in p.own for i in range(3)) for k in (u, v)]
    products = max(float((x[u][i] @ x[v][i].T).norm()) for x in p.own for i in range(3))
    assert (c.kappa_u, c.kappa_v, c.kappa_uv) == pytest.approx((*kappas, products))
    psi = min(float(torch.linalg.svdvals(x[k])[-1]) for x in p.mean for k in (u, v))
    assert lemma(problem, p).psi == pytest.approx(psi)
    assert (c.rho, c.layers, c.E, c.N, c.sigma2) == (1, 2, 3, 3, pytest.approx(0.16))
    # second and fourth moments: the loss of single samples, differentiated by autograd through the module itself
    adapted = ct.algorithms.build("fedlmt", **{**PLAIN, "rank_ratio": 0.67, "init": "kaiming"}).adapt(problem.model)
    fourth, second = [], []
    for x, W in zip(p.own, p.everybody, strict=True):
        for i, mine in enumerate(problem.federation.train):
            of_g = torch.func.grad(lambda t, row: adapted.outputs(t, row[None]).sum())
            of_f = torch.func.grad(lambda t, row: problem.model.outputs(t, row[None]).sum())
            rows = problem.federation.x[mine]
            own = {k: t[i] for k, t in x.items()}
            full = {"front.weight": W[i, 0], "back.weight": W[i, 1]}
            for kept, f, at, power in ((second, of_g, own, 1), (fourth, of_f, full, 2)):
                each = torch.func.vmap(f, (None, 0))(at, rows)
                norms = sum(t.square().flatten(1).sum(1) for t in each.values())
                kept.append(float((norms**power).mean()))
    assert moments(problem, p) == pytest.approx((max(fourth) ** 0.5, max(second)))
    assert curvature(problem, p) >= problem.smoothness


def test_the_gradient_of_the_recovered_model() -> None:
    o = examine("fedlmt", clients=3, rounds=2, steps=1, problem="dim=3", rank_ratio=0.67)
    problem = matrices(3, 0, dim=3)
    _, p = run(problem, rounds=2, steps=1, lr=0.01, rank_ratio=0.67)
    for t in range(2):
        full = {"front.weight": p.W[t, 0], "back.weight": p.W[t, 1]}
        mean = torch.func.grad(lambda w: problem.model.outputs(w, problem.federation.x).mean())(full)
        here = float(sum(g.square().sum() for g in mean.values()))
        assert here == pytest.approx((t + 1) * o.measured[t] - t * o.measured[t - 1] * (t > 0))


@pytest.mark.parametrize(
    "asked", [{}, {"lr": 1e-3, "seed": 1, "steps": 3}, {"keep_layers": "none", "problem": "noise=0.5,spread=0.3"}]
)
def test_the_bound_holds_at_full_rank(asked: dict[str, Any]) -> None:
    o = examine("fedlmt", clients=4, rounds=8, **asked)
    assert o.void == ()
    assert o.holds
    assert o.completed is not None
    assert o.bound is not None
    assert all(a > b for a, b in zip(o.completed, o.bound, strict=True))
    assert o.measured[-1] < o.measured[0]


def test_the_page_factorizes_both_layers(cli: Cli, tmp_path: Path) -> None:
    """As it is typed there; ``none`` alone is FedLMT's own choice, which keeps both."""
    page = Path(__file__).parents[2] / "docs/theory.md"
    (typed,) = re.findall(r"`--set (keep_layers=\S+)` factorizes both", page.read_text(encoding="utf-8"))
    assert "the bound holds" in cli.succeed("theory", "fedlmt", "--rounds", "4", "--set", typed, cwd=tmp_path).out


def test_below_full_rank_the_lemma_fails_and_the_bound_is_wrong() -> None:
    """Factors of rank 2 stand still beside a target of rank 4; the bound falls below what is left."""
    asked: dict[str, Any] = {"clients": 4, "rounds": 400, "steps": 1, "rank_ratio": 0.5, "lr": 0.01}
    o = examine("fedlmt", problem="noise=0,spread=0,start=1", **asked)
    assert o.bound is None
    assert [c.text for c in o.void if "Lemma D.5" in c.text]
    assert o.measured[-1] == pytest.approx(2.0)  # two of four singular values of 1 are out of reach
    problem = matrices(4, 0, noise=0.0, spread=0.0, start=1.0)
    s, p = run(problem, rounds=2, steps=1, lr=0.01)
    would = bounds.low_rank(factored_constants(problem, s, [p]), o.constant("F0"), 0.01, 1.0, 400, completed=True)
    assert would < o.measured[-1]


VOID: dict[str, tuple[dict[str, Any], str]] = {
    "a rate above 1 / L_s": ({"lr": 0.6}, "min(1 / L_s, 1)"),
    "a regularizer": ({"regularizer": "frobenius=1e-4"}, "regularizer"),
    "no q0": ({"init": "kaiming", "lr": 0.05}, "q0 < 2"),
}


@pytest.mark.parametrize("case", VOID)
def test_there_is_no_bound(case: str) -> None:
    settings, told = VOID[case]
    o = examine("fedlmt", clients=4, rounds=1, **settings)
    assert o.bound is None
    assert any(told in c.text for c in o.void)


@pytest.mark.parametrize("asked", [{"participation": 0.5}, {"participation": 1}, {"epochs": 1}])
def test_what_the_theorem_is_not_about_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="this theorem"):
        examine("fedlmt", clients=4, rounds=1, **asked)


def test_marchenko_pastur_against_drawn_factors() -> None:
    drawn = torch.randn(600, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * (2 / 600) ** 0.5
    found = torch.linalg.svdvals(drawn)
    assert marchenko_pastur(600, 150, 2 / 600) == pytest.approx((float(found[-1]), float(found[0])), rel=0.03)
