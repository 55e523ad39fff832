"""The theorems beside runs: graphs and constants against numpy and autograd, bounds against the papers' own lines."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.base import Problem, Program
from coterie.algorithms.method import facts, method
from coterie.algorithms.options import Training
from coterie.core.errors import UserError
from coterie.measure.convergence import gradient_norms
from coterie.papers.theory import THEOREMS, bounds, examine, theorem_of
from coterie.papers.theory.bounds import Cohort, Decrease, Smoothness, Steps
from coterie.papers.theory.mixing import connected_window, contraction, phi, push_sum_constants, symmetric
from coterie.papers.theory.partial import partial_gradients, smoothness
from coterie.papers.theory.quadratic import SAMPLES, quadratic
from coterie.papers.theory.server import norms
from coterie.papers.theory.trajectory import experiment_of, run_trajectory
from helpers_cli import Cli

L = Smoothness(1.3, 0.7, 0.25)
STEPS = Steps(0.0002, 4, 0.01, 3)


@pytest.mark.parametrize("text", ["ring", "grid", "full", "star", "random:3"])
def test_lambda_is_the_second_largest_modulus_of_the_eigenvalues(text: str) -> None:
    topology = ct.topology.build(text, 12, seed=3)
    second = [sorted(abs(np.linalg.eigvalsh(topology(t).numpy())))[-2] for t in range(4)]
    assert contraction(topology, 4) == pytest.approx(max(second), abs=1e-12)
    assert symmetric(topology, 4)


def test_a_graph_of_one_way_links_is_not_symmetric() -> None:
    assert not symmetric(ct.topology.build("exponential", 8), 3)  # doubly stochastic, and yet not symmetric
    assert not symmetric(ct.topology.build("random-pull:2", 8), 3)


def test_phi_is_equation_6() -> None:
    lam, m, Q = Fraction(3, 5), 7, 3
    exact = (lam**Q + 1) / ((1 - lam) ** 2 * m ** (2 * (Q - 1))) + (lam**Q + 1) / (1 - lam**Q) ** 2
    assert phi(0.6, 7, 3) == pytest.approx(float(exact), rel=1e-14)
    assert phi(0.9, 8, 1) == pytest.approx(2 * 1.9 / 0.1**2)  # Q = 1: both terms are (1 + lambda) / (1 - lambda)^2
    assert phi(0.9, 8, 5) < phi(0.9, 8, 2) < phi(0.9, 8, 1)


def _pushed(t: int) -> torch.Tensor:
    """Column-stochastic and neither symmetric nor doubly stochastic: out-degrees differ."""
    W = torch.eye(5, dtype=torch.float64)
    W[(torch.arange(5) + 1) % 5, torch.arange(5)] = 1
    W[0, 2] = W[3, 1] = W[(t % 3) + 1, 4] = 1
    return W / W.sum(0)


def test_push_sum_leaves_at_most_c_q_to_the_k() -> None:
    rounds = 25
    g = push_sum_constants(ct.topology.build(_pushed, 5), rounds)
    rng, mu, product, smallest = np.random.default_rng(0), np.ones(5), np.eye(5), 1.0
    starts = rng.normal(size=(40, 5))  # forty numbers of every client, pushed along
    u = starts.copy()
    for t in range(rounds):
        P = _pushed(t).numpy()
        u, mu, product = u @ P.T, P @ mu, P @ product
        smallest = min(smallest, product.sum(1).min())  # the least sum of a row of the products
        np.testing.assert_allclose(g.mass[t + 1], mu, rtol=1e-12)
        apart = abs(u / mu - u.mean(1, keepdims=True)).max(1)
        assert (apart <= g.C * g.q ** (t + 1) * abs(starts).max(1)).all()
    assert g.delta == pytest.approx(smallest, rel=1e-12)
    assert g.mass.sum(1).numpy() == pytest.approx(5.0)  # mass is neither made nor lost
    assert g.delta < 0.6 < 1.4 < g.mass.max()


def test_c_and_q_of_a_fixed_graph_follow_its_second_eigenvalue() -> None:
    P = _pushed(0)
    second = sorted(abs(np.linalg.eigvals(P.numpy())))[-2]
    g = push_sum_constants(ct.topology.build(lambda t: P, 5), 60)
    assert second < g.q < second + 0.3  # no q below the rate of decay can do over 60 rounds
    never = [push_sum_constants(ct.topology.build("none", 4), rounds) for rounds in (5, 50)]
    assert never[1].C / (1 - never[1].q) > 5 * never[0].C / (1 - never[0].q)  # nothing contracts


def test_the_window_in_which_everybody_is_connected() -> None:
    def one_link(t: int) -> torch.Tensor:
        W = torch.eye(4, dtype=torch.float64)
        W[(t + 1) % 4, t % 4] = 1
        return W / W.sum(0)

    found = connected_window(ct.topology.build(one_link, 4), 12)
    assert found is not None
    assert (found.rounds, found.diameter, found.degree) == (4, 3, 2)


def test_the_constants_of_the_quadratic_against_autograd() -> None:
    problem = quadratic(clients=3, seed=5, dim=3, noise=0.7, coupling=0.4)
    model, fed = problem.model, problem.federation
    w = torch.randn(6, dtype=torch.float64)

    def loss(w: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        tensors = {"u": w[:3], "v": w[3:]}
        return model.outputs(tensors, fed.x[which]).mean()

    for i, own in enumerate(fed.train):
        hessian = torch.autograd.functional.hessian(lambda w, own=own: loss(w, own), w)
        torch.testing.assert_close(hessian, problem.hessian())
        g = torch.func.grad(loss)(w, own)
        torch.testing.assert_close(g, problem.gradients(w[None].expand(3, -1))[i])
        each = torch.stack([torch.func.grad(loss)(w, own[k : k + 1]) for k in range(len(own))])
        apart = (each - g).square()
        assert float(apart[:, :3].sum(1).mean()) == pytest.approx(problem.variance(1), rel=1e-12)
        assert float(apart[:, 3:].sum(1).mean()) == pytest.approx(0.49, rel=1e-12)
    blocks = problem.hessian()
    svd = [float(torch.linalg.svdvals(b)[0]) for b in (blocks[:3, :3], blocks[3:, 3:], blocks[:3, 3:])]
    assert list(smoothness(problem)) == pytest.approx(svd)
    assert problem.variance(None) == 0.0
    assert problem.variance(4) == pytest.approx(0.49 / 4 * (SAMPLES - 4) / (SAMPLES - 1))


@pytest.mark.parametrize("personal", [True, False])
def test_the_least_loss_of_the_quadratic(personal: bool) -> None:
    problem = quadratic(clients=4, seed=1, coupling=0.6, spread=2.0)
    u = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    v = torch.zeros(4 if personal else 1, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([u, v], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        away = torch.cat([u.expand(4, -1), v.expand(4, -1)], 1) - problem.minima
        value = (away @ problem.hessian() * away).sum() / 8
        value.backward()
        return value

    optimizer.step(closure)
    assert closure().item() == pytest.approx(problem.least(personal), rel=1e-9)


def test_what_is_bounded_is_what_the_package_measures() -> None:
    """Delta_u at (mean u^t, V^(t+1)), Delta_v at (u_i^t, v_i^t), G_u and G_v: closed forms beside autograd."""
    problem = quadratic(clients=4, seed=2)
    settings: dict[str, Any] = {"personal": "v", "steps": 3, "batch_size": 1, "momentum": 0.0, "weight_decay": 0.0}
    alg = ct.algorithms.dfedpgp(topology="random-push:2", personal_steps=2, lr=0.05, personal_lr=0.05, **settings)
    p = run_trajectory(problem, alg, 3, seed=0)
    e = experiment_of(problem.model, problem.federation, alg, 3, 0)
    found, own = partial_gradients(problem, p), norms(problem, p)
    for t in range(3):
        there = {"u": p.center[t, :4].expand(4, -1), "v": p.w[t + 1][:, 4:]}
        here = {"u": p.w[t][:, :4], "v": p.w[t][:, 4:]}
        assert gradient_norms(e.engine, e.model, there, e.train, {"u"}).shared == pytest.approx(float(found.delta_u[t]))
        measured = gradient_norms(e.engine, e.model, here, e.train, {"u"})
        assert measured.personal == pytest.approx(float(found.delta_v[t]))
        assert measured == pytest.approx((float(own.shared[t]), float(own.personal[t])))
    assert float((found.delta_u - own.shared).abs().min()) > 1e-3  # another point, another number


def _equation_19(du: float, dv: float, su2: float, sv2: float, d2: float, lam: float) -> float:
    """The right side of DFedAlt's equation 19, typed once more from the paper."""
    eu, Ku, ev, Kv = STEPS
    Lu, Lv, Lvu = L
    total = (-eu * Ku / 2 + 2 * eu**2 * Ku * Lu + 18 * eu**2 * Ku**2 * (2 + eu * Lu**2) / (1 - lam) ** 2) * du
    total += 2 * eu**2 * Ku * Lu * (su2 + d2) + 9 * eu**2 * Ku**2 * (2 + eu * Lu**2) / (1 - lam) ** 2 * (su2 + d2)
    total += (-ev * Kv + 8 * ev**2 * Kv**2 * (Lv + 1)) * dv + 4 * ev**2 * Kv**2 * sv2 * (Lv + 1)
    return total + 18 * eu**2 * Lvu**2 * Ku**2 * (su2 + d2 + 2 * du) / (1 - lam) ** 2


