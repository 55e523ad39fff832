"""``coterie.compare`` gives what the command gives."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.study.comparison import ComparisonPlan
from helpers_cli import Cli
from pages import Page

METHODS = ["local", "fedavg", "fedper"]
SOURCE = "synthetic:size=240,classes=3"


def untimed(value: Any) -> Any:
    """Return what compare.json says without seconds, which no two runs share."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k != "seconds"}
    return [untimed(v) for v in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def found() -> ct.Compared:
    given = {"clients": 6, "rounds": 2, "seeds": 2, "seed": 5, "settings": {"lr": 0.05, "fedper.lr": 0.1}}
    return ct.compare(METHODS, SOURCE, **given, progress=False)  # type: ignore[arg-type]


def test_it_is_the_command_to_the_last_digit(cli: Cli, found: ct.Compared, tmp_path: Path) -> None:
    typed = ("--data", SOURCE, "--clients", "6", "--rounds", "2", "--seeds", "2", "--seed", "5", "--quiet")
    typed += ("--set", "lr=0.05", "--set", "fedper.lr=0.1")
    titles = [c.title for c in found.comparison.columns if c.title != "seconds"]
    cli.succeed("compare", *METHODS, *typed, "--out", "a", cwd=tmp_path)
    done = cli.succeed("report", "a", "--format", "latex", "--columns", ",".join(titles), cwd=tmp_path)
    assert done.out.rstrip("\n") == found.latex(titles)
    assert untimed(json.loads((tmp_path / "a/compare.json").read_text())) == untimed(found.comparison.saved)


def test_the_frame_has_the_numbers_of_the_runs(found: ct.Compared) -> None:
    frame = found.frame()
    assert list(frame.index) == METHODS
    for method in METHODS:
        finals = [run.summary["personal_accuracy"]["after_mix"] for run in found.runs[method]]
        means = [100 * each["final"] for each in finals if each is not None]
        assert frame.iloc[:, 0][method] == pytest.approx(sum(means) / 2)
        assert frame["sent"][method] == found.runs[method][0].summary["bytes_sent"]
        assert [len(run.clients) for run in found.runs[method]] == [6, 6]
    assert repr(found) == "Compared(local, fedavg, fedper: 2 seeds)"
    assert any("Sign-flip test, two-sided, Holm-corrected for all 3 pairs" in line for line in found.verdict)
    assert found._repr_markdown_() == found.markdown()
    above, table = found.markdown().split("\n| method ", 1)
    assert above.startswith(found.comparison.answer[0])
    assert [line.split()[1] for line in table.splitlines()[2:5]] == METHODS


def test_without_pandas_it_is_said_before_and_nothing_is_lost(
    found: ct.Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, rows = found.frame(), found.rows()
    for row in rows:
        titles = [title for title in frame.columns if row[title] is not None]
        assert [row[title] for title in titles] == frame.loc[row["method"], titles].tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert found.rows() == rows
    with pytest.raises(ct.UserError, match=r"'coterie\[tables\]', or take found.rows\(\)"):
        found.frame()
    said = r"pandas is not installed, so found.rows\(\) has what .* 'coterie\[tables\]' is for frames"
    trained: list[object] = []
    monkeypatch.setattr(ComparisonPlan, "train", lambda *_, **__: trained.append(None))
    with pytest.warns(UserWarning, match=said):
        ct.compare(["local", "fedavg"], SOURCE, clients=3, rounds=1, progress=False)
    assert trained


def test_values_in_place_of_names(found: ct.Compared, tmp_path: Path) -> None:
    """Algorithms, data and a module that are handed over train as those that are named."""
    run = found.runs["fedper"][0]
    fed = ct.data.federate(**run.config["data"])
    settings = {k: v for k, v in run.config["settings"].items() if v is not None}
    methods = {"mine": ct.algorithms.fedper(**settings), "alone": "local"}
    net = ct.models.build("mlp", fed, seed=5)
    given: Any = {"model": net, "rounds": 2, "seed": 5, "settings": {"lr": 0.05}, "progress": False}
    handed = ct.compare(methods, fed, **given, out=tmp_path / "a")
    for mine, named in (("mine", "fedper"), ("alone", "local")):
        one, other = handed.runs[mine][0], found.runs[named][0]
        assert untimed(one.summary) == untimed(other.summary)
        assert not len(one.clients)  # they are in the folder
        assert ct.load(tmp_path / f"a/{mine}-seed5").summary == one.summary
    assert handed.comparison.unequal == ["Unequal work: lr 0.1 (mine), 0.05 (alone)."]
    page = Page(handed.report(tmp_path / "page.html"))
    assert list(page.table()) == ["mine", "alone"]
    again = ct.compare(methods, fed, **given, out=tmp_path / "a", resume=True)
    assert again.comparison.saved == handed.comparison.saved


def test_an_algorithm_with_the_settings_of_its_paper_is_no_equal_of_one_by_name(tmp_path: Path) -> None:
    """An algorithm has the settings of its paper, and a name those of the preset: one line tells them apart."""
    methods = {"FedPer": ct.algorithms.fedper(epochs=1), "FedAvg": "fedavg"}
    given: Any = {"clients": 2, "rounds": 1, "model": "mlp", "progress": False}
    found = ct.compare(methods, "synthetic:size=60,classes=3", **given)
    (line,) = found.comparison.unequal
    assert "epochs 1 (FedPer), 5 (FedAvg)" in line
    assert "batch_size 128 (FedPer), 16 (FedAvg)" in line
    assert line in found.markdown().replace("\\", "")
    page = Page(found.report(tmp_path / "page.html"))  # of runs in memory
    assert list(page.table()) == [*methods]
    assert line in page.root.text


def test_values_to_tune_may_have_commas(tmp_path: Path) -> None:
    given: Any = {"clients": 2, "rounds": 1, "model": "logreg", "out": tmp_path / "a", "progress": False}
    ct.compare(["fedavg"], "synthetic:size=60,classes=3", tune={"epochs": ["1,2"], "lr": [0.1]}, **given)
    assert json.loads((tmp_path / "a/tune-fedavg/tune.json").read_text())["grid"] == {"epochs": ["1,2"], "lr": ["0.1"]}


def test_a_function_draws_a_model_for_every_seed() -> None:
    fed = ct.data.federate("synthetic:size=60,classes=3", clients=3, partition="iid")
    drawn: list[int] = []

    def net() -> Any:
        drawn.append(1)
        return ct.models.build("logreg", fed, seed=len(drawn))

    found = ct.compare([ct.algorithms.local(epochs=1)], fed, model=net, rounds=1, seeds=2, progress=False)
    first, second = (run.config["fingerprints"] for run in found.runs["local"])
    assert first["data"] == second["data"]
    assert first["model"] != second["model"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"methods": ["fedper", "fedper"]}, "fedper is named twice: give both a name of their own"),
        ({"methods": []}, "there are no methods to compare"),
        ({"methods": ["lokal"]}, "did you mean local"),
        ({"methods": ["local"], "settings": {"lrr": 1}}, "lrr"),
        ({"methods": ["local"], "drop_messages": 0.5}, "has no topology"),
        ({"methods": ["local"], "tune": {"lr": [0.1]}}, "kept in a folder: name one with out"),
        ({"methods": [ct.algorithms.local()], "settings": {"lr": 1}}, "settings are for methods by name"),
        ({"methods": {"a": "local"}, "tune": {"lr": [0.1]}, "out": "x"}, "tune chooses settings of methods by name"),
        ({"methods": ["local"], "seeds": 0}, "seeds"),
        ({"methods": 3}, "methods"),
        ({"methods": {"a": 1}}, r"methods\['a'\]"),
        ({"methods": ["local"], "tune": {"lr": 1}, "out": "x"}, "tune"),
    ],
)
def test_what_cannot_be_compared(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ct.UserError, match=said):
        ct.compare(**{"data": SOURCE, "rounds": 1, "progress": False, **given})


def test_divided_data_are_not_divided_again() -> None:
    fed = ct.data.federate(SOURCE, clients=3, partition="iid")
    with pytest.raises(ct.UserError, match="divided already: leave clients out"):
        ct.compare(["local"], fed, clients=2, progress=False)
