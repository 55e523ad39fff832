"""The comparison with other frameworks, without installing any: what is handed to them, and what is made of it."""

import doctest
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import environments
import peers
import sides
import table
import torch_model
import work
import workloads
from coterie.core.errors import UserError
from environments import HERE, UnavailableError, prepare
from sides import Side
from workloads import WORKLOADS, make_model

# Two passes over one full batch: the order of the samples does not matter.
TINY = replace(WORKLOADS["W2"], clients=6, cohort=3, samples=8, batch_size=None, epochs=2, rounds=2)


def side(seconds: float, first: float, last: float) -> Side:
    """One repeat of two equal rounds."""
    return Side([[seconds, seconds]], [[seconds, seconds]], [9.0], [first], [last])


def test_sides_take_turns_and_end_at_the_same_loss() -> None:
    """Both own sides read the files, in processes of their own; one that fails is left out and the rest goes on."""
    commands: peers.Commands = {
        "coterie": [sys.executable, HERE / "own.py", "coterie"],
        "b": [sys.executable, "-c", "raise SystemExit('no luck today')"],
        "plain": [sys.executable, HERE / "own.py", "plain"],
    }
    said: list[str] = []
    played = peers.measure(TINY, commands, 1, said.append)
    assert played["b"].left_out == "it ended with status 1 (no luck today)"
    assert [line.split()[3] for line in said if "repeat" in line] == ["coterie", "plain"]
    coterie, plain = played["coterie"], played["plain"]
    assert plain.first_losses == coterie.first_losses
    assert plain.test_losses == pytest.approx(coterie.test_losses, rel=1e-5)
    assert plain.test_losses[0] < 0.999 * plain.first_losses[0]
    for s in (coterie, plain):
        assert len(s.rounds[0]) == TINY.rounds
        assert s.start_ups[0] > 0
        assert s.peak_memory is None or s.peak_memory > 50 * 2**20
    ratio = plain.ratio(coterie)
    assert ratio is not None
    assert ratio.value == pytest.approx(plain.seconds / coterie.seconds)


def test_without_coterie_there_is_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="status 3"):
        peers.measure(TINY, {"coterie": [sys.executable, "-c", "raise SystemExit(3)"]}, 1, print)


@pytest.mark.parametrize("name", ["W1", "W2"])
def test_peers_get_coteries_model_and_samples(name: str, tmp_path: Path) -> None:
    w = replace(WORKLOADS[name], clients=4, cohort=2, samples=3)
    federation = peers.write_work(w, tmp_path)
    files = work.load(str(tmp_path))
    x = federation.test_x[:5]
    torch.testing.assert_close(torch_model.build(files)(x), make_model(w, federation)(x), rtol=0, atol=0)
    for client, part in enumerate(federation.train):
        mine, labels = torch_model.samples(files, client)
        assert torch.equal(mine, federation.x[part])
        assert torch.equal(labels, federation.y[part])
    assert files.cohorts.shape == (w.rounds, w.cohort)
    assert all(len(np.unique(cohort)) == w.cohort for cohort in files.cohorts)


def test_a_ratio_needs_the_same_start_and_the_same_end(capsys: pytest.CaptureFixture[str]) -> None:
    coterie = side(1.0, 2.3, 1.0)
    fair = side(2.0, 2.3, 1.1).ratio(coterie)
    assert fair is not None
    assert fair.value == 2
    others = {"another start": side(2.0, 2.31, 1.0), "another end": side(2.0, 2.3, 1.3)}
    assert [s.ratio(coterie) for s in others.values()] == [None, None]
    missing = Side(left_out="it is not there")
    table.show({TINY: {"coterie": coterie, **others, "gone": missing}}, 1)
    shown = capsys.readouterr().out
    assert shown.count("losses differ") == 2
    assert "it is not there" in shown
    assert missing.as_json(coterie) == {"left_out": "it is not there"}


def test_the_clock_counts_what_lies_between_rounds() -> None:
    clock = work.Clock()
    clock.start()
    clock.tick()
    ended = clock.first_round_ended
    clock.tick()
    assert len(clock.seconds) == 2
    assert clock.first_round_ended == ended > 0


def test_an_interrupted_installation_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a finished one of the very same versions counts."""
    calls: list[Any] = []

    def run(failure: str, *command: str | Path) -> None:
        calls.append(command)
        (tmp_path / "venvs" / "toy").mkdir(parents=True, exist_ok=True)
        if len(calls) == 2:
            raise UnavailableError(failure)

    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setattr(environments, "VENVS", tmp_path / "venvs")
    monkeypatch.setattr(environments, "run", run)
    wanted = tmp_path / "requirements-toy.txt"
    wanted.write_text("toy==1\n")
    with pytest.raises(UnavailableError, match=r"requirements-toy\.txt could not be installed"):
        prepare("toy", print)
    counts = []
    for text in ("toy==1\n", "toy==1\n", "toy==2\n"):
        wanted.write_text(text)
        prepare("toy", print)
        counts.append(len(calls))
    assert counts == [4, 4, 6]


def test_a_failed_installation_says_why_in_one_sentence() -> None:
    with pytest.raises(UnavailableError, match=r"^not installed \(no such version\)$"):
        environments.run("not installed", sys.executable, "-c", "raise SystemExit('trying\\nno such version')")
    with pytest.raises(UnavailableError, match="No such file"):
        environments.run("not installed", "/nowhere/python")


@pytest.mark.parametrize("module", [environments, sides, work, workloads], ids=lambda m: m.__name__)
def test_the_examples_are_true(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)


def test_what_cannot_be_measured_is_refused_at_once() -> None:
    peers.check(["flower"], ["w1"], 1)
    for asked, says in (
        ((["flowr"], ["W1"], 1), "did you mean flower"),
        (([], ["W3"], 1), "choose among W1 and W2"),
        (([], ["W1"], 0), "at least 1"),
    ):
        with pytest.raises(UserError, match=says):
            peers.check(*asked)


def test_every_peer_has_pinned_requirements_and_a_script() -> None:
    for peer in peers.PEERS:
        lines = (HERE / f"requirements-{peer}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))
        assert (HERE / f"peer_{peer}.py").is_file()