def _equations_27_and_32(du: float, dv: float, rho: float, su2: float, sv2: float, d2: float, lam: float) -> float:
    eu, Ku, ev, Kv = STEPS
    Lu, Lv, Lvu = L
    gap, inner = (1 - lam) ** 2, Lu**2 * rho**2 + 3 * Ku * (su2 + d2)
    total = (-eu * Ku / 2 + 2.5 * eu**2 * Ku * Lu + 18 * eu**3 * Ku**2 * Lu**2 * (1 + 5 * eu * Ku * Lu) / gap) * du
    total += 3 * eu**3 * Ku * Lu**2 / gap * inner + 2.5 * eu**2 * Ku * Lu * (Lu**2 * rho**2 + su2 + d2)
    total += 15 * eu**4 * Ku**2 * Lu**3 / gap * inner
    total += (-ev * Kv + 8 * ev**2 * Kv**2 * (Lv + 1)) * dv + 4 * ev**2 * Kv**2 * sv2 * (Lv + 1)
    return total + Lvu**2 / gap * (3 * eu**2 * Ku * Lu**2 * rho**2 + 9 * eu**2 * Ku**2 * (su2 + d2 + 2 * du))


def _equation_32(du: float, dv: float, su2: float, sv2: float, g2: float, C: float, q: float, delta: float) -> float:
    eu, Ku, ev, Kv = STEPS
    Lu, Lv, Lvu = L
    AA = 8 * Ku**2 * eu**2 * C**2 * (Ku + 1) / ((1 - q) ** 2 * Ku - 8 * Ku**2 * Lu**2 * eu**2 * C**2 * (Ku + 1))
    square = 1 + 32 * Ku * Lu**2 * eu**2 / delta**2 * (Lu**2 * AA + 1) + Lu**2 * AA
    grown = Ku * Lu**2 * eu / 2 * AA + 5 * Ku * Lu * eu**2 / 2 * square + Lvu**2 / 2 * AA
    total = (-eu * Ku / 2 + grown) * du + grown * (su2 + g2)
    return total + (-ev * Kv + 8 * ev**2 * Kv**2 * Lv + 8 * ev**2 * Kv**2) * dv + 4 * ev**2 * Kv**2 * sv2 * (1 + Lv)


