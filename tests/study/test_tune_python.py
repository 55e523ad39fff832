"""``coterie.tune`` gives what ``coterie tune`` gives."""

import json
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from helpers_cli import Cli
from in_process import answer

SOURCE = "synthetic:size=240,classes=3"
GRID: dict[str, Any] = {"lr": [0.001, 0.5], "epochs": [1, (1, 2)]}
SMALL: dict[str, Any] = {"clients": 4, "rounds": 2, "model": "logreg", "progress": False}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ct.TuneResult:
    out = tmp_path_factory.mktemp("tuned") / "a"
    return ct.tune("dfedavg", GRID, SOURCE, **SMALL, seeds=2, settings={"momentum": 0.5}, out=out)


def words(folder: Path) -> list[str]:
    """The file of settings without the command that made it."""
    return [line for line in (folder / "settings.toml").read_text().splitlines() if not line.startswith("# coterie")]


def test_it_is_the_command_to_the_last_digit(cli: Cli, found: ct.TuneResult, tmp_path: Path) -> None:
    typed = ("--data", SOURCE, "--clients", "4", "--rounds", "2", "--model", "logreg", "--seeds", "2", "--quiet")
    grid = ("--grid", "lr=0.001,0.5", "--grid", "epochs=1;1,2", "--set", "momentum=0.5")
    done = cli.succeed("tune", "dfedavg", *typed, *grid, "--out", "b", cwd=tmp_path)
    assert found.folder is not None
    assert json.loads((tmp_path / "b/tune.json").read_text()) == found.saved
    assert (found.folder / "tune.json").read_bytes() == (tmp_path / "b/tune.json").read_bytes()
    assert words(found.folder) == words(tmp_path / "b")
    names = [{p.name for p in folder.iterdir()} for folder in (found.folder, tmp_path / "b")]
    assert names[1] - names[0] == {"command.txt"}
    assert names[0] < names[1]
    for name in ("trial001-seed0", "trial004-seed1"):
        configs = [(folder / name / "config.json").read_bytes() for folder in (found.folder, tmp_path / "b")]
        assert configs[0] == configs[1]
    assert f"{found.score:.4g} ±" in done.out


def test_the_result_has_the_best_settings_and_every_trial(found: ct.TuneResult) -> None:
    assert found.best == {key: found.settings[key] for key in GRID}
    assert found.settings == {"momentum": 0.5, **found.best}
    frame = found.frame()
    assert list(frame.index) == [1, 2, 3, 4]
    assert list(zip(frame["lr"], frame["epochs"], strict=True)) == [
        (lr, e) for lr in GRID["lr"] for e in GRID["epochs"]
    ]
    assert frame["score"].max() == pytest.approx(found.score)
    assert set(frame["end"]) == {"done"}
    assert frame["spread"].notna().all()
    assert repr(found).startswith("TuneResult(dfedavg: lr=0.5, epochs=")
    assert ct.algorithms.build("dfedavg", **found.settings).settings["lr"] == 0.5


def test_without_a_folder_nothing_is_written(
    found: ct.TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = ct.tune("dfedavg", GRID, SOURCE, **SMALL, seeds=2, settings={"momentum": 0.5})
    assert again.saved == found.saved
    assert (again.folder, again.page, list(tmp_path.iterdir())) == (None, None, [])


def test_a_finished_tuning_is_read_again(found: ct.TuneResult) -> None:
    given: Any = {**SMALL, "seeds": 2, "settings": {"momentum": 0.5}, "out": found.folder}
    assert ct.tune("dfedavg", GRID, SOURCE, **given, resume=True).saved == found.saved
    with pytest.raises(ct.UserError, match="has trials with grid"):
        ct.tune("dfedavg", {"lr": [0.1]}, SOURCE, **given, resume=True)
    with pytest.raises(ct.UserError, match="already exists"):
        ct.tune("dfedavg", GRID, SOURCE, **given)


def test_what_was_chosen_is_taken_by_the_command(found: ct.TuneResult, tmp_path: Path) -> None:
    typed = ("--data", SOURCE, "--clients", "4", "--rounds", "1", "--quiet", "--out", "r")
    done = answer("run", "dfedavg", *typed, "--settings", f"{found.folder}/settings.toml", cwd=tmp_path)
    assert done.status == 0, done.err
    settings = json.loads((tmp_path / "r/config.json").read_text())["settings"]
    assert (settings["lr"], settings["momentum"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grid": {"lrr": [1]}}, "did you mean lr"),
        ({"grid": {"lr": ["fast"]}}, "lr='fast'"),
        ({"grid": {"lr": [0.1, 0.1]}}, r"grid\['lr'\] has a value twice"),
        ({"grid": {"lr": []}}, r"grid\['lr'\] has no values"),
        ({"grid": {"lr": 0.1}}, r"grid\['lr'\]"),
        ({"grid": {"topology": [ct.topology.build("ring", 4)]}}, "has a Topology, which cannot be written down"),
        ({"grid": {}}, "nothing to try"),
        ({"settings": {"lr": 1}}, "both have lr"),
        ({"method": "dfedavgg"}, "did you mean dfedavg"),
        ({"method": "dfedavg@momentum=0"}, r"settings=\{'momentum': ...\}"),
        ({"validation": 0}, "validation"),
        ({"select": "best-test"}, "leave --select best-test out"),
        ({"sampler": "bayes"}, "sampler='bayes'"),
        ({"budget": 1}, "the budget is for 1"),
        ({"resume": True}, "give out"),
    ],
)
def test_what_cannot_be_tuned(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ct.UserError, match=said):
        ct.tune(**{"method": "dfedavg", "grid": {"lr": [0.1, 0.2]}, "data": SOURCE, **SMALL, **given})
