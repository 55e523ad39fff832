"""A saved run once more with one thing changed, and a finished one with more rounds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.algorithms import BUILDERS
from coterie.algorithms.method import facts
from coterie.cli.common.interrupted import interruptible
from coterie.cli.common.options import Output, RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.tensors import leaves
from helpers_cli import assert_same_run, contents, rows
from in_process import Answer, answer

SMALL = ("--data", "synthetic:size=400,classes=4", "--clients", "5", "--quiet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two rounds, and with one of four that was asked for at once."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rounds in (("a", "2"), ("four", "4")):
        assert answer("run", "dfedalt", *SMALL, "--rounds", rounds, "--out", name, cwd=folder).status == 0
    return folder


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_more_rounds_are_as_if_they_had_been_asked_for_at_once(runs: Path) -> None:
    """To the last bit, of what was written before as well."""
    assert answer("run", "dfedalt", *SMALL, "--rounds", "2", "--out", "more", cwd=runs).status == 0
    done = answer("run", "more", "--resume", "--rounds", "4", cwd=runs)
    assert done.status == 0, done.err
    assert "resuming more after round 2" in done.err
    assert_same_run(runs / "more", runs / "four")
    again = answer("run", "more", "--resume", "--quiet", cwd=runs)
    assert again.status == 0
    assert_same_run(runs / "more", runs / "four")


def test_one_thing_of_a_saved_run_is_changed(runs: Path) -> None:
    """It is the run that would have been typed so; all else stays as it was saved."""
    for saved in ("a", "a/config.json"):
        out = f"lr-{len(saved)}"
        done = answer("run", saved, "--set", "lr=0.1", "--out", out, cwd=runs)
        assert done.status == 0, done.err
        assert "dfedalt as saved but for lr=0.1: 2 rounds, seed 0" in done.err
    typed = ("run", "dfedalt", *SMALL, "--rounds", "2", "--set", "lr=0.1", "--out", "typed")
    assert answer(*typed, cwd=runs).status == 0
    for out in ("lr-1", "lr-13"):
        assert_same_run(runs / out, runs / "typed")
    old, new = config(runs / "a"), config(runs / "lr-1")
    assert {k for k, v in new["settings"].items() if v != old["settings"][k]} == {"lr"}
    assert {k for k in new if k != "settings" and new[k] != old[k]} == set()


def test_seed_and_rounds_of_a_saved_run_are_changed(runs: Path) -> None:
    changed = ("--seed", "3", "--rounds", "1", "--topology", "ring", "--set", "steps=2", "--quiet")
    done = answer("run", "a", *changed, "--out", "other", cwd=runs)
    assert done.status == 0, done.err
    assert answer("run", "dfedalt", *SMALL, *changed, "--out", "other-typed", cwd=runs).status == 0
    assert_same_run(runs / "other", runs / "other-typed")
    assert rows(runs / "other") != rows(runs / "a")[:1]


def refused(runs: Path, *words: str, said: str) -> Answer:
    before = contents(runs)
    done = answer(*words, cwd=runs)
    assert (done.status, contents(runs) == before) == (2, True)
    assert said in done.err.splitlines()[-1]
    return done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "--rounds", "2"), "has 2 rounds: ask for more"),
        (("--resume", "--rounds", "1"), "has 2 rounds: ask for more"),
        (("--resume", "--rounds", "4", "--set", "lr=1"), "--set cannot be combined"),
        (("--resume", "--rounds", "4", "--engine", "bogus"), "unknown engine 'bogus'"),
        (("--resume", "--rounds", "4", "--workers", "2"), "--workers is for a Ray cluster"),
        (("--set", "mu=1", "--out", "x"), "has no option 'mu'"),
        (("--model", "mlp", "--out", "x"), "--model cannot be combined"),
    ],
)
def test_what_cannot_be_changed_is_refused(runs: Path, words: tuple[str, ...], said: str) -> None:
    refused(runs, "run", "a", *words, said=said)


@pytest.mark.parametrize(
    ("method", "typed", "said"),
    [
        ("dfedalt", ("--set", "lr_min=0.001"), "lr_min is spread over all rounds"),
        ("dfedalt", ("--set", "lr_milestones=0.5"), "lr_milestones is spread over all rounds"),
        ("dispfl", (), "dispfl is paced by the number of rounds"),
        ("dfedalt", ("--evaluate-every", "3"), "was evaluated as its last"),
        ("dfedalt", ("--validation", "0.3", "--select", "best-validation"), "chooses among all rounds"),
    ],
)
def test_rounds_that_depend_on_their_number_are_refused(
    method: str, typed: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert answer("run", method, *SMALL, "--rounds", "2", *typed, "--out", "a", cwd=tmp_path).status == 0
    refused(tmp_path, "run", "a", "--resume", "--rounds", "4", said=said)


def test_the_command_that_goes_on_names_the_cluster(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the rounds, where nothing is written of them yet."""
    where = {"engine": "ray", "ray_address": "auto", "workers": 2, "gpus_per_worker": 0.5}
    for options, more in (
        (RunOptions(**where), ""),  # type: ignore[arg-type]
        (RunOptions(resume=True, rounds=4, **where), " --rounds 4"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SystemExit), interruptible(runs / "a", options, Output()):
            raise KeyboardInterrupt
        typed = f"--resume{more} --engine ray --ray-address auto --workers 2 --gpus-per-worker 0.5"
        assert capsys.readouterr().err.splitlines()[-1] == f"  coterie run {runs / 'a'} {typed}"


@pytest.mark.parametrize("method", ["dfedalt", "dispfl", "progfed", "fedhmv2", "osgp"])
def test_methods_that_are_paced_by_the_number_of_rounds_say_so(method: str) -> None:
    """The first rounds of a run of six and of a run of sixteen are the same, unless the method says otherwise."""
    states, model = [], "resnet8-bn:width=4" if facts(BUILDERS[method]).staged else "mlp:width=16"
    for rounds in (6, 16):
        options = RunOptions(data="digits", clients=6, rounds=rounds, model=model, set=["steps=1", "batch_size=8"])
        e = typed_plan([method], options).prepared(method, 0).experiment
        state = e.start().state
        for t in (0, 1):
            r = e.round(t)
            state = e.program.exchange(state, e.program.train(state, r), r)
        states.append(list(leaves(state)))
    same = all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert same is not facts(BUILDERS[method]).paced
