"""Files of settings: what they say reaches the methods, what they cannot say is refused with file, table and fix."""

import json
import tomllib
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.errors import UserError
from coterie.core.settings_file import read_settings, write_settings
from helpers_cli import Cli, contents

TWO = '[dfedalt]\nlr = 0.3\nepochs = 2\nclip = "none"\nlr_milestones = [0.5, 0.75]\n\n[fedavg]\nlr = 0.4\n'


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return path


def settings(path: Path, method: str, *typed: str) -> dict[str, object]:
    options = RunOptions(settings=read_settings(path), set=list(typed))
    return typed_plan([method], options).algorithms[method].settings


def test_a_table_reaches_its_method_and_what_is_typed_wins(two: Path) -> None:
    found = settings(two, "dfedalt")
    assert [found[k] for k in ("lr", "epochs", "clip", "lr_milestones")] == [0.3, 2, None, (0.5, 0.75)]
    assert found["batch_size"] == 16  # the preset goes on for the rest
    assert settings(two, "fedavg")["lr"] == 0.4
    assert settings(two, "dfedalt", "lr=0.9")["lr"] == 0.9
    stepped = settings(two, "dfedalt", "steps=3")  # takes the place of the file's epochs
    assert (stepped["steps"], stepped["epochs"]) == (3, None)


def test_in_python(two: Path) -> None:
    found = ct.algorithms.load_settings(two)
    assert found == {
        "dfedalt": {"lr": 0.3, "epochs": 2, "clip": None, "lr_milestones": (0.5, 0.75)},
        "fedavg": {"lr": 0.4},
    }
    assert ct.algorithms.build("dfedalt", **found["dfedalt"]).settings["lr"] == 0.3


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tables = {"dfedalt": {"lr": 1e-05, "epochs": 2, "clip": None, "personal": 'a"b\\ü', "keep_optimizer_state": True},
              "mine:fed_foo": {"lr_milestones": (0.5, 0.75)}}  # fmt: skip
    write_settings(tmp_path / "a.toml", tables, ["chosen by\nvalidation"])
    text = (tmp_path / "a.toml").read_text(encoding="utf-8")
    assert text.startswith("# chosen by\n# validation\n\n[dfedalt]\n")
    assert tomllib.loads(text)["mine:fed_foo"] == {"lr_milestones": [0.5, 0.75]}
    assert ct.algorithms.load_settings(tmp_path / "a.toml")["dfedalt"] == tables["dfedalt"]


