"""Which round is reported and deployed, held against the rows and the models of single rounds; stopping early."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.core.errors import UserError
from coterie.measure.compare import Comparison, MethodRuns, RunData
from coterie.measure.selection import reported, stops_early
from helpers_cli import Cli, assert_same_run

ROUNDS = 6
METHODS: dict[str, dict[str, Any]] = {
    "dfedalt": {"topology": "ring", "lr": 0.5, "personal_lr": 0.5},
    "fedavg": {"participation": 0.5, "lr": 0.5},
    "fedbabu": {"participation": 1.0, "lr": 0.3, "finetune_epochs": 1},
}


def federation() -> ct.data.Federation:
    return ct.data.federate("synthetic:size=160,classes=3,noise=2", clients=4, partition="dirichlet:1", seed=0)


@cache
def run(method: str, rounds: int = ROUNDS, select: str = "last", engine: str = "serial", **more: Any) -> ct.Run:
    fed = federation()
    algorithm = ct.algorithms.build(method, epochs=1, batch_size=8, lr_decay=1.0, **METHODS[method])
    module = ct.models.build("logreg", fed, seed=0)
    given: dict[str, Any] = {"validation": 0.3, "select": select, "engine": engine, "progress": False, **more}
    return ct.fit(module, fed, algorithm, rounds=rounds, seed=0, **given)


def accuracy(client: ct.Client, own: torch.Tensor) -> float:
    """Counted here, by the module itself."""
    fed = federation()
    return float((client.module()(fed.test_x[own]).argmax(1) == fed.test_y[own]).double().mean())


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", ["best-validation", "best-test"])
def test_one_round_for_all(method: str, rule: str, engine: str) -> None:
    """The models are those of a run that ends with the chosen round, and the numbers are those of its row."""
    found, protocol = run(method, select=rule, engine=engine), "after_finetune" if method == "fedbabu" else "after_mix"
    column = "personal_accuracy_validation" if rule == "best-validation" else f"personal_accuracy_{protocol}"
    scores = [row[column] for row in found.history]  # type: ignore[literal-required]
    t = int(np.argmax(scores))
    assert found.summary["selection"] == {"rule": rule, "round": t + 1}
    assert found.client_summary["rounds"] == [t + 1] * 4
    row, told = found.history[t], found.summary["personal_accuracy"][protocol]
    assert told is not None
    assert told["final"] == row[f"personal_accuracy_{protocol}"]  # type: ignore[literal-required]
    assert told["worst"] == row[f"personal_accuracy_{protocol}_worst"]  # type: ignore[literal-required]
    assert found.summary["global_accuracy"] == row["global_accuracy"]
    short = run(method, rounds=t + 1, engine=engine)
    for mine, theirs in zip(found.clients, short.clients, strict=True):
        a, b = ({**c.shared, **c.personal} for c in (mine, theirs))
        assert all(torch.equal(a[k], b[k]) for k in a)
    measured = [accuracy(c, own) for c, own in zip(found.clients, federation().test, strict=True)]
    assert measured == pytest.approx(found.client_summary["accuracy"][protocol], abs=1e-9)
    assert told["final"] == pytest.approx(np.mean(measured), abs=1e-9)


def test_some_rule_leaves_the_last_round() -> None:
    """The cases above are worth something: the chosen rounds are not all the last."""
    assert {
        run(m, select=r).summary["selection"]["round"] for m in METHODS for r in ("best-validation", "best-test")
    } - {ROUNDS}


def test_each_client_by_itself() -> None:
    """Every client has its model, and its numbers, of the first round that is best on its own validation samples."""
    found = run("dfedalt", select="best-validation-per-client")
    every = [run("dfedalt", rounds=t) for t in range(1, ROUNDS + 1)]
    scores = np.array([each.client_summary["accuracy"]["validation"] for each in every])
    taken = scores.argmax(axis=0)
    assert found.client_summary["rounds"] == (taken + 1).tolist()
    assert len(set(taken.tolist())) > 1
    for i, t in enumerate(taken.tolist()):
        assert torch.equal(found.clients[i].personal["1.weight"], every[t].clients[i].personal["1.weight"])
    mixed = [every[t].client_summary["accuracy"]["after_mix"][i] for i, t in enumerate(taken.tolist())]
    told = found.summary["personal_accuracy"]["after_mix"]
    assert told is not None
    assert (told["final"], told["worst"]) == pytest.approx((np.mean(mixed), np.min(mixed)))
    data = RunData(found.config, found.history, found.summary, found.client_summary)
    assert data.last("personal_accuracy_after_mix_p10") == pytest.approx(np.quantile(mixed, 0.1))


def test_what_is_shown_says_by_which_rule() -> None:
    def said(rule: str) -> str:
        r = run("dfedalt", select=rule)
        compared = Comparison([MethodRuns("a", [RunData(r.config, r.history, r.summary, r.client_summary)])])
        return " ".join([*compared.verdict, *compared.protocol(compared.columns, "*"), repr(r)])

    assert "last evaluated round: round 6" in said("last")
    best = run("dfedalt", select="best-validation").summary["selection"]["round"]
    assert f"best on the clients' validation samples: round {best}" in said("best-validation")
    assert "each client's own round" in said("best-validation-per-client")
    assert ["ptimistic" in said(rule) for rule in ("last", "best-validation", "best-test")] == [False, False, True]
    assert "(best-test, optimistic)" in said("best-test")


def test_a_run_stops_after_evaluations_that_were_no_better() -> None:
    scores = [row["personal_accuracy_validation"] for row in run("fedavg").history]  # type: ignore[typeddict-item]
    patient = run("fedavg", patience=2)
    best = 0
    stop = ROUNDS
    for t, score in enumerate(scores):
        best = t if score > scores[best] else best
        if t - best >= 2:
            stop = t + 1
            break
    assert stop < ROUNDS
    assert len(patient.history) == stop
    assert patient.history[-1]["train_loss"] == run("fedavg").history[stop - 1]["train_loss"]
    assert (patient.summary["rounds"], patient.client_summary["round"]) == (stop, stop)


def test_a_run_stops_where_its_models_are_good_enough(tmp_path: Path) -> None:
    whole = run("fedavg", select="best-validation")
    scores = [row["personal_accuracy_validation"] for row in whole.history]
    enough = sorted(scores)[len(scores) // 2]
    stop = next(t for t, score in enumerate(scores, 1) if score >= enough)
    short = run("fedavg", select="best-validation", stop_at=100 * enough, out=tmp_path / "a")
    assert len(short.history) == stop < len(scores)
    assert (short.config["stop_at"], short.summary["rounds"]) == (100 * enough, stop)
    assert ct.load(tmp_path / "a").history == short.history
    with pytest.raises(ct.UserError, match=r"stop_at=80\.0 looks at validation samples, and there are none"):
        run("fedavg", stop_at=80, validation=0.0)
    mse = {"name": "mse", "column": "mse", "higher_is_better": False, "percent": False}
    lower: Any = {"stop_at": 0.3, "metrics": [mse]}
    errors: Any = [{"round": t, "personal_mse_validation": v} for t, v in enumerate((0.5, 0.4, 0.2), 1)]
    assert [stops_early(lower, errors[:n]) for n in (1, 2, 3)] == [False, False, True]


def test_lower_numbers_and_ties() -> None:
    config: Any = {"select": "best-validation", "patience": 2}
    history: Any = [
        {"round": t, "personal_accuracy_validation": v} for t, v in enumerate((0.5, 0.7, None, 0.7, 0.6), 1)
    ]
    assert reported(config, history) is history[1]  # the first of equally good ones
    assert [stops_early(config, history[:n]) for n in range(1, 6)] == [False, False, False, False, True]
    assert reported({"select": "last"}, history) is None  # type: ignore[typeddict-item]
    history[3]["personal_accuracy_validation"] = np.nextafter(0.7, 1)  # the same mean of other clients' numbers
    assert reported(config, history) is history[1]
    assert stops_early(config, history)
    errors: Any = [{"round": t, "personal_mse_validation": v} for t, v in enumerate((0.5, 0.2, 0.4, 0.3), 1)]
    lower: Any = {**config, "metrics": [{"name": "mse", "column": "mse", "higher_is_better": False}]}
    assert reported(lower, errors) is errors[1]
    assert [stops_early(lower, errors[:n]) for n in range(1, 5)] == [False, False, False, True]


def test_errors_are_chosen_by_the_lowest() -> None:
    """A regression, each client by itself: held against the rounds of shorter runs."""
    draw = torch.Generator().manual_seed(0)
    x, noise = torch.randn(4, 24, 3, generator=draw), torch.randn(4, 24, 1, generator=draw)
    pairs = [(mine, mine.sum(1, keepdim=True) + own) for mine, own in zip(x, noise, strict=True)]
    fed = ct.data.from_tensors([(a[:12], b[:12]) for a, b in pairs], [(a[12:], b[12:]) for a, b in pairs])
    alg = ct.algorithms.dfedavg(topology="ring", lr=0.3, epochs=2, batch_size=4)

    def trained(rounds: int, select: Any) -> ct.Run:
        given: dict[str, Any] = {"loss": torch.nn.functional.mse_loss, "validation": 0.25, "progress": False}
        return ct.fit(lambda: torch.nn.Linear(3, 1), fed, alg, rounds=rounds, select=select, **given)

    found = trained(4, "best-validation-per-client")
    every: Any = [trained(t, "last").client_summary for t in range(1, 5)]
    taken = np.array([each["mse"]["validation"] for each in every]).argmin(axis=0)
    assert found.client_summary["rounds"] == (taken + 1).tolist()
    told: Any = found.summary
    mixed = [every[t]["mse"]["after_mix"][i] for i, t in enumerate(taken.tolist())]
    assert told["personal_mse"]["after_mix"]["worst"] == pytest.approx(max(mixed))


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"select": "best-validation"}, "validation=0.2"),
        ({"select": "best-validation-per-client"}, "validation=0.2"),
        ({"patience": 3}, "validation=0.2"),
        ({"select": "best"}, "best-test"),
        ({"patience": 0, "validation": 0.2}, "at least 1"),
    ],
)
def test_a_choice_without_samples_is_refused(options: dict[str, Any], fix: str) -> None:
    fed = federation()
    with pytest.raises(UserError, match=fix):
        ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(), rounds=1, progress=False, **options)


SMALL = ("--data", "synthetic:size=160,classes=3,noise=2", "--clients", "4", "--rounds", "6", "--model", "logreg")
COMMAND = ("run", "dfedalt", *SMALL, "--set", "lr=0.5", "--set", "epochs=1", "--validation", "0.3")


@pytest.mark.parametrize(
    ("rule", "kills"),
    [
        ("best-validation", ["rename {}/checkpoint/round-000004.json"]),
        ("best-validation-per-client", ["rename {}/checkpoint/round-000002.json", "rename {}/summary.json"]),
    ],
)
def test_an_interrupted_run_ends_with_the_same_models(cli: Cli, tmp_path: Path, rule: str, kills: list[str]) -> None:
    """Killed between what was chosen and the checkpoint of its round, and right before the run is complete."""
    command = (*COMMAND, "--select", rule, "--patience", "4")
    cli.succeed(*command, "--out", "whole", cwd=tmp_path)
    assert not (tmp_path / "whole" / "chosen").exists()
    for k, at in enumerate(kills):
        cli.run(*command, "--out", f"{k}", cwd=tmp_path, at=at.format(k))
        assert list((tmp_path / f"{k}" / "chosen").glob("round-*"))
        cli.succeed("run", f"{k}", "--resume", cwd=tmp_path)
        assert_same_run(tmp_path / "whole", tmp_path / f"{k}")


def test_a_loaded_and_exported_model_is_the_chosen_one(cli: Cli, tmp_path: Path) -> None:
    found = run("dfedalt", select="best-validation-per-client")
    found.save(tmp_path / "a")
    again = ct.load(tmp_path / "a")
    assert again.summary == found.summary
    assert torch.equal(again.clients[2].personal["1.weight"], found.clients[2].personal["1.weight"])
    cli.succeed("export", "a", "--client", "2", "--out", "m.safetensors", cwd=tmp_path)
    module = ct.export.load(tmp_path / "m.safetensors")
    assert torch.equal(module.state_dict()["1.weight"], found.clients[2].personal["1.weight"])
    with open(tmp_path / "m.safetensors", "rb") as file:
        about = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    assert int(about["round"]) == found.client_summary["rounds"][2]
    assert about["select"] == "best-validation-per-client"


def test_the_commands_say_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    for typed, names in (
        ("run dfedalt --select best-validation", ("select=best-validation", "validation=0.2")),
        ("compare dfedalt local --patience 2", ("patience=2", "validation=0.2")),
        ("run dfedalt --select best", ("select='best'", "did you mean best-test")),
        ("tune dfedalt --grid lr=0.1 --select best-test", ("validation samples", "leave --select best-test out")),
    ):
        cli.refuse(*typed.split(), *SMALL, cwd=tmp_path, names=names)
