"""Capacities as typed: who has which, and in which rounds; what is trained, sent and counted in each stage."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.algorithms.capacities import DEPTHS, RANKS, WIDTHS, Share, levels, shares
from coterie.algorithms.update import final_models
from coterie.core.errors import UserError
from coterie.engines import Serial, Vectorized
from coterie.models.model import Model, cross_entropy
from coterie.submodels.staged import stage_lengths
from coterie.training.experiment import Experiment
from laws import COMMON
from toys import experiment, net, play, ragged

alg = ct.algorithms
ONE: dict[str, Any] = {**COMMON, "epochs": 1, "participation": 3}
NARROWING = ["heterofl", "fedrolex", "feddropout"]


def test_shares_of_the_clients() -> None:
    thirds = shares("b4-b3-b2", WIDTHS, 20, rounds=5)
    assert [(s.capacity, len(s.clients)) for s in thirds] == [(1.0, 6), (0.75, 7), (0.5, 7)]
    assert np.concatenate([s.clients for s in thirds]).tolist() == list(range(20))
    assert [s.capacity for s in shares("b4-b3-b2-b1", RANKS, 4, rounds=5)] == [1.4, 0.6, 0.15, 0.01]
    assert [s.capacity for s in shares("b4-b3-b2-b1", DEPTHS, 4, rounds=5)] == [4.0, 3.0, 2.0, 1.0]
    assert all(s.lasts(t) for s in thirds for t in (0, 4, 1000))


def lengths(text: str, rounds: int) -> list[int]:
    """How many of the rounds each capacity lasts, counted round by round."""
    stages = shares(text, WIDTHS, 3, rounds)
    frozen = [[s.capacity for s in stages if s.lasts(t)] for t in range(rounds)]
    assert all(len(one) == 1 for one in frozen)  # everybody has exactly one at any time
    assert all(s.clients.tolist() == [0, 1, 2] for s in stages)
    return [frozen.count([s.capacity]) for s in stages]


@pytest.mark.parametrize("text", ["b1@250-b2@250-b3@250-b4@1250", "b1@250-b2@250-b3@250-b4"])
def test_rounds_as_printed(text: str) -> None:
    assert lengths(text, 2000) == [250, 250, 250, 1250]


@pytest.mark.parametrize("rounds", [8, 15, 17, 100, 2000, 3000])
@pytest.mark.parametrize("last", ["b4@0.625", "b4@5/8", "b4"])
def test_shares_of_the_rounds_grow_with_progfed(rounds: int, last: str) -> None:
    assert lengths(f"b1@1/8-b2@0.125-b3@0.125-{last}", rounds) == stage_lengths(rounds, 4)


def test_thirds_of_the_rounds_are_exact() -> None:
    assert lengths("b1@1/3-b2@1/3-b3@1/3", 9) == [3, 3, 3]


@pytest.mark.parametrize(
    ("text", "rounds", "words"),
    [
        ("b1@250-b4@1250", 2000, ("1500 rounds", "there are 2000", "leave the last number out")),
        ("b1@0.5-b4@0.25", 8, ("0.75 of all rounds", "leave the last number out")),
        ("b1-b4@3", 8, ("how long", "only the last")),
        ("b1@0.5-b2@2-b4", 8, ("mix rounds with shares",)),
        ("b1@9-b4", 8, ("no round of 8", "more rounds")),
        ("b1@1/8-b4", 4, ("no round of 4", "more rounds")),
        ("b1@1/8-b4", 0, ("no round of 0", "more rounds")),
        ("b1@soon-b4", 8, ("@soon", "b1@250")),
        ("b1@0-b4", 8, ("@0", "b1@250")),
        ("b1@1.5-b4", 8, ("@1.5", "b1@250")),
        ("b1@1/0-b4", 8, ("@1/0", "b1@250")),
        ("b1x3@2-b4", 8, ("clients (x) and rounds (@)", "b1@5-b4")),
        ("b7@2-b4", 8, ("unknown capacity 'b7'", "choose one of b1, b2, b3, b4")),
    ],
)
def test_refused_in_a_sentence(text: str, rounds: int, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refused:
        shares(text, WIDTHS, 3, rounds)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["fedlmt", "fedhmv2", "pfedlmt"])
def test_one_rank_lasts(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} .*leave the rounds \(@\) out"):
        alg.build(name, capacities="b1@0.5-b2")


def changed(e: Experiment, now: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which entries a round has moved."""
    return {k: now[k] != before[k] for k in e.model.parameters}