WRONG = {
    "lr = 0.1": ("a.toml", "lr is in no table", "[METHOD]"),
    "[dfedatl]\nlr = 0.1": ("a.toml, [dfedatl]", "did you mean dfedalt"),
    "[zzz]\nlr = 0.1": ("a.toml, [zzz]", "coterie list"),
    "[fedavg]\nlr = 0.1\n[dfedalt]\nlrr = 0.1": ("a.toml, [dfedalt]", "'lrr'", "did you mean lr?"),
    '[fedavg]\nlr = "fast"': ("a.toml, [fedavg]", "lr='fast'", "a number"),
    "[fedavg]\nlr = true": ("a.toml, [fedavg]", "lr=True", "a number"),
    "[fedavg]\nlr = -1": ("a.toml, [fedavg]", "lr=-1", "at least 0"),
    "[fedavg]\nlr = inf": ("a.toml, [fedavg]", "lr=inf"),
    "[fedavg]\nlr = 2020-01-01": ("a.toml, [fedavg]", "lr=", "numbers or a string"),
    "[fedavg.more]\nlr = 1": ("a.toml, [fedavg]", "more=", "numbers or a string"),
    "[fedavg": ("a.toml is not TOML", "[dfedalt]"),
    "a = " + "[" * 3000: ("a.toml is not TOML",),
    "": ("a.toml has no settings",),
    "[dfedsam-mgs]\nlr = 1\n[dfedsam_mgs]\nlr = 2": ("a.toml has two tables for dfedsam-mgs",),
    "[local]\nlr = 1": ("a.toml", "local and none for fedavg",),
    '["os:getcwd"]\nlr = 1': ("a.toml", "os:getcwd and none for fedavg",),  # which nobody imports
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_names_itself_its_table_and_the_fix(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        settings(path, "fedavg")
    said = str(raised.value)
    assert [name for name in WRONG[text] if name not in said] == [], said


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    for path, said in ((tmp_path / "a.toml", "UTF-8"), (tmp_path, "cannot read"), (tmp_path / "b.toml", "No such")):
        with pytest.raises(UserError, match=said):
            read_settings(path)


def test_the_commands(cli: Cli, tmp_path: Path, two: Path) -> None:
    small = ("--data", "synthetic:size=60,classes=3", "--clients", "3", "--rounds", "1", "--settings", "two.toml")
    done = cli.succeed("run", "fedavg", *small, "--set", "epochs=1", "--out", "a", cwd=tmp_path)
    assert "settings of fedavg from two.toml; its tables for dfedalt are not used here" in done.err
    assert json.loads((tmp_path / "a" / "config.json").read_text())["settings"]["lr"] == 0.4
    before = contents(tmp_path)
    two.write_text("[fedavgg]\nlr = 1")
    for command in (("run", "fedavg"), ("compare", "fedavg", "local")):
        cli.refuse(*command, *small, cwd=tmp_path, names=("two.toml, [fedavgg]", "did you mean fedavg"))
    cli.refuse("run", "a", "--settings", "two.toml", cwd=tmp_path, names=("--settings", "saved configuration"))
    two.write_text(TWO)
    assert contents(tmp_path) == before


@pytest.fixture
def drop(tmp_path: Path) -> Path:
    """A folder that somebody sent: settings that name a graph, and the module of it, which writes a file."""
    (tmp_path / "drop.py").write_text(
        "from pathlib import Path\nPath('IMPORTED').touch()\nimport torch\ndef graph(n):\n    return torch.eye(n)\n"
    )
    (tmp_path / "theirs.toml").write_text('[dfedavg]\nlr = 0.1\ntopology = "./drop.py:graph"\n')
    small = 'data = "synthetic:size=60,classes=3"\nclients = 3\nrounds = 1\nquiet = true\nsettings = "theirs.toml"\n'
    (tmp_path / "exp.toml").write_text(f'method = "dfedavg"\n{small}')
    return tmp_path


NAMED = ("theirs.toml would run ./drop.py:graph", "does not decide what code", "add --trust ./drop.py:graph")


def test_a_file_of_settings_does_not_decide_what_code_runs(cli: Cli, drop: Path) -> None:
    """Whatever command reads it; the module is imported once a person types what the file names."""
    small = ("--data", "synthetic:size=60,classes=3", "--clients", "3", "--rounds", "1", "--settings", "theirs.toml")
    before = contents(drop)
    for command in (
        ("run", "dfedavg", *small),
        ("run", "dfedavg", *small, "--dry-run"),
        ("run", "dfedavg", *small, "--trust", "drop:graph"),  # another name, and so perhaps another module
        ("compare", "dfedavg", "local", *small),
        ("tune", "dfedavg", "--grid", "lr=0.1,0.2", *small),
        ("run", "exp.toml"),
        ("compare", "exp.toml"),
    ):
        cli.refuse(*command, cwd=drop, names=NAMED)
    with pytest.raises(UserError, match="does not decide"):
        ct.algorithms.load_settings(drop / "theirs.toml")
    assert contents(drop) == before
    trusted = ("--trust", "./drop.py:graph")
    cli.refuse("run", "exp.toml", *trusted, "--trust", "os:abort", cwd=drop, names=("os:abort", "leave it out"))
    assert ct.algorithms.load_settings(drop / "theirs.toml", trust=["./drop.py:graph"])["dfedavg"]["lr"] == 0.1
    assert contents(drop) == before
    cli.succeed("run", "exp.toml", *trusted, "--out", "a", cwd=drop)
    assert (drop / "IMPORTED").exists()
    assert json.loads((drop / "a" / "config.json").read_text())["settings"]["topology"] == "./drop.py:graph"


@pytest.mark.parametrize("line", ['topology = " mine:f,n=1"', 'clip = ["ring", "mine:f"]', 'lr = "./a@b/mine.py:f"'])
def test_code_is_found_in_every_value(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.toml").write_text(f"[fedavg]\n{line}")
    with pytest.raises(UserError, match=r"mine(\.py)?:f, and a file does not decide"):
        ct.algorithms.load_settings(tmp_path / "a.toml")


@pytest.mark.parametrize("line", ["model = 'csv:f'", "method = 'ring:f'", "method = './a@b/mine.py:f'"])
def test_nor_does_an_experiment_file_by_a_name_that_something_else_has(cli: Cli, tmp_path: Path, line: str) -> None:
    method = "" if "method" in line else 'method = "fedavg"\n'
    (tmp_path / "exp.toml").write_text(f"{method}{line}\n")
    cli.refuse("run", "exp.toml", cwd=tmp_path, names=("a file does not decide what code runs here",))
