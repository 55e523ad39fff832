"""Models of one's own, named ``module:function``."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie as ct
from coterie import models
from coterie.core.errors import UserError
from helpers_cli import SMALL, Cli, assert_same_run

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
    with pytest.raises(UserError, match="unknown model 'os:abort'"):
        ct.load(tmp_path / "a")
    with pytest.raises(UserError, match="unknown model"):
        models.rebuild({"name": "os:abort"})