def test_the_inequality_of_a_round_is_that_of_the_proofs() -> None:
    du, dv = 1.7, 0.9
    rows = [
        (bounds.alternating(L, STEPS, 0.3, 0.2, 0.5, 0.6), _equation_19(du, dv, 0.3, 0.2, 0.5, 0.6)),
        (
            bounds.alternating_sam(L, STEPS, 0.1, 0.3, 0.2, 0.5, 0.6),
            _equations_27_and_32(du, dv, 0.1, 0.3, 0.2, 0.5, 0.6),
        ),
        (
            bounds.alternating_push(L, STEPS, 0.3, 0.2, 0.5, 2.0, 0.4, 0.5),
            _equation_32(du, dv, 0.3, 0.2, 0.5, 2.0, 0.4, 0.5),
        ),
    ]
    for d, expected in rows:
        assert d.floor - d.shared * du - d.personal * dv == pytest.approx(expected, rel=1e-12)
        assert min(d.shared, d.personal, d.floor) > 0


def test_a_sum_of_decreases_bounds_the_mean() -> None:
    """F falls by as much as the inequality allows; the mean of Delta_u / L_u + Delta_v / L_v is at most the bound."""
    d, F, total = Decrease(0.2, 0.1, 0.01), 5.0, 0.0
    for t in range(1, 9):
        du, dv = 1.0 / t, 2.0 / t
        F += d.floor - d.shared * du - d.personal * dv
        total += du / L.u + dv / L.v
    assert total / 8 <= d.bound(5.0 - F, 8, L)
    assert Decrease(-0.1, 0.1, 0.01).bound(1.0, 8, L) == math.inf


