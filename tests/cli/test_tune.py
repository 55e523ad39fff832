"""Tuning: what is tried in which order, what is chosen and by which samples, and that an interruption loses nothing."""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.study.search import combinations, search
from helpers_cli import Cli, contents

DATA = ("--data", "npz:own.npz", "--clients", "3", "--partition", "iid", "--model", "logreg")
GRID = ("--grid", "lr=0.001,0.5,3e38", "--grid", "epochs=1,2")
TUNE = ("tune", "dfedavg", *DATA, "--rounds", "2", "--seeds", "2", *GRID)


def samples(folder: Path, tests: str = "true") -> None:
    """Write two classes that a line parts; ``tests``: their test labels are true, or random."""
    draw = np.random.default_rng(0)
    x, test_x = draw.normal(size=(90, 4)), draw.normal(size=(40, 4))
    y, test_y = (v[:, 0] > 0 for v in (x, test_x))
    if tests == "garbage":
        test_x, test_y = draw.normal(size=(40, 4)) * 1e6, draw.integers(0, 2, 40)
    arrays = {"x": x, "test_x": test_x, "y": y, "test_y": test_y}
    parts = {k: v.astype(np.float32 if k.endswith("x") else int) for k, v in arrays.items()}
    np.savez(folder / "own.npz", **parts)


def tried(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "tune.json").read_text()))


