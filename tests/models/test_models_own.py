"""Models of one's own, named ``module:function``."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie as ct
from coterie import models
from coterie.core.errors import UserError
from helpers_cli import SMALL, Cli, assert_same_run, reseal

MINE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, shape, classes, width=8):
        super().__init__()
        self.body = torch.nn.Linear(torch.Size(shape).numel(), width)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x):
        return self.head(torch.relu(self.body(x.flatten(1))))

def plain(classes):
    return Net((16,), classes)

def number():
    return 3

def broken():
    raise ValueError("my own mistake")
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine_of_a_test.py").write_text(MINE)
    return tmp_path


def test_it_runs_and_is_repeated_from_its_configuration(cli: Cli, here: Path) -> None:
    cli.succeed("run", "fedper", *SMALL, "--model", "mine_of_a_test:Net,width=5", "--out", "a", cwd=here)
    about = json.loads((here / "a" / "config.json").read_text())["model"]
    assert about["module"] == "mine_of_a_test:Net"
    assert about["width"] == 5
    cli.refuse("run", "a/config.json", cwd=here, names=("--trust mine_of_a_test:Net",))
    cli.succeed("run", "a/config.json", "--trust", "mine_of_a_test:Net", "--out", "b", cwd=here)
    assert_same_run(here / "a", here / "b")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    trusted = ("--trust", "mine_of_a_test:Net")
    cli.refuse("run", "../a/config.json", *trusted, cwd=elsewhere, names=("mine_of_a_test.py",))


def test_it_is_exported_and_loaded_by_whoever_trusts_it(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, made = "mine_of_a_test:Net", ("--client", "1", "--out")
    cli.succeed("run", "fedper", *SMALL, "--model", f"{named},width=5", "--out", "a", cwd=here)
    cli.refuse("export", "a", *made, "x.safetensors", cwd=here, names=("would run", f"--trust {named}"))
    cli.refuse("export", "a", *made, "x.pt", "--trust", "os:abort", cwd=here, names=(f"--trust {named}",))
    assert not (here / "x.safetensors").exists()
    for file in ("x.safetensors", "x.pt"):
        cli.succeed("export", "a", *made, file, "--trust", named, cwd=here)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    run = ct.load("a", trust=[named])
    x = torch.randn(3, *run.config["model"]["input_shape"])
    expected = run.clients[1].module()(x)
    assert torch.equal(ct.export.load("x.safetensors", trust=[named])(x), expected)
    assert (here / "x.pt").stat().st_size > 0
    assert run.clients[1].predict(x).equal(expected.argmax(1))
    with pytest.raises(UserError, match="trust=\\['mine:net'\\]"):
        ct.load("a").clients[1].module()
    with pytest.raises(UserError, match=f"add --trust {named}"):
        ct.export.load("x.safetensors")
    with pytest.raises(UserError, match="in memory names no code"):
        ct.export.save(run, 1, "y.pt", trust=[named])


def test_a_file_is_named_as_a_shell_completes_it(cli: Cli, here: Path) -> None:
    """From any folder; the configuration repeats the name, and trust is by that name."""
    work = here / "work"
    work.mkdir()
    named = "../mine_of_a_test.py:Net"
    cli.succeed("run", "fedper", *SMALL, "--model", f"{named},width=5", "--out", "a", cwd=work)
    assert json.loads((work / "a/config.json").read_text())["model"]["module"] == named
    cli.refuse("run", "a/config.json", cwd=work, names=(f"--trust {named}",))
    cli.succeed("run", "a/config.json", "--trust", named, "--out", "b", cwd=work)
    assert_same_run(work / "a", work / "b")
    cli.succeed("run", "fedper", *SMALL, "--model", "./mine_of_a_test.py:Net,width=5", "--out", "c", cwd=here)
    names = ("there is no file ./gone.py", "name one that is there")
    cli.refuse("run", "local", *SMALL, "--model", "./gone.py:Net", cwd=here, names=names)
    (work / "json.py").write_text(MINE)
    cli.refuse(
        "run", "local", *SMALL, "--model", "work/json.py:Net", cwd=here, names=("another module 'json'", "rename")
    )


WRONG = {
    "mine_of_a_test:net": ("did you mean Net",),
    "mine_of_a_test:number": ("int", "torch.nn.Module"),
    "mine_of_a_test:Net,depth=2": ("no option 'depth'", "width"),
    "not_there_at_all:Net": ("not_there_at_all.py",),
    "mpl": ("mlp",),
}


@pytest.mark.parametrize("model", WRONG)
def test_a_wrong_name_is_one_sentence(cli: Cli, here: Path, model: str) -> None:
    cli.refuse("run", "local", *SMALL, "--model", model, cwd=here, names=WRONG[model])


def test_a_mistake_inside_is_shown_as_it_is(cli: Cli, here: Path) -> None:
    done = cli.run("run", "local", *SMALL, "--model", "mine_of_a_test:broken", cwd=here)
    assert done.status == 1
    assert "my own mistake" in done.err


def test_the_seed_decides_the_first_values() -> None:
    def built(seed: int) -> nn.Module:
        return models.build("torch.nn:Linear,in_features=3,out_features=2", classes=2, input_shape=(3,), seed=seed)

    assert torch.equal(built(0).weight, built(0).weight)
    assert not torch.equal(built(0).weight, built(1).weight)


def test_a_file_names_no_code_to_run(tmp_path: Path) -> None:
    """A run folder or an exported file may come from anybody."""
    fed = ct.data.federate("synthetic", clients=2, seed=0)
    run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=1), rounds=1, progress=False)
    run.save(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    config["model"]["name"] = "os:abort"
    path.write_text(json.dumps(config))
    reseal(path.parent)
    with pytest.raises(UserError, match="unknown model 'os:abort'"):
        ct.load(tmp_path / "a")
    with pytest.raises(UserError, match="unknown model"):
        models.rebuild({"name": "os:abort"})
