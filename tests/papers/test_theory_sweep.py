"""Sweeps of the corollaries: their rates, their points, the fitted slopes, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.core.errors import UserError
from coterie.papers.theory import Sweep, examine, sweep
from coterie.papers.theory.mixing import push_sum_constants
from coterie.papers.theory.sweep import slope
from helpers_cli import Cli


def test_the_slope_of_exact_powers_is_the_power() -> None:
    xs = [1.0, 2.0, 5.0, 40.0]
    for power in (-2.0, -0.5, 0.0, 1.0):
        assert slope([(x, 7 * x**power) for x in xs]) == pytest.approx(power, abs=1e-10)
    noisy = [(x, x**-0.5 * (1 + 0.1 * k)) for k, x in enumerate(xs)]
    fitted = np.polyfit(*(np.log([pair[i] for pair in noisy]) for i in (0, 1)), 1)[0]
    assert slope(noisy) == pytest.approx(fitted, abs=1e-10)
    assert slope([(0.0, 1.0), (2.0, 1.0)]) is None  # a graph that does not mix has no place in a log-log plot


def test_points_are_single_calls_with_the_rates_of_the_corollary() -> None:
    for method, name, values, setting in (
        ("dfedsam", "T", [3, 9], "rounds"),
        ("fedavg-p", "m", [1, 3], "participation"),
        ("dfedpgp", "lambda", ["random-push:2", "full"], "topology"),
    ):
        common: dict[str, Any] = {"clients": 4, "problem": "noise=1", **({} if name == "T" else {"rounds": 8})}
        for value, point in zip(values, sweep(method, name, values, **common).points, strict=True):
            one = examine(method, rates="corollary", **common, **{setting: value})
            assert (point.measured, point.bound) == (one.measured[-1], one.bound[-1] if one.bound else None)
            typed = {k: one.settings[k] for k in ("lr", "personal_lr", "outer_lr", "rho") if k in one.settings}
            again = examine(method, **common, **{setting: value}, **typed)  # as somebody types them
            assert again.measured == one.measured


def test_rates_are_those_of_the_corollaries() -> None:
    """From the papers' own lines, with the constants that the command prints."""
    T, K = 50, 3
    o = examine("dfedsam", rounds=T, rates="corollary", steps=K, clients=4)
    assert o.settings["lr"] == pytest.approx(0.1 / (o.constant("L") * math.sqrt(K * T)), rel=1e-12)
    assert o.settings["rho"] == pytest.approx(0.1 / math.sqrt(T), rel=1e-12)
    o = examine("dfedpgp", rounds=T, rates="corollary", steps=K, personal_steps=4, clients=4)
    lr, own = (o.settings[k] for k in ("lr", "personal_lr"))
    assert lr * o.constant("L_u") * K * math.sqrt(T) == pytest.approx(1 / 32)
    assert own * o.constant("L_v") * 4 * math.sqrt(T) == pytest.approx(1 / 8)
    n, m, common = 6, 2, {"clients": 6, "participation": 2, "steps": K, "rounds": T, "rates": "corollary"}
    o = examine("fedavg-p", problem="coupling=0", **common)  # where b is the same at every model
    L, F0, b2, s2 = o.constant("L"), o.constant("F0"), o.constant("b") ** 2, o.constant("sigma_u") ** 2
    spread = 4 * (n - m) * K * b2 / (m * n) + s2 / m + m * s2 / n
    assert o.constant("gamma") == pytest.approx(1 / (32 * L * K + math.sqrt(3 * L * K * T / F0 * spread)), rel=1e-9)
    assert o.settings["outer_lr"] == pytest.approx(max(math.sqrt(m), math.sqrt(b2 * T / (L * F0))), rel=1e-9)
    assert o.bound is not None
    assert o.bound[-1] <= 8 * math.sqrt(3 * spread * L * F0 / (K * T)) + 129 * L * F0 / T  # Corollary 3.8
    o = examine("scaffold-p", **common)
    L, F0, s2 = o.constant("L"), o.constant("F0"), o.constant("sigma_u") ** 2
    noise = s2 / m + m * s2 / n
    gamma = 1 / (72 * L * K * max(n ** (2 / 3) / m, 1) + math.sqrt(37 * L * K * T / F0 * noise))
    assert o.constant("gamma") == pytest.approx(gamma, rel=1e-9)
    assert o.bound is not None
    largest = 288 * L * F0 / T * max(1, n ** (2 / 3) / m)
    assert o.bound[-1] <= 8 * math.sqrt(37 * L * F0 / (K * T) * noise) + largest  # Corollary 4.6


