"""Clients that are not there for whole rounds, or not drawn: they stay as they are, and nothing of others is lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from between_peers import PEERS
from coterie.cluster.shard import outline
from coterie.core.errors import UserError
from coterie.core.tensors import rows
from coterie.engines import Serial, Vectorized
from coterie.store import RunFolder, flatten
from coterie.topology import drop_messages, ring, without_absent
from laws import COMMON, METHODS, build, kind_like
from quadratic import close, column, plain, shared_only
from same_numbers import graphed_for
from shards import SHARD_OF, assert_close, conduct, put_together, shards_of
from toys import A, B, Quadratic, experiment, golden, net, play, ragged, scattered

alg = ct.algorithms
ROWS = [*PEERS, "local"]


def partly(row: str, offline: float = 0.4) -> Any:
    kind = kind_like(row, "mlp")
    return experiment(net(kind), ragged(kind), build(row), rounds=8).changed(offline=offline)


def drawn(row: str, m: float | int = 3, rounds: int = 8) -> Any:
    """Only some of five clients are active in a round, drawn for it."""
    method, settings = METHODS[row]
    kind, algorithm = kind_like(row, "mlp"), alg.build(method, **{**COMMON, **settings, "participation": m})
    return experiment(net(kind), ragged(kind), algorithm, rounds=rounds)


DRAWN = [row for row in PEERS if "participation" in (of := build(row).settings) and "weighting" not in of]
ABSENT = pytest.mark.parametrize(("row", "some"), [*((r, partly) for r in ROWS), *((r, drawn) for r in DRAWN)])


def test_a_ring_without_one_client_stays_symmetric() -> None:
    """The matrix of a symmetric graph stays doubly stochastic, dense or sparse."""
    third = 1 / 3
    expected = [[third, third, 0, third], [third, 2 * third, 0, 0], [0, 0, 1, 0], [third, 0, 0, 2 * third]]
    for W in (ring(4)(0), ring(4)(0).to_sparse()):
        for keeps in ("receiver", "sender"):
            close(without_absent(W, np.array([0, 1, 3]), keeps).to_dense(), expected)


def test_a_directed_graph_keeps_its_sums_beside_silence() -> None:
    """Rows where receivers keep what is missing, columns where senders do; whoever is offline has a 1 alone."""
    for keeps, axis, W in (("sender", 0, column(0)), ("receiver", 1, column(0).T)):
        left = without_absent(drop_messages(W, 0.5, keeps, np.random.default_rng(0)), np.array([0, 2, 3]), keeps)
        close(left.sum(axis), torch.ones(4, dtype=torch.float64))
        close(left[1], [0, 1, 0, 0])
        close(left[:, 1], [0, 1, 0, 0])


@ABSENT
def test_absent_clients_stay_as_they_are(row: str, some: Callable[[str], Any]) -> None:
    """To the last bit, in every slot; those who are there train as if everybody was, and go on from there."""
    e = some(row)
    whole = partly(row, 0.0)
    now = play(e, 1)
    after, measured = e.run_round(now, 1, evaluate=True)
    there = e.schedule.cohort(1)
    away = np.setdiff1d(np.arange(5), there)
    assert 0 < len(there) < 5
    before, later = flatten(now.state), flatten(after.state)
    assert all(torch.equal(rows(later[k], away), rows(v, away)) for k, v in before.items())
    trained, everybody = (x.program.train(now.state, x.round(1)) for x in (e, whole))
    assert_close(trained.models, rows(everybody.models, there))
    moved = [k for k, v in e.program.models(after.state).items() if not torch.equal(v, e.program.models(now.state)[k])]
    assert moved
    own = [later[k][int(there[0])] for k in before]
    assert any(not torch.equal(v, before[k][int(there[0])]) for k, v in zip(before, own, strict=True))
    assert measured["train_loss"] == pytest.approx(float(everybody.loss[there].nanmean()))
    assert measured["flops"] < whole.run_round(now, 1, evaluate=False)[1]["flops"]


@pytest.mark.parametrize("row", ROWS)
def test_with_everybody_there_nothing_changes(row: str) -> None:
    """To the last bit."""
    e, whole = partly(row, 1e-12), partly(row, 0.0)
    left, right = (x.saved(play(x, 2)) for x in (e, whole))
    assert left.keys() == right.keys()
    assert all(torch.equal(v.nan_to_num(), right[k].nan_to_num()) for k, v in left.items())


@pytest.mark.parametrize("some", [partly, drawn])
def test_what_is_mixed_is_the_matrix_without_them(some: Callable[[str], Any]) -> None:
    """W' z by hand, for those who are there."""
    e = some("dfedavgm")
    now = play(e, 1)
    r, there = e.round(1), e.schedule.cohort(1)
    W = without_absent(e.program.topology(1), there, "receiver")
    z = {k: v.clone() for k, v in now.state.x.items()}
    for k, v in e.program.train(now.state, r).models.items():
        z[k][there] = v
    mixed = e.run_round(now, 1, evaluate=False)[0].state.x
    assert_close(mixed, {k: torch.einsum("ij,j...->i...", W, v) for k, v in z.items()})
    assert e.program.traffic(now.state, r).totals.messages == int(((W > 0) & ~torch.eye(5, dtype=torch.bool)).sum())


@pytest.mark.parametrize("tau", [0, 2])
def test_push_sum_keeps_its_mass_and_finds_the_mean(tau: int) -> None:
    """Nobody trains; some are offline or not drawn, a tenth of the messages is lost, and those on their way wait."""
    algorithm = plain("osgp", topology=column, tau=tau, steps=0, participation=3)
    e = experiment(shared_only(), golden(), algorithm, drop_messages=0.1).changed(offline=0.1)
    now = scattered(e)
    for t in range(200):
        now, _ = e.run_round(now, t, evaluate=False)
        close(now.state.mu.sum() + (now.state.flying_mu.sum() if tau else 0), 4)
        close(now.state.x["u"].sum() + (now.state.flying["u"].sum() if tau else 0), 0.5)
    close(e.program.models(now.state)["u"], [0.125] * 4)


