"""How often a run is evaluated: never so often that training waits for long, and the same numbers whenever it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms.base import Algorithm
from coterie.cli.app import app
from coterie.data import Federation
from coterie.training import schedule as evaluation_interval
from coterie.training.experiment import Experiment
from coterie.training.schedule import Schedule
from coterie.training.settings import RunSettings
from toys import experiment, net, ragged

ROUNDS = 7
PARTIAL: dict[str, Algorithm] = {
    "fedavg": ct.algorithms.fedavg(participation=2, epochs=1, batch_size=4),
    "fedper": ct.algorithms.fedper(participation=2, epochs=1, batch_size=4, personal="head"),
    "fedbabu": ct.algorithms.fedbabu(participation=2, epochs=1, batch_size=4, finetune_epochs=1, personal="head"),
    "heterofl": ct.algorithms.heterofl(participation=3, epochs=1, batch_size=4, capacities="1-0.5"),
    "dfedavg": ct.algorithms.dfedavg(topology="ring", epochs=1, batch_size=4),
}


def fitted(algorithm: Algorithm, **options: Any) -> ct.Run:
    return ct.fit(net("mlp"), ragged("mlp"), algorithm, rounds=ROUNDS, engine="serial", progress=False, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in PARTIAL),
        # In round 2, 1 or 5 everybody is there, and some of them not again before the evaluation.
        *(("dfedavg", {"offline": 0.15, "seed": seed}) for seed in (0, 7, 14)),
    ],
)
def test_a_round_is_measured_the_same_whatever_lies_between(name: str, options: dict[str, Any]) -> None:
    """Also what clients had right after their latest training, which may be rounds ago."""
    often, seldom = (fitted(PARTIAL[name], evaluate_every=every, **options).history for every in (1, 3))
    for one, other in zip(often, seldom, strict=True):
        if one["round"] in (3, 6, 7):
            times = {"seconds": 0, "evaluation_seconds": 0}
            assert other | times == one | times
        else:
            assert other["personal_accuracy_after_mix"] is other["consensus_distance"] is None
            assert other["train_loss"] == one["train_loss"]


def test_nobody_is_measured_who_trains_again_before_the_next_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    values = ct.measure.personal_values

    def counted(engine: Any, model: Any, models: Any, tests: Any, clients: Any, *rest: Any) -> Any:
        measured.append(len(clients))
        return values(engine, model, models, tests, clients, *rest)

    monkeypatch.setattr(ct.measure, "personal_values", counted)
    fitted(PARTIAL["fedavg"], evaluate_every=ROUNDS)
    assert sum(measured) <= 2 * 5  # after aggregation, and after local training at most once


def of(algorithm: Algorithm, fed: Federation | None = None, rounds: int = ROUNDS) -> Experiment:
    return experiment(net("mlp"), fed or ragged("mlp"), algorithm, rounds=rounds)


def equal_clients(train: int, test: int) -> Federation:
    def drawn(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        g = torch.Generator().manual_seed(0)
        return [
            (torch.randn(count, 1, 4, 4, generator=g, dtype=torch.float64), torch.arange(count) % 3) for _ in range(4)
        ]

    return ct.data.from_tensors(train=drawn(train), test=drawn(test), classes=3)


@pytest.mark.parametrize(
    ("algorithm", "trained", "evaluated"),
    [
        (ct.algorithms.dfedavg(topology="ring", epochs=1, batch_size=4), 4 * 12, 3 * 16),
        (ct.algorithms.dfedavg(topology="ring", epochs=5, batch_size=4), 5 * 4 * 12, 3 * 16),
        (ct.algorithms.fedavg(participation=0.5, epochs=2, batch_size=5), 2 * 2 * 12, 3 * 16),
        (ct.algorithms.fedavg(participation=1.0, steps=2, epochs=None, batch_size=5), 4 * 2 * 5, 3 * 16),
        (ct.algorithms.fedavg_p(participation=1.0, steps=3, batch_size=None, personal="head"), 4 * 3 * 12, 3 * 16),
        (
            ct.algorithms.fedbabu(participation=1.0, epochs=1, batch_size=4, finetune_epochs=2, personal="head"),
            4 * 12,
            4 * 16 + 3 * 2 * 4 * 12,
        ),
    ],
)
def test_passes_are_counted(
    algorithm: Algorithm, trained: int, evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_interval, "FREE_MACS", 0)
    monkeypatch.setattr(evaluation_interval, "CALL", 0)
    e = of(algorithm, equal_clients(12, 4))
    assert (evaluation_interval.training_passes(e), evaluation_interval.evaluation_passes(e)) == (trained, evaluated)
    every = evaluation_interval.evaluation_interval(e.having(rounds=1000))
    allowed = evaluation_interval.SHARE * 3 * trained  # in a round
    assert (every - 1) * allowed < evaluated <= every * allowed


def test_forms_are_counted_as_members_have_them() -> None:
    """Half of the width: half of the multiply-adds of this model; for half of the members, or of the rounds."""
    full = float(of(PARTIAL["dfedavg"]).flops_per_sample(of(PARTIAL["dfedavg"]).model))
    assert evaluation_interval.training_price(of(PARTIAL["dfedavg"])) == full
    settings = {"epochs": 1, "batch_size": 4, "participation": 1.0}
    for capacities, share in (("1", 1.0), ("0.5", 0.5), ("1x3-0.5x2", 0.8), ("0.5@1/2-1", 0.75), ("0.5@1/8-1", 0.9375)):
        e = of(ct.algorithms.heterofl(**settings, capacities=capacities), rounds=16)
        assert evaluation_interval.training_price(e) == pytest.approx(share * full)


def test_few_of_many_are_asked_for_often() -> None:
    """Each round of a cohort whose members do not come again is a call; the estimate is what really happens."""
    n, m, rounds = 60, 6, 400
    a = Schedule(n, m, RunSettings(rounds=rounds, evaluate_every=rounds))
    asked = sum(len(a.final(t)) > 0 for t in range(rounds))
    fed = ct.data.from_tensors(
        **{part: [(torch.randn(2, 4), torch.arange(2))] * n for part in ("train", "test")}, classes=2
    )
    e = experiment(torch.nn.Linear(4, 2), fed, ct.algorithms.fedavg(participation=m, epochs=1))
    assert evaluation_interval.calls(e) == pytest.approx(2 + asked, rel=0.3)
    assert evaluation_interval.calls(of(ct.algorithms.local(epochs=1))) == 3


def test_what_takes_no_time_is_done_in_every_round() -> None:
    e = of(ct.algorithms.dfedavg(topology="ring", epochs=1))
    assert evaluation_interval.evaluation_interval(e) == 1
    macs = evaluation_interval.evaluation_passes(e) * e.flops_per_sample(e.model) / 3
    rounds = int(evaluation_interval.FREE_MACS / (macs + 4 * evaluation_interval.CALL))
    assert evaluation_interval.evaluation_interval(e.having(rounds=rounds)) == 1
    assert evaluation_interval.evaluation_interval(e.having(rounds=rounds + 1)) > 1


def test_what_was_asked_for_is_measured_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_interval, "FREE_MACS", 0)
    e = of(ct.algorithms.local(epochs=1), rounds=1000)
    assert evaluation_interval.evaluation_interval(e) > 1
    assert evaluation_interval.evaluation_interval(e.having(patience=2)) == 1
    assert evaluation_interval.evaluation_interval(e.having(record=["gradients"])) == 1


@pytest.mark.parametrize(("rounds", "every"), [(1, 1), (10, 1), (19, 1), (20, 2), (45, 4)])
def test_a_run_is_evaluated_ten_times_at_least(rounds: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one evaluation, after the last round, every target would be reached in that round."""
    monkeypatch.setattr(evaluation_interval, "FREE_MACS", 0)
    e = of(ct.algorithms.local(epochs=1), rounds=rounds)
    assert evaluation_interval.evaluation_interval(e) == every


