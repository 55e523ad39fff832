"""The benchmark's two sides do the same work, which checks FedAvg and DFedAvg against independent code too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import coterie as ct
import plain
import speed as command
from coterie.core.errors import UserError
from coterie.data import Federation
from measure import Result, Side, measure, measure_memory
from workloads import SEED, WORKLOADS, Workload, find, make_algorithm, make_cohorts, make_federation, make_model

# Two passes over one full batch: the order of the samples does not matter, the number of steps does.
TINY = {
    "W1": replace(WORKLOADS["W1"], clients=4, cohort=3, samples=5, batch_size=None, epochs=2, rounds=2),
    "W2": replace(WORKLOADS["W2"], clients=6, cohort=6, samples=8, batch_size=None, epochs=2, rounds=2),
    "W3": replace(WORKLOADS["W3"], clients=5, cohort=5, samples=5, batch_size=None, epochs=2, rounds=2),
}


def unequal(w: Workload) -> Federation:
    """Fewer samples on client 0, so that a mean by size is not a plain mean; one test sample, as none is needed."""
    full, none = make_federation(w), torch.arange(0)
    tests = (torch.arange(1), *(none for _ in full.test[1:]))
    train = (full.train[0][:2], *full.train[1:])
    return replace(full, train=train, test_x=full.test_x[:1], test_y=full.test_y[:1], test=tests)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("w", TINY.values(), ids=TINY)
def test_coterie_and_the_plain_loop_end_at_the_same_models(w: Workload, engine: str) -> None:
    federation = unequal(w)
    model, algorithm = make_model(w, federation), make_algorithm(w)
    theirs = plain.run(w, federation, model, make_cohorts(w, federation)).states
    run = ct.fit(model, federation, algorithm, rounds=w.rounds, seed=SEED, engine=engine, progress=False)
    for i, client in enumerate(run.clients):
        torch.testing.assert_close(client.shared, dict(theirs[i % len(theirs)]), rtol=0, atol=1e-5)


def test_a_step_moves_every_model() -> None:
    """Equal models would mean nothing if nobody had trained."""
    w = TINY["W3"]
    federation = make_federation(w)
    model = make_model(w, federation)
    states = plain.run(w, federation, model, make_cohorts(w, federation)).states
    for state in states:
        assert all((state[k] - v).abs().max() > 1e-4 for k, v in model.named_parameters())
    assert len({float(state["0.bias"][0]) for state in states}) == w.clients


@pytest.mark.parametrize(
    ("name", "clients", "cohort", "samples", "parameters", "steps"),
    [("W1", 100, 10, 500, 582_026, 10), ("W2", 1000, 100, 60, 7_850, 3), ("W3", 20, 20, 100, 582_026, 25)],
)
def test_the_workloads_are_those_that_are_announced(
    name: str, clients: int, cohort: int, samples: int, parameters: int, steps: int
) -> None:
    w = WORKLOADS[name]
    assert (w.clients, w.cohort, w.samples) == (clients, cohort, samples)
    assert w.batch_size is not None
    assert w.epochs * w.samples // w.batch_size == steps
    federation = make_federation(replace(w, samples=1))
    assert sum(p.numel() for p in make_model(w, federation).parameters()) == parameters
    assert [len(c) for c in make_cohorts(w, federation)] == [cohort] * w.rounds


def test_clients_differ_in_their_labels_and_the_data_is_fixed() -> None:
    w = replace(WORKLOADS["W2"], clients=20)
    federation = make_federation(w)
    most_frequent = federation.class_counts().max(1).values / w.samples
    assert most_frequent.mean() > 0.3  # 0.17 or so if all drew from the same mix
    assert federation.x.abs().max() <= 1
    assert federation.fingerprint() == make_federation(w).fingerprint()


def test_every_side_is_measured_as_often_as_asked() -> None:
    said: list[str] = []
    result = measure(TINY["W2"], 2, said.append)
    assert [len(r) for r in (*result.plain.rounds, *result.coterie.rounds)] == [2] * 4
    assert [line.split()[3] for line in said] == ["plain", "coterie"] * 2
    assert result.plain.test_loss == pytest.approx(result.coterie.test_loss, rel=1e-4)
    assert result.ratio == pytest.approx(result.plain.seconds / result.coterie.seconds)


def test_a_ratio_needs_losses_that_agree(capsys: pytest.CaptureFixture[str]) -> None:
    sides = Side([[2.0, 4.0, 9.0]], test_loss=1.0), Side([[1.0, 2.0, 3.0]], test_loss=1.1)
    assert Result(TINY["W1"], *sides).ratio == 2
    apart = Result(TINY["W1"], sides[0], replace(sides[1], test_loss=1.3))
    assert apart.ratio is None
    command.show_measurements([apart], 1)
    assert "losses differ" in capsys.readouterr().out
    assert Result(TINY["W1"], sides[0], Side([[1.0]])).ratio is None  # NaN: nothing was learned


def test_memory_is_that_of_a_fresh_process() -> None:
    result = Result(TINY["W2"], Side(), Side())
    measure_memory(result, print)
    for side in (result.plain, result.coterie):
        assert side.peak_memory is not None
        assert 50 * 2**20 < side.peak_memory < 2**30


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find", lambda names: [TINY["W2"]])
    monkeypatch.setattr(command, "measure_memory", lambda result, say: None)
    assert command.show_bench(["W2"], 1, tmp_path / "bench.json") == 0
    shown, progress = capsys.readouterr()
    assert "times faster" in shown
    assert "repeat 1/1" in progress
    written = json.loads((tmp_path / "bench.json").read_text())
    assert set(written) == {"machine", "repeats", "workloads"}
    assert written["workloads"][0]["ratio"] > 0
    assert max(map(len, shown.splitlines())) <= 100


def test_the_command_fails_where_the_sides_learned_different_things(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = Result(TINY["W2"], Side([[1.0]], 1.0), Side([[1.0]], 2.0))
    monkeypatch.setattr(command, "measure", lambda *_: apart)
    monkeypatch.setattr(command, "measure_memory", lambda *_: None)
    assert command.show_bench(["W2"], 1, None) == 1


def test_a_missing_folder_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        command.show_bench([], 1, tmp_path / "nowhere" / "bench.json")


def test_a_wrong_name_names_the_right_ones() -> None:
    assert [w.name for w in find(["w3", "W1"])] == ["W3", "W1"]
    with pytest.raises(UserError, match="W2"):
        find(["W9"])