@pytest.mark.parametrize("name", NARROWING)
def test_the_channels_of_each_stage(name: str) -> None:
    """2 of 8 channels, then 4, then all; the rows that a round moves are as many as its stage has."""
    algorithm = alg.build(name, **{**ONE, "participation": 1, "weight_decay": 0.1}, capacities="0.25@2-0.5@1-1")
    e = experiment(net("mlp"), ragged("mlp"), algorithm, rounds=5)
    now, moved = e.start(), []
    for t in range(5):
        before = now.state.u
        now, _ = e.run_round(now, t, evaluate=False)
        entries = changed(e, now.state.u, before)["3.weight"]  # [3, 8]
        moved.append(int(entries.any(0).sum()))
        assert bool((entries.any(0) == entries.all(0)).all())
    assert moved == [2, 2, 4, 8, 8]


@pytest.mark.parametrize("name", [*NARROWING, "fedhm", "depthfl", "flanc"])
@pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])
def test_a_stage_is_the_plain_run(name: str, engine: Any) -> None:
    """One stage is the run without stages, bit for bit; of two stages each is a plain run from where it starts."""
    kind = "residual" if name in ("depthfl", "flanc") else "groupnorm"
    own = {"fedhm": {"keep_layers": 1}, "flanc": {"n_basis": 0.5, "basis_fraction": 0.5}}.get(name, {})
    low, high = ("1", "2") if name == "depthfl" else ("0.5", "1")

    def of(capacities: str) -> Experiment:
        algorithm = alg.build(name, **ONE, **own, capacities=capacities)
        return experiment(net(kind), ragged("groupnorm"), algorithm, engine, rounds=3)

    plain, staged = play(of(high), 3).state.u, play(of(f"{high}@3"), 3).state.u
    assert all(torch.equal(staged[k], v) for k, v in plain.items())
    if name == "flanc":  # a plain run of another width has no place for this one's coefficients
        return
    grown, first, second = of(f"{low}@2-{high}"), of(low), of(high)
    now = play(first, 2)._replace(values=None)
    wanted, _ = second.run_round(now, 2, evaluate=False)
    half = play(grown, 2)
    end, _ = grown.run_round(half, 2, evaluate=False)
    assert all(torch.equal(end.state.u[k], v) for k, v in wanted.state.u.items())
    again, _ = of(f"{low}@2-{high}").run_round(half, 2, evaluate=False)  # another process goes on
    assert all(torch.equal(again.state.u[k], v) for k, v in end.state.u.items())


def test_bytes_and_flops_by_stage() -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.heterofl(**ONE, capacities="0.25@1/4-0.5@1/4-1@1/2"), rounds=4)
    now, rows = e.start(), []
    for t in range(4):
        now, row = e.run_round(now, t, evaluate=False)
        rows.append(row)
    sizes = [sum(p.numel() for p in net("mlp").at_width(rate).parameters()) for rate in (0.25, 0.5, 1.0, 1.0)]
    assert [row["parameters_sent"] for row in rows] == [3 * 2 * size for size in sizes]  # three of them, both ways
    assert [row["bytes_sent"] for row in rows] == [8 * 3 * 2 * size for size in sizes]
    passes = [sum(int(e.train.sizes[i]) for i in e.schedule.cohort(t)) for t in range(4)]
    widths = [2, 4, 8, 8]
    assert [row["flops"] for row in rows] == [3 * n * w * (16 + 3) for n, w in zip(passes, widths, strict=True)]


def test_what_a_client_ends_with_is_that_of_the_last_stage() -> None:
    model, growing = Model(net("mlp"), cross_entropy), alg.heterofl(capacities="0.25@2-0.5")
    for rounds, rate in ((5, 0.5), (3, 0.5)):
        forms = final_models(growing, model, clients=4, rounds=rounds, seed=0)
        sizes = {sum(p.numel() for p in form.module.parameters()) for form in forms}
        assert sizes == {sum(p.numel() for p in net("mlp").at_width(rate).parameters())}


def test_levels_have_no_rounds() -> None:
    assert levels("b1@250-b4", WIDTHS) == [0.25, 1.0]
    assert Share(1.0, np.arange(2), 2, 4).lasts(4) is False