def test_theorem_4_1_without_perturbation_and_with_one_step() -> None:
    F0, Ls, lr, s2, B2, Phi, T = 3.0, 1.5, 0.05, 0.4, 2.0, 7.0, 11
    D = lr - 32 * lr**3 * Ls**2
    expected = (2 * F0 / T + 8 * lr**3 * Ls**2 * s2 + Phi * 512 * lr**5 * Ls**4 * (s2 + B2)) / D
    assert bounds.sam(F0, Ls, 1, lr, 0.0, s2, B2, Phi, T) == pytest.approx(expected, rel=1e-12)
    full = (2 * F0 / T + 16 * lr**3 * Ls**2 * s2 + Phi * 512 * lr**5 * Ls**4 * (s2 + B2) + Ls * lr**2 * 3.3) / D
    assert bounds.sam_completed(F0, Ls, 1, lr, 0.0, s2, B2, 3.3, Phi, T) == pytest.approx(full, rel=1e-12)
    assert bounds.sam(F0, Ls, 1, 1.0, 0.0, s2, B2, Phi, T) == math.inf


@pytest.mark.parametrize("rho", [0.1, 0.7])
def test_theorem_4_1_term_by_term(rho: float) -> None:
    """Equation 7 in exact fractions, typed from the paper: K = 3, L = 3/2, eta = 1/50."""
    F0, L, K, eta, s2, B2, Phi, T = map(Fraction, ("3", "3/2", "3", "1/50", "2/5", "2", "7", "11"))
    r = Fraction(str(rho))
    D = eta * K - 32 * eta**3 * K**2 * L**2
    alpha = (eta * L**2 * K**2 / D) * (
        4 * K**3 * L**2 * eta**2 * r**4 / (2 * K - 1) + 8 * K * eta**2 * (L**2 * r**2 + s2) + 2 * K * r**2 / (2 * K - 1)
    )
    beta = (64 * eta**5 * K**3 * L**4 / D) * (
        4 * K**3 * L**2 * r**4 / (2 * K - 1) + 8 * K * (L**2 * r**2 + s2) + 8 * K * B2 + r**2 / (eta**2 * (2 * K - 1))
    )
    expected = float(2 * F0 / (T * D) + alpha + Phi * beta)
    assert bounds.sam(3.0, 1.5, 3, 0.02, rho, 0.4, 2.0, 7.0, 11) == pytest.approx(expected, rel=1e-12)


def test_the_theorems_around_a_server_give_their_corollaries() -> None:
    """With the rates of the corollaries, the theorems lie below what these print, and not far below."""
    F0, Ls, K, n, m, b2, su2, sv2, T = 4.0, 1.2, 5, 12, 4, 0.8, 0.5, 0.3, 4_000_000
    spread = 4 * (n - m) * K * b2 / (m * n) + su2 / m + m * sv2 / n
    gamma = 1 / (32 * Ls * K + math.sqrt(3 * Ls * K * T / F0 * spread))
    outer = max(math.sqrt(m), math.sqrt(b2 * T / (Ls * F0)))
    corollary = 8 * math.sqrt(3 * spread * Ls * F0 / (K * T)) + 129 * Ls * F0 / T
    assert 0.9 * corollary < bounds.joint(F0, Ls, K, gamma, outer, Cohort(m, n), b2, su2, sv2, T) <= corollary
    gamma = 1 / (84 * Ls * K + math.sqrt(11 * Ls * K * T / F0 * (su2 / n + sv2)))
    corollary = 8 * math.sqrt(11 * Ls * F0 / (K * T) * (su2 / n + sv2)) + 337 * Ls * F0 / T
    assert 0.9 * corollary < bounds.joint_full(F0, Ls, K, gamma, n, su2, sv2, T) <= corollary
    gamma = 1 / (72 * Ls * K * max(n ** (2 / 3) / m, 1) + math.sqrt(37 * Ls * K * T / F0 * (su2 / m + m * sv2 / n)))
    corollary = 8 * math.sqrt(37 * Ls * F0 / (K * T) * (su2 / m + sv2 * m / n)) + 288 * Ls * F0 / T * max(
        1, n ** (2 / 3) / m
    )
    assert 0.9 * corollary < bounds.joint_controlled(F0, Ls, K, gamma, Cohort(m, n), su2, sv2, T) <= corollary