def test_a_run_says_and_keeps_its_rhythm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(resume: bool) -> int:
        algorithm, out = ct.algorithms.local(epochs=1, batch_size=4), tmp_path / "run"
        options = {"rounds": 20, "engine": "serial", "evaluate_every": "auto", "resume": resume}
        every: int = ct.fit(net("mlp"), ragged("mlp"), algorithm, out=out, **options).config["evaluate_every"]
        return every

    with monkeypatch.context() as m:
        m.setattr(evaluation_interval, "FREE_MACS", 0)
        every = run(resume=False)
    assert every > 1
    assert f"evaluated every {every} rounds" in capfd.readouterr().err
    assert run(resume=True) == every


@pytest.mark.parametrize("wrong", [0, -1, "often", 1.5])
def test_other_rhythms_are_refused(wrong: Any) -> None:
    with pytest.raises(ct.UserError, match="evaluate_every"):
        fitted(ct.algorithms.local(epochs=1), evaluate_every=wrong)


def test_methods_that_are_compared_are_evaluated_in_the_same_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of them trains five times as long as the other, and could be evaluated more often."""
    monkeypatch.setattr(evaluation_interval, "FREE_MACS", 0)
    monkeypatch.chdir(tmp_path)
    words = "compare dpsgd dfedavg --data synthetic --clients 4 --rounds 20 --out c --quiet"
    done = CliRunner().invoke(app, words.split())
    assert {json.loads(p.read_text())["evaluate_every"] for p in tmp_path.glob("c/*/config.json")} == {2}
    assert "Evaluated every 2 rounds: a count of rounds to a target is up to 1 too high." in done.stdout


def test_a_round_is_chosen_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_interval, "FREE_MACS", 0)
    algorithm, kept = ct.algorithms.local(epochs=1, batch_size=4), {"validation": 0.3, "evaluate_every": "auto"}
    with monkeypatch.context() as m:
        m.setattr(evaluation_interval, "EVALUATIONS", 1)
        for asked in ({"select": "best-validation"}, {"patience": 3}):
            assert fitted(algorithm, **kept, **asked).config["evaluate_every"] == 1
        assert fitted(algorithm, **kept).config["evaluate_every"] > 1


@pytest.mark.parametrize("every", [1, 3, 20])
def test_who_comes_again_is_known_wherever_a_run_begins(every: int) -> None:
    """Rounds are asked for backwards: a continued run begins anywhere, and a cluster may repeat one."""
    a = Schedule(9, 0.4, RunSettings(seed=1, rounds=14, evaluate_every=every))
    for t in reversed(range(14)):
        later = {int(i) for k in range(t + 1, a.evaluated(t) + 1) for i in a.cohort(k)}
        assert a.final(t).tolist() == [i for i in a.cohort(t).tolist() if i not in later]
