"""A command in a file that a person writes."""

import json
import re
from pathlib import Path

import pytest

from helpers_cli import assert_same_run, contents
from in_process import answer

DOCS = Path(__file__).parents[2] / "docs"
SMALL = 'data = "synthetic:size=400,classes=4"\nclients = 5\nrounds = 1\nquiet = true\n'
OWN = "[fedavg]\nlr = 0.07\nclip = 3\nepochs = 3\nbatch_size = 8\n"
TYPED = ("--data", "synthetic:size=400,classes=4", "--clients", "5", "--rounds", "1", "--quiet")


def write(folder: Path, text: str) -> str:
    (folder / "exp.toml").write_text(text, encoding="utf-8")
    return "exp.toml"


def test_a_file_is_the_command_that_would_be_typed(tmp_path: Path) -> None:
    tables = '[set]\nlr = 0.05\nclip = "none"\n[dfedalt]\nepochs = [1, 2]\ntopology = "ring"\n'
    file = write(tmp_path, f'method = "DFedAlt"\n{SMALL}evaluate_every = 1\nout = "a"\n{tables}')
    done = answer("run", file, cwd=tmp_path)
    assert done.status == 0, done.err
    settings = ("--set", "lr=0.05", "--set", "clip=none", "--set", "epochs=1,2", "--topology", "ring")
    typed = answer("run", "dfedalt", *TYPED, *settings, "--evaluate-every", "1", "--out", "b", cwd=tmp_path)
    assert typed.status == 0, typed.err
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_what_is_typed_comes_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, f'method = "fedavg"\n{SMALL}out = "a"\n[set]\nlr = 0.05\nmomentum = 0.5\n{OWN}')
    words = ("--rounds", "2", "--set", "lr=0.3", "--set=FedAvg.clip=4", "--set=epochs=2", "--out", "b", "--seed", "4")
    assert answer("run", file, *words, cwd=tmp_path).status == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (config["rounds"], config["seed"]) == (2, 4)
    expected = {"lr": 0.3, "momentum": 0.5, "clip": 4.0, "epochs": 2, "batch_size": 8}
    assert config["settings"] == config["settings"] | expected
    assert not (tmp_path / "a").exists()


def test_the_file_of_the_documentation_is_a_sweep(tmp_path: Path) -> None:
    """All of its settings reach their methods; the rows are those of the sweep."""
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "commands.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    file = write(tmp_path, text)
    done = answer("compare", file, "--seeds", "1", "--rounds", "1", "--quiet", cwd=tmp_path)
    assert done.status == 0, done.err
    labels = ["local", "dfedalt@lr=0.02", "dfedalt@lr=0.1"]
    saved = json.loads((tmp_path / "runs" / "rates" / "compare.json").read_text())
    assert [method["method"] for method in saved] == labels
    config = json.loads((tmp_path / "runs" / "rates" / "dfedalt@lr=0.1-seed0" / "config.json").read_text())
    assert (config["settings"]["topology"], config["settings"]["batch_size"]) == ("ring", 32)
    costs = answer("compare", file, "--dry-run", "--format", "json", cwd=tmp_path)
    assert [row["method"] for row in json.loads(costs.out)] == labels


def test_a_sweep_of_two_settings_has_all_combinations(tmp_path: Path) -> None:
    """Only of methods that have them; a list is one value of a setting that takes lists."""
    sweep = "[sweep]\nlr = [0.1, 0.2]\n[sweep.fedprox]\nmu = [0, 1]\nepochs = [[1, 2], 3]\n"
    file = write(tmp_path, f'methods = ["local", "fedprox@momentum=0"]\n{SMALL}{sweep}')
    rows = json.loads(answer("compare", file, "--dry-run", "--format", "json", cwd=tmp_path).out)
    assert len(rows) == 2 + 2 * 2 * 2
    assert rows[0]["method"] == "local@lr=0.1"
    assert rows[2]["method"] == "fedprox@momentum=0,lr=0.1,mu=0,epochs=1,2"
    typed = ("--set", "lr=0.3", "--set", "FedProx.mu=2", "--dry-run", "--format", "json")
    rows = json.loads(answer("compare", file, *typed, cwd=tmp_path).out)
    assert [row["method"] for row in rows] == ["local", "fedprox@momentum=0,epochs=1,2", "fedprox@momentum=0,epochs=3"]


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("run", "method = 'fedavg'\nrouns = 3", "exp.toml has 'rouns', which is no option here: did you mean rounds"),
        ("run", "method = 'fedavg'\nzzzz = 3", "it may have capacities, clients"),
        ("run", "method = 'fedavg'\ntrust = 'mine:net'", "'trust', which is no option here"),
        ("run", "rounds = 3", 'write methods = ["local", "dfedalt"]'),
        ("run", "method = 'fedavg'\nmethods = ['local']", "both method and methods"),
        ("run", "methods = ['fedavg', 'local']\nseeds = 2", "type coterie compare exp.toml"),
        ("run", "method = 'fedavg'\n[sweep]\nlr = [1, 2]", "type coterie compare exp.toml"),
        (
            "compare",
            "methods = ['fedavg']\n[fedagv]\nlr = 1",
            "none of its methods, fedavg: did you mean fedavg?",
        ),
        ("compare", "methods = ['fedavg']\n[sweep]\nlr = 0.1", "is no list: write lr = [0.01, 0.1]"),
        ("compare", "methods = ['fedavg']\n[set]\nmu = 0.1", "has no option 'mu'"),
        ("run", "method = 'mine:fedfoo'", "a file does not decide what code runs"),
        ("run", "method = 'fedavg'\nmodel = 'mine:net,width=3'", "exp.toml names mine:net"),
        ("run", "method = 'fedavg'\nquiet = 'yes'", "is no switch: write quiet = true"),
        ("run", "method = 'fedavg'\nout = ''", "out='' cannot be typed"),
        ("run", "method = ", "is not TOML"),
        ("compare", "methods = ['fedagv']", "did you mean fedavg"),
    ],
)
def test_what_a_file_cannot_say_is_refused(command: str, text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    before = contents(tmp_path)
    done = answer(command, file, cwd=tmp_path)
    assert (done.status, done.out, contents(tmp_path)) == (2, "", before)
    assert said in done.err.splitlines()[-1]


def test_a_recipe_takes_no_file(tmp_path: Path) -> None:
    """Its --methods is an option: a file beside it belongs to an option that is not there."""
    file = write(tmp_path, "[dfedalt]\nlr = 0.1")
    done = answer("recipe", "run", "dfedalt-t1", "--settings", file, cwd=tmp_path)
    assert (done.status, "No such option: --settings" in done.err) == (2, True), done.err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = answer("run", "none.toml", cwd=tmp_path)
    assert done.status == 2
    assert "cannot read none.toml" in done.err