REGIMES: dict[str, list[dict[str, Any]]] = {
    "dfedalt": [{"topology": "full"}, {"topology": "random:4", "problem": "noise=3,spread=0.1", "seed": 1}],
    "dfedsalt": [{"topology": "grid"}, {"topology": "ring", "problem": "noise=2,coupling=0", "steps": 1}],
    "dfedpgp": [{"topology": "random-push:4"}, {"topology": "exponential", "problem": "noise=3", "seed": 1}],
    "dfedsam": [{"topology": "ring"}, {"topology": "full", "problem": "noise=4,spread=0", "rho": 0.1, "steps": 2}],
    "dfedsam-mgs": [{"topology": "ring", "seed": 1}],
    "fedavg-p": [
        {},
        {"participation": 1.0, "outer_lr": 25.0, "problem": "noise=2"},
        {"participation": 2, "exact_personal": True},
    ],
    "scaffold-p": [{}, {"participation": 2, "problem": "noise=3,spread=3"}],
}


@pytest.mark.parametrize(("method", "asked"), [(m, a) for m, regimes in REGIMES.items() for a in regimes])
def test_the_bound_holds_where_its_assumptions_do(method: str, asked: dict[str, Any]) -> None:
    o = examine(method, clients=9, rounds=25, **asked)
    assert o.void == ()
    assert o.holds
    assert o.bound is not None
    assert len(o.measured) == len(o.bound) == 25
    assert o.measured[-1] < o.measured[0]  # something is learned
    assert all(a >= b for a, b in zip(o.bound, o.bound[1:], strict=False))
    assert not o._replace(measured=[b * 1.01 for b in o.bound]).holds


@pytest.mark.parametrize(
    ("method", "graph"), [("dfedpgp", "random-push:3"), ("dfedalt", "random:4"), ("dfedsam", "random:2")]
)
def test_all_seeds_have_the_graphs_that_the_constants_are_of(method: str, graph: str) -> None:
    """Without noise in the gradients seeds differ in nothing else."""
    one, three = (
        examine(method, clients=8, rounds=6, topology=graph, problem="noise=0", seed=7, seeds=seeds) for seeds in (1, 3)
    )
    assert three.measured == pytest.approx(one.measured, rel=1e-12)
    assert (three.constants, three.settings) == (one.constants, one.settings)
    assert one.settings["topology"] == graph


def test_theorem_3_11_is_taken_where_everybody_takes_part_and_the_outer_rate_is_large() -> None:
    assert examine("fedavg-p", rounds=5, participation=1.0, outer_lr=9.0).theorem.endswith("3.11")
    assert examine("fedavg-p", rounds=5, participation=1.0).theorem.endswith("3.7")


VOID: dict[str, tuple[str, dict[str, Any], str]] = {
    "too large a rate": ("dfedsam", {"lr": 0.3}, "lr = 0.3 <= 1 / (10 K L)"),
    "rates that fall": ("fedavg-p", {"lr_decay": 0.9}, "plain SGD"),
    "rates that fall as a cosine": ("dfedsam", {"lr_min": 1e-4}, "plain SGD"),
    "momentum": ("dfedalt", {"momentum": 0.9}, "plain SGD"),
    "a graph of one way": ("dfedalt", {"topology": "random-pull:2"}, "symmetric"),
    "nobody mixes": ("dfedsam", {"topology": "none"}, "lambda = 1 < 1"),
    "no descent is left": ("dfedalt", {"lr": 0.1}, "the coefficient of Delta_u"),
    "too fast at home": ("dfedpgp", {"personal_lr": 2.0}, "lr_v K_v"),
    "two exchanges": ("dfedalt", {"gossip_steps": 2}, "one exchange"),
    "two pushes": ("dfedpgp", {"gossip_steps": 2}, "one exchange"),
    "an ascent": ("dfedalt", {"rho": 0.1}, "at the point itself"),
    "an ascent at the ratio": ("dfedpgp", {"rho": 0.1}, "at the point itself"),
    "two step sizes": ("fedavg-p", {"personal_lr": 0.5}, "equals personal_lr personal_outer_lr"),
    "outer rates too small": ("scaffold-p", {"outer_lr": 1.0}, "outer_lr = 1 >= sqrt(m)"),
    "control variates from nothing": ("scaffold-p", {"c_init": "zero"}, "begin as gradients"),
    "beyond the rate of Scaffold-P": ("scaffold-p", {"lr": 0.05}, "(72 L K)"),
}