@pytest.fixture(scope="module")
def tuned(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tuning, and what it printed."""
    cwd = tmp_path_factory.mktemp("tuned")
    samples(cwd)
    done = cli.succeed(*TUNE, "--out", "t", cwd=cwd)
    (cwd / "printed").write_text(done.out)
    return cwd


def test_the_best_on_validation_is_chosen(tuned: Path) -> None:
    """Held against the rows of the runs themselves: the mean over the seeds of the last validation accuracy."""
    found = tried(tuned / "t")
    assert [trial["settings"] for trial in found["trials"]] == combinations(found["grid"])
    means, printed = {}, (tuned / "printed").read_text()
    for i, trial in enumerate(found["trials"], 1):
        if trial["ended"] == "diverged":
            assert trial["settings"]["lr"] == "3e38"
            continue
        rows = [(tuned / "t" / f"trial{i:03d}-seed{s}" / "metrics.jsonl").read_text().splitlines() for s in (0, 1)]
        last = [json.loads(lines[-1])["personal_accuracy_validation"] for lines in rows]
        assert trial["scores"] == last
        means[tuple(trial["settings"].values())] = sum(last) / 2
        assert f"±{abs(last[0] - last[1]) / 2**0.5:.2g}" in printed  # of a sample of two seeds
    assert {lr for lr, _ in means} == {"0.001", "0.5"}  # the rate that diverges ends its trial, not the tuning
    best = max(means, key=lambda k: means[k])
    text = (tuned / "t" / "settings.toml").read_text()
    assert f"[dfedavg]\nlr = {float(best[0])}\nepochs = {best[1]}\n" in text
    assert "never on test samples" in text
    assert "diverged" in printed
    assert "settings: t/settings.toml" in printed
    assert not list((tuned / "t").glob("*/clients"))  # nobody deploys trials


def test_the_picture_has_every_trial(tuned: Path) -> None:
    page = (tuned / "t" / "tune.html").read_text()
    assert page.count("<tr>") == 1 + 6
    assert "No test sample was looked at" in page


def test_run_and_compare_take_what_was_written(cli: Cli, tuned: Path) -> None:
    short = (*DATA, "--rounds", "1", "--settings", "t/settings.toml")
    cli.succeed("run", "dfedavg", *short, "--out", "used", cwd=tuned)
    assert json.loads((tuned / "used" / "config.json").read_text())["settings"]["lr"] == 0.5


def test_test_samples_change_nothing(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    """With garbage in their place every score is the same, to the last bit, and so is the choice."""
    samples(tmp_path, tests="garbage")
    cli.succeed(*TUNE, "--out", "t", cwd=tmp_path)
    assert tried(tmp_path / "t") == tried(tuned / "t")
    assert (tmp_path / "t" / "settings.toml").read_text() == (tuned / "t" / "settings.toml").read_text()
    one, other = ((where / "t" / "trial001-seed0" / "metrics.jsonl").read_text() for where in (tmp_path, tuned))
    assert json.loads(one.splitlines()[-1])["global_accuracy"] != json.loads(other.splitlines()[-1])["global_accuracy"]


@pytest.mark.parametrize("at", ["rename t/trial002-seed1/checkpoint/round-000002.json", "rename t/tune.json"])
def test_an_interruption_loses_nothing(cli: Cli, tuned: Path, tmp_path: Path, at: str) -> None:
    shutil.copy(tuned / "own.npz", tmp_path)
    stopped = cli.run(*TUNE, "--out", "t", cwd=tmp_path, at=at, send=signal.SIGINT)
    assert stopped.status == 130
    assert "--resume" in stopped.err
    again = cli.succeed(*TUNE, "--out", "t", "--resume", cwd=tmp_path)
    assert tried(tmp_path / "t") == tried(tuned / "t")
    assert "seed 0 (1 of 12)" not in again.err or "tune.json" in at  # what was finished is not trained again


def test_a_trial_that_was_written_down_keeps_no_models(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    """Killed between the note about a trial and the end of its models, a tuning removes them when it goes on."""
    shutil.copy(tuned / "own.npz", tmp_path)
    killed = cli.run(*TUNE, "--out", "t", cwd=tmp_path, at="remove *client-0001*")
    assert killed.status == -signal.SIGKILL, killed.events
    assert (tmp_path / "t" / "trial001-seed0" / "clients").is_dir()
    cli.succeed(*TUNE, "--out", "t", "--resume", cwd=tmp_path)
    assert not (tmp_path / "t" / "trial001-seed0" / "clients").exists()


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (("--grid", "momentum=0.1"), ("grid", "same command")),
        (("--rounds", "3", "--set", "momentum=0.1"), ("rounds: 2 there, 3 here; settings.momentum", "same options")),
    ],
)
def test_trials_of_another_command_are_not_gone_on_with(
    cli: Cli, tuned: Path, other: tuple[str, ...], names: tuple[str, ...]
) -> None:
    before = contents(tuned)
    cli.refuse(*TUNE, *other, "--out", "t", "--resume", cwd=tuned, names=names)
    assert contents(tuned) == before


def test_every_method_is_tuned_alike(cli: Cli, tmp_path: Path) -> None:
    samples(tmp_path)
    command = (
        "compare",
        "local",
        "dfedavg",
        *DATA,
        "--rounds",
        "1",
        "--tune",
        "lr=0.001,0.5",
        "--tune",
        "topology=ring,full",
    )
    done = cli.succeed(*command, "--out", "c", "--format", "latex", cwd=tmp_path)
    said = "local lr=0.5 (the best of 2); dfedavg lr=0.5, topology="
    assert said in done.out.replace("\\_", "_")
    assert "(the best of 4)" in done.out
    assert "Unequal tuning: best of 2 trainings (local), best of 4 trainings (dfedavg)." in done.out
    assert "tuned alike" in (tmp_path / "c" / "report.html").read_text()
    for method in ("local", "dfedavg"):
        config = json.loads((tmp_path / "c" / f"{method}-seed0" / "config.json").read_text())
        assert config["settings"]["lr"] == 0.5
        assert "validation" not in config  # the methods that are compared train on all their samples
    other = ("--model", "mlp", "--out", "c", "--resume")
    cli.refuse(
        *command, *other, cwd=tmp_path, names=("tune-local", "model.name: 'logreg' there, 'mlp' here", "another --out")
    )


WRONG = {
    "--grid lrr=1,2": ("'lrr'", "did you mean lr"),
    "--grid lr=0.1,x": ("lr='x'", "a number"),
    "--grid lr": ("--grid lr has no values", "--grid lr=0.01,0.1"),
    "--grid lr=0.1,0.1": ("value twice",),
    "--grid lr=0.1 --set lr=0.2": ("--set and --grid both have lr",),
    "--grid lr=0.1 --grid lr=0.2": ("lr twice",),
    "": ("nothing to try", "--grid lr=0.01,0.03,0.1"),
    "--grid lr=1,2 --budget 1": ("2 settings", "--budget", "--sampler random"),
    "--grid lr=1,2 --sampler random": ("--sampler random", "--budget 20"),
    "--grid lr=1,2 --sampler bayes": ("sampler='bayes'", "tpe"),
    "--grid lr=1,2 --seeds 3 --budget 2": ("3 seeds", "3 or more"),
    "--grid lr=1 --validation 0": ("--validation 0", "leave it out"),
    "--grid topology=ring,rong": ("'rong'", "did you mean ring"),
}


def test_what_a_file_sets_is_not_tuned_as_well(cli: Cli, tmp_path: Path) -> None:
    """The file would have been passed over in silence; a table of another method is in nobody's way."""
    file = tmp_path / "own.toml"
    file.write_text("[dfedavg]\nlr = 0.1\n\n[local]\nmomentum = 0.5\n")
    both = ("own.toml and --grid both have lr", "leave it out of one of them")
    cli.refuse("tune", "dfedavg", "--grid", "lr=0.1,0.2", "--settings", "own.toml", cwd=tmp_path, names=both)
    asked = ("compare", "dfedavg", "local", "--tune", "lr=0.1,0.2", "--settings", "own.toml", "--out", "c")
    cli.refuse(*asked, cwd=tmp_path, names=("own.toml and --tune both have lr",))
    assert contents(tmp_path) == {"own.toml": file.read_bytes()}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_request_names_the_fix(cli: Cli, tmp_path: Path, typed: str) -> None:
    cli.refuse("tune", "dfedavg", *typed.split(), cwd=tmp_path, names=WRONG[typed])
    assert contents(tmp_path) == {}


def test_a_random_search_has_no_setting_twice() -> None:
    grid = {"a": ["1", "2", "3"], "b": ["x", "y"]}
    found = search("random", grid, 4, seed=0)
    asked = [found.ask() for _ in range(5)]
    assert asked[4] is None
    assert len({tuple(texts.values()) for texts in asked[:4] if texts}) == 4
    again = search("random", grid, 4, seed=0)
    assert [again.ask() for _ in range(4)] == asked[:4]
    other = search("random", grid, 4, seed=1)
    assert [other.ask() for _ in range(4)] != asked[:4]


def test_parzen_estimators_find_the_best_and_can_be_told_again() -> None:
    """Of 30 settings 15 are tried, each once; the best is among them, and a bad one ends early."""
    pytest.importorskip("optuna")
    grid = {"a": [str(k) for k in range(10)], "b": ["0", "1", "2"]}
    told: list[tuple[dict[str, str], list[tuple[int, float]], float | None]] = []

    def good(texts: dict[str, str]) -> float:
        return -abs(int(texts["a"]) - 6.0) - int(texts["b"])

    found = search("tpe", grid, 15, seed=0)
    for _ in range(15):
        texts = found.ask()
        assert texts is not None
        curve: list[tuple[int, float]] = []
        ended = False
        for step in (1, 2, 3):
            curve.append((step, good(texts) - 3 + step))
            if ended := found.ends(*curve[-1]):
                break
        told.append((texts, curve, None if ended else good(texts)))
        found.tell(told[-1][2])
    assert len({tuple(t.values()) for t, _, _ in told}) == 15
    assert max(score for _, _, score in told if score is not None) >= -1
    assert any(score is None for _, _, score in told)
    again = search("tpe", grid, 15, seed=0)
    for texts, curve, score in told:
        assert again.ask() == texts
        for point in curve:
            again.ends(*point)
        again.tell(score)


def test_a_sampler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"coterie\[tune\]"):
        search("tpe", {"lr": ["1"]}, 3, seed=0)