def test_gossip_on_a_symmetric_graph_finds_the_mean_too() -> None:
    e = experiment(shared_only(), golden(), plain("dfedavg", topology="ring", steps=0))
    close(play(e.changed(offline=0.3), 200, scattered(e)).state.x["u"], [0.125] * 4)


def test_a_round_with_nobody() -> None:
    engines = (Serial(), Vectorized(3), graphed_for(2), Vectorized(3))
    for row, engine in zip(("dfedpgp", "dispfl", "dfedavgm, quantized", "local"), engines, strict=True):
        e = replace(partly(row, 1.0), engine=engine)
        before = e.start()
        now, measured = e.run_round(before, 0, evaluate=True)
        assert all(torch.equal(v, flatten(now.state)[k]) for k, v in flatten(before.state).items())
        assert (measured["train_loss"], measured["messages_sent"], measured["flops"]) == (None, 0, 0)
        assert measured["personal_accuracy_after_mix"] == measured["personal_accuracy_after_train"]


BESIDE = ["dfedpgp", "osgp, overlapping", "dfedavgm, lasting", "dfedavgm, quantized", "dispfl", "dpsgd, lian"]


@pytest.mark.parametrize(
    ("row", "some"), [*((r, partly) for r in (*BESIDE, "pfedlmt, push-sum")), *((r, drawn) for r in BESIDE)]
)
def test_engines_and_shards_agree(row: str, some: Callable[[str], Any]) -> None:
    e = some(row)
    now, expected = e.run_round(play(e, 1), 1, evaluate=True)
    for engine in (Vectorized(3), graphed_for(2)):
        other = replace(e, engine=engine)
        assert_close(other.saved(play(other, 2)), other.saved(now))
    shards = shards_of(e, SHARD_OF[5])  # some with nobody
    conduct(shards, "start")
    conduct(shards, "run_round", 0, False)
    results = conduct(shards, "run_round", 1, True)
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))
    assert sum(part.costs.messages_sent for part, _ in results) == expected["messages_sent"]


def test_they_are_away_as_often_as_asked() -> None:
    e = partly("local", 0.2).having(rounds=1000)
    there = [e.schedule.cohort(t) for t in range(1000)]
    assert abs(sum(map(len, there)) - 4000) < 5 * (5000 * 0.2 * 0.8) ** 0.5
    assert len({tuple(who) for who in there}) > 20


def test_exactly_so_many_are_active_each_as_often() -> None:
    e = drawn("dfedalt", 3, rounds=1000)
    there = [e.schedule.cohort(t) for t in range(1000)]
    assert {len(set(who)) for who in there} == {3}
    counts = np.bincount(np.concatenate(there), minlength=5)
    assert np.abs(counts - 600).max() < 5 * (1000 * 0.6 * 0.4) ** 0.5
    again = drawn("dfedpgp", 0.6)
    assert all(np.array_equal(who, again.schedule.cohort(t)) for t, who in enumerate(there))


def test_active_clients_in_closed_form() -> None:
    """Of four quadratics on a ring two train and mix in each round; the weight of the others stays with receivers."""
    e = experiment(Quadratic(), golden(), plain("dfedavg", topology="ring", participation=2, lr=0.1, steps=1))
    now, x = e.start(), np.full(4, 0.5)
    for t in range(6):
        now, _ = e.run_round(now, t, evaluate=False)
        one, two = e.schedule.cohort(t)
        for i in (one, two):
            x[i] -= 0.1 * A[i] * (x[i] - B[i])
        if (two - one) % 4 != 2:  # neighbors: a third of the other, two thirds of itself
            x[[one, two]] = (2 * x[one] + x[two]) / 3, (x[one] + 2 * x[two]) / 3
        close(now.state.x["u"], x.tolist())


def test_one_active_client_has_nobody_to_mix_with() -> None:
    for m in (1, 0.1):
        with pytest.raises(UserError, match=rf"participation={m} is one client a round.*participation=1\.0"):
            drawn("dfedalt", m).check()
    with pytest.raises(UserError, match="participation=9 asks for 9 of 5 clients"):
        drawn("dfedalt", 9)


def test_a_run_remembers_and_goes_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = ct.data.federate("synthetic:size=300", clients=5, partition="iid")
    append = RunFolder.append

    def fit(offline: float = 0.4, **settings: Any) -> ct.Run:
        algorithm = alg.dfedavgm(topology="ring", participation=4, epochs=1, keep_optimizer_state=True)
        model = ct.models.build("logreg", fed)
        return ct.fit(model, fed, algorithm, rounds=3, offline=offline, progress=False, **settings)

    def stop(folder: RunFolder, row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt
        append(folder, row)

    run = fit()
    assert run.config["offline"] == 0.4
    assert 0 < run.summary["flops"] < fit(0.0).summary["flops"]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(out=tmp_path / "a")
    again = fit(out=tmp_path / "a", resume=True)
    assert all(torch.equal(v.nan_to_num(), again.final[k].nan_to_num()) for k, v in run.final.items())


def test_a_server_refuses_it() -> None:
    e = experiment(net("mlp"), ragged("mlp"), alg.fedavg())
    with pytest.raises(UserError, match=r"offline=0\.2 .* participation"):
        e.changed(offline=0.2).check()
    with pytest.raises(UserError, match="between 0 and 1"):
        partly("dfedavg", -0.1).check()