@pytest.mark.parametrize("case", VOID)
def test_there_is_no_bound_where_an_assumption_fails(case: str) -> None:
    method, settings, told = VOID[case]
    o = examine(method, clients=6, rounds=2, **settings)
    assert o.bound is None
    assert o.holds is None
    assert any(told in c.text and c.fix for c in o.void)
    assert len(o.measured) == 2


def test_equation_7_as_printed_fails_where_its_proof_has_dropped_a_term() -> None:
    """Small steps and much noise: the floor of SGD, lr L sigma^2 / (2m), is larger than 8 lr^2 L^2 sigma^2."""
    noisy = "dim=200,spread=0,noise=10,coupling=0,start=0.035"
    o = examine("dfedsam", clients=2, rounds=420, topology="full", steps=1, rho=0.0, lr=0.01, problem=noisy, seed=1)
    assert o.void == ()
    assert o.holds is False
    assert o.bound is not None
    assert o.completed is not None
    assert (o.first_above(o.bound) or 0) > 200
    assert o.first_above(o.completed) is None


REFUSED: dict[str, tuple[list[str], str]] = {
    "a method without a theorem": (["fedavg"], "fedavg has no theorem in its paper: choose one of dfedalt"),
    "an unknown method": (["dfedsamm"], "did you mean dfedsam"),
    "a graph with a server": (["fedavg-p", "--topology", "ring"], "leave the topology out"),
    "a graph as a setting": (["fedlmt", "--set", "topology=ring"], "leave the topology out"),
    "an option that the problem has not": (["dfedalt", "--problem", "nois=1"], "did you mean noise?"),
    "a problem without a name": (
        ["dfedalt", "--problem", "3"],
        "has no place for '3': it takes dim=VALUE",
    ),
    "a word for a number": (
        ["dfedalt", "--problem", "noise=much"],
        "noise='much' does not fit",
    ),
    "losses without a minimum": (
        ["dfedalt", "--problem", "coupling=1"],
        "at least 0 and below 1",
    ),
    "a picture of another kind": (["dfedalt", "--png", "a.svg"], "write it to a.png"),
    "another personal part": (["dfedalt", "--set", "personal=none"], "leave personal out"),
    "no steps": (["dfedalt", "--set", "personal_steps=0"], "personal_steps=0 nothing moves"),
    "a rate of nothing": (["fedavg-p", "--set", "outer_lr=0"], "choose a larger number"),
    "unequal epochs": (["dfedsam", "--set", "epochs=1,2"], "set steps"),
    "unequal personal epochs": (["dfedpgp", "--set", "personal_epochs=1,2"], "set personal_steps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(cli: Cli, tmp_path: Path, case: str) -> None:
    words, told = REFUSED[case]
    cli.refuse("theory", *words, "--rounds", "1", cwd=tmp_path, names=(told,))


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = ("--clients", "4", "--rounds", "3", "--png", "a.png")
    done = cli.succeed("theory", "dfedpgp", *small, "--set", "steps=2", cwd=tmp_path)
    assert "the bound holds for every T" in done.out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    void = cli.refuse("theory", "dfedsam", *small, "--set", "lr=0.5", cwd=tmp_path, names=("no bound", "lower lr"))
    assert "measured" in void.out  # what was measured is told all the same
    assert "bound " not in void.out.split("measured", 1)[1].split("note", 1)[0]


def test_every_theorem_is_of_a_method() -> None:
    named = {facts(build).theorem for build in ct.algorithms.BUILDERS.values()}
    assert named == {*THEOREMS, None}
    assert theorem_of("dfedsam-mgs") is theorem_of("dfedsam")
    with pytest.raises(UserError, match="larger numbers"):
        examine("dfedalt", rounds=0)


@pytest.mark.parametrize(("theorem", "told"), [("sams", "did you mean sam"), ("joint-controlled", "speaks of c_init")])
def test_a_theorem_that_does_not_fit_is_refused(theorem: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @method(theorem=theorem)
    def mine(p: Problem, t: Training) -> Program[Any]:
        pytest.fail("nobody binds it")

    monkeypatch.setitem(ct.algorithms.BUILDERS, "mine", mine)
    with pytest.raises(UserError, match=told):
        theorem_of("mine")
