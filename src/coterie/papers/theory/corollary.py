"""The corollaries: rates that fall with the rounds, and the order of convergence that a theorem then gives.

An O(.) leaves a constant open. Ours is small enough for the theorem's own conditions: of DFedSAM where T >= K, of
DFedPGP from sixteen rounds on with its default graph.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ...topology import Topology
from . import gossip, partial, server
from .partial import smoothness
from .quadratic import QuadraticProblem, requested_steps

SAM_RATE = 1 / 10  # with which Theorem 4.1's lr <= 1 / (10 K L) says T >= K, as Remark 1 has it
SAM_RADIUS = 1 / 10
PUSH_RATES = 1 / 32, 1 / 8  # of the shared part and of the personal one

Settings = Mapping[str, Any]


class Order(NamedTuple):
    """How a bound changes with one quantity x: like x to the power of the exponent."""

    exponent: float
    terms: str  # of the corollary, which have it
    x: str  # what the exponent is of


class Corollary(NamedTuple):
    """A corollary of a theorem."""

    where: Callable[[Settings], str]  # (settings of the method) -> where it stands
    rates: Callable[..., dict[str, Any]]  # (problem, topology, rounds, what is asked for) -> the other settings
    order: Callable[[Settings], dict[str, Order]]  # (settings of the method) -> by name: T, K, m, lambda


def _sam_rates(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return lr = O(1 / (L sqrt(K T))) and rho = O(1 / sqrt(T))."""
    chosen = gossip.defaults(problem, topology, rounds, given)
    L, K = float(torch.linalg.eigvalsh(problem.hessian()).max()), requested_steps(chosen | given)
    return {**chosen, "rho": SAM_RADIUS / math.sqrt(rounds), "lr": SAM_RATE / (L * math.sqrt(K * rounds))}


def _sam_order(settings: Settings) -> dict[str, Order]:
    Q = settings.get("gossip_steps", 1)
    leading = "F0 / sqrt(K T), which leads for large T"
    found = {
        "T": Order(-0.5, leading, "T"),
        "K": Order(-0.5, leading, "K"),
        "lambda": Order(-2, "1 / (T^2 (1 - lambda)^2), which are small for large T", "1 - lambda"),
    }
    return found | ({"m": Order(-2.0 * (Q - 1), "the first of Phi, small for large T", "m")} if Q > 1 else {})


def _push_rates(problem: QuadraticProblem, topology: Topology, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return lr = O(1 / (L_u K_u sqrt(T))) and personal_lr = O(1 / (L_v K_v sqrt(T)))."""
    chosen, L = partial.chosen_steps(given), smoothness(problem)
    K_u, K_v = (requested_steps(chosen | given, part) for part in ("", "personal_"))
    lr, own = (c / (L * K * math.sqrt(rounds)) for c, L, K in zip(PUSH_RATES, (L.u, L.v), (K_u, K_v), strict=True))
    return {**chosen, "personal": "v", "lr": lr, "personal_lr": own}


def _push_order(settings: Settings) -> dict[str, Order]:
    return {
        "T": Order(-0.5, "F0 and sigma_1^2, which lead for large T", "T"),
        "K": Order(-1, "1 / (K_u L_u) of the noise; F0 does not depend on K", "K"),
        "lambda": Order(-2, "C^2 / (1 - q)^2 of the noise; F0 does not depend on the graph", "1 - q"),
    }


def _average_rates(problem: QuadraticProblem, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return gamma and eta_u of the corollary, with b as it is at the first model."""
    x = server.Start.of(problem, given)
    spread = 4 * (x.c.n - x.c.m) * x.K * x.b2 / (x.c.m * x.c.n) + x.su2 / x.c.m + x.c.m * x.sv2 / x.c.n
    falling = math.sqrt(3 * x.L * x.K * rounds * spread / x.F0) if x.F0 else 0.0
    outer = max(math.sqrt(x.c.m), math.sqrt(x.b2 * rounds / (x.L * x.F0)) if x.F0 else 0.0)
    return server.rates(problem, {"outer_lr": outer, **given}, 1 / (32 * x.L * x.K + falling))


def _scaffold_rates(problem: QuadraticProblem, topology: None, rounds: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return gamma of the corollary."""
    x = server.Start.of(problem, given)
    noise = x.su2 / x.c.m + x.c.m * x.sv2 / x.c.n
    falling = math.sqrt(37 * x.L * x.K * rounds * noise / x.F0) if x.F0 else 0.0
    return server.rates(problem, given, 1 / (72 * x.L * x.K * max(x.c.n ** (2 / 3) / x.c.m, 1) + falling))


def _joint_order(settings: Settings) -> dict[str, Order]:
    noise = "the square root, which leads for large T"
    return {
        "T": Order(-0.5, noise, "T"),
        "K": Order(-0.5, f"{noise}; that with b^2 does not depend on K" if "c_init" not in settings else noise, "K"),
        "m": Order(-0.5, "sigma_u^2 in the square root; that of sigma_v^2 grows with m", "m"),
    }


def _sam_where(settings: Settings) -> str:
    return f"DFedSAM, Corollary 4.1.{2 if settings.get('gossip_steps', 1) > 1 else 1}"


SAM = Corollary(_sam_where, _sam_rates, _sam_order)
PUSH = Corollary(lambda settings: "DFedPGP, Corollary 1", _push_rates, _push_order)
AVERAGE = Corollary(lambda settings: "FedAvg-P/Scaffold-P, Corollary 3.8", _average_rates, _joint_order)
SCAFFOLD = Corollary(lambda settings: "FedAvg-P/Scaffold-P, Corollary 4.6", _scaffold_rates, _joint_order)