def halves(s: Sweep) -> bool:
    """Whether the bound falls like the square root that the corollary states, and the measured is below it."""
    assert all(p.bound is not None and p.measured <= p.bound for p in s.points)
    assert s.order.exponent == -0.5
    return s.bound_slope is not None and abs(s.bound_slope + 0.5) < 0.05


def test_bounds_fall_with_the_stated_exponent_where_its_terms_lead() -> None:
    assert halves(sweep("dfedsam", "T", [50, 200], clients=4, topology="full"))
    assert halves(sweep("dfedpgp", "T", [36, 144], clients=4, topology="exponential"))
    loud = "noise=30,spread=0,start=0.5"
    assert halves(sweep("fedavg-p", "T", [50, 200], clients=4, problem=loud))
    assert halves(sweep("scaffold-p", "K", [2, 8], clients=4, rounds=50, problem=f"{loud},smoothness=0.1"))
    several = sweep("dfedsam-mgs", "m", [4, 6], rounds=2, gossip_steps=2)
    assert (several.where, several.order.exponent) == ("DFedSAM, Corollary 4.1.2", -2.0)


def test_c_and_q_of_long_runs_are_not_made_of_rounding() -> None:
    """What is left after forty rounds is 1e-16 for ever; it made every C and q useless from 200 rounds on."""
    graph = ct.topology.build("exponential", 8)
    short, long = (push_sum_constants(graph, rounds) for rounds in (60, 400))
    assert (short.C, short.q) == (long.C, long.q) == (2.0, 0.5)


REFUSED: dict[str, tuple[list[str], str]] = {
    "no values": (["dfedsam", "--sweep", "T"], "names no values"),
    "one value": (["dfedsam", "--sweep", "T=4"], "two values or more, all different"),
    "the same value twice": (["dfedsam", "--sweep", "T=4,4"], "all different"),
    "half a round": (["dfedsam", "--sweep", "T=4,5.5"], "T=5.5 is not an integer above 0"),
    "another quantity": (["dfedsam", "--sweep", "lamda=ring,full"], "did you mean lambda"),
    "clients of no corollary": (["dfedsam", "--sweep", "m=4,8"], "does not depend on m: sweep over T or K or lambda"),
    "a graph with a server": (["fedavg-p", "--sweep", "lambda=ring,full"], "does not depend on lambda"),
    "a theorem alone": (["dfedalt", "--sweep", "T=4,8"], "has no corollary with rates: choose one of"),
    "its rates": (["fedlmt", "--corollary"], "has no corollary with rates"),
    "rounds twice": (["dfedsam", "--sweep", "T=4,8", "--rounds", "5"], "leave rounds out"),
    "a cohort twice": (["fedavg-p", "--sweep", "m=1,2", "--set", "participation=2"], "leave participation out"),
    "rates twice": (["dfedsam", "--sweep", "T=4,8", "--corollary"], "leave --corollary out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(cli: Cli, tmp_path: Path, case: str) -> None:
    words, told = REFUSED[case]
    cli.refuse("theory", *words, cwd=tmp_path, names=(told,))


def test_the_command_prints_the_points_and_both_slopes(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = ("--clients", "4", "--png", "a.png")
    done = cli.succeed("theory", "dfedsam", "--sweep", "lambda=ring,full", "--rounds", "6", *small, cwd=tmp_path)
    s = sweep("dfedsam", "lambda", ["ring", "full"], rounds=6, clients=4)
    for p in s.points:
        assert any(x.split()[:2] == [p.value, f"{p.x:.4g}"] and f"{p.bound:.5g}" in x for x in done.out.splitlines())
    assert f"bound {s.bound_slope:+.3f}; the corollary states -2" in done.out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    void = cli.refuse(
        "theory", "dfedsam", "--sweep", "K=1,40", "--rounds", "6", cwd=tmp_path, names=("no bound at K = 40", "lower")
    )
    assert "fitted exponent of K" in void.out


def test_rates_are_given_once() -> None:
    with pytest.raises(UserError, match="leave rates out"):
        sweep("dfedsam", "T", [4, 8], rates="corollary")
