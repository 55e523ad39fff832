"""A file of a finished run that is not as the run wrote it is refused by everything that reads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import coterie as ct
from coterie.core.errors import UserError
from coterie.store.chosen import load_chosen, save_chosen
from helpers_cli import Cli, contents
from in_process import answer

pytestmark = pytest.mark.hostile

HASH, FIX = "its hash is another than the sha256 of digests.json", "restore the file, or start the run again"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a personal head."""
    place = tmp_path_factory.mktemp("digests") / "a"
    fed = ct.data.federate("synthetic:size=80,classes=3", clients=3, partition="iid")
    model = ct.models.build("mlp:width=8", fed)
    ct.fit(model, fed, ct.algorithms.fedper(epochs=1), rounds=2, progress=False, out=place)
    return place


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    shutil.copytree(trained, tmp_path / "a")
    return tmp_path / "a"


def client(folder: Path, number: int) -> Path:
    return folder / "clients" / f"client-{number:04d}.safetensors"


CHANGES: dict[str, Callable[[Tensors], Tensors]] = {
    "another type": lambda tensors: {k: v.double() for k, v in tensors.items()},
    "zeros": lambda tensors: {k: torch.zeros_like(v) for k, v in tensors.items()},
    "no numbers": lambda tensors: {k: v * float("nan") for k, v in tensors.items()},
    "one number": lambda tensors: {k: v + (torch.arange(v.numel()).view_as(v) == 0) for k, v in tensors.items()},
}


@pytest.mark.parametrize("how", [*CHANGES, "swapped"])
def test_a_client_s_file_that_was_changed(folder: Path, how: str) -> None:
    """Types and shapes may be right, as may be the whole file where two are swapped."""
    if how == "swapped":
        client(folder, 0).rename(folder / "kept")
        client(folder, 1).rename(client(folder, 0))
        (folder / "kept").rename(client(folder, 1))
    else:
        save_file(CHANGES[how](load_file(client(folder, 0))), client(folder, 0))
    before = contents(folder)
    for words in (
        ("export", "a", "--client", "0", "--out", "m.safetensors"),
        ("export", "a", "--client", "all", "--out", "all"),
    ):
        sentence = answer(*words, cwd=folder.parent).sentence
        assert [text for text in ("client-0000.safetensors", HASH, FIX) if text not in sentence] == []
    with pytest.raises(UserError, match=f"client-0000.safetensors .*{HASH}"):
        ct.load(folder).clients[0]  # a client is read when it is asked for
    assert contents(folder) == before
    answer("export", "a", "--client", "2", "--out", "m.safetensors", cwd=folder.parent)  # whose file is whole


def test_a_summary_that_says_something_else_than_the_rows(folder: Path) -> None:
    patterns = {"summary.json": '"final": 0.', "metrics.jsonl": '"train_loss": ', "clients.json": ": ["}
    for name, pattern in patterns.items():
        text = (folder / name).read_text()
        assert pattern in text
        (folder / name).write_text(text.replace(pattern, pattern.replace("0.", "0.1").replace(": ", ":  "), 1))
        done = answer("report", "a", "--out", "page.html", cwd=folder.parent)
        assert (done.status, f"a/{name} is damaged, because {HASH}: {FIX}" in done.err) == (2, True), done.err
        with pytest.raises(UserError, match=f"{name} is damaged, because {HASH}"):
            ct.load(folder)
        (folder / name).write_text(text)
    assert len(ct.load(folder).clients) == 3


def test_a_configuration_that_is_not_the_run_s(cli: Cli, tmp_path: Path) -> None:
    """A mean that was edited there would move every answer; the file may be changed to begin another run."""
    table = tmp_path / "t.csv"
    table.write_text("age,ill\n" + "".join(f"{i % 9 + 1},{i % 9 // 5}\n" for i in range(40)))
    typed = ("local", "--data", "csv:t.csv,target=ill", "--model", "logreg", "--clients", "2", "--rounds", "1")
    cli.succeed("run", *typed, "--quiet", "--out", "a", cwd=tmp_path)
    file = tmp_path / "a" / "config.json"
    config = json.loads(file.read_text())
    config["columns"]["mean"] = [config["columns"]["mean"][0] / 10]
    file.write_text(json.dumps(config))
    before = contents(tmp_path)
    for words in (
        ("report", "a"),
        ("export", "a", "--client", "0", "--out", "m.safetensors"),
        ("predict", "a", "--client", "0", "--data", "t.csv", "--out", "scored.csv"),
        ("personalize", "a", "--data", "csv:t.csv,target=ill", "--out", "m.safetensors"),
        ("run", "a", "--resume", "--rounds", "2"),
    ):
        cli.refuse(*words, cwd=tmp_path, names=("a/config.json", HASH, FIX))
    with pytest.raises(UserError, match=f"config.json is damaged, because {HASH}"):
        ct.load(tmp_path / "a")
    assert contents(tmp_path) == before
    cli.succeed("run", "a/config.json", "--quiet", "--out", "b", cwd=tmp_path)


def test_a_folder_without_digests(folder: Path) -> None:
    (folder / "digests.json").unlink()
    for words in (("report", "a"), ("export", "a", "--client", "0", "--out", "m.safetensors")):
        assert "digests.json is damaged, because it is missing" in answer(*words, cwd=folder.parent).sentence


def test_a_finished_run_is_not_continued_from_changed_files(cli: Cli, tmp_path: Path) -> None:
    typed = ("local", "--data", "synthetic:size=60,classes=3", "--model", "logreg", "--clients", "2", "--rounds", "1")
    cli.succeed("run", *typed, "--quiet", "--out", "a", cwd=tmp_path)
    rows = tmp_path / "a" / "metrics.jsonl"
    row = json.loads(rows.read_text())
    rows.write_text(json.dumps({**row, "train_loss": row["train_loss"] / 2}) + "\n")
    for more in ((), ("--rounds", "2")):
        cli.refuse("run", "a", "--resume", *more, cwd=tmp_path, names=("a/metrics.jsonl", HASH, FIX))


def test_what_was_chosen_so_far(tmp_path: Path) -> None:
    """It is read back when a run goes on."""
    for number in (1, 2):
        save_chosen(tmp_path, number, {"a": torch.full((3,), float(number))}, oldest=1)
    assert load_chosen(tmp_path, 2) == {"a": pytest.approx(torch.full((3,), 2.0))}
    save_file({"a": torch.zeros(3)}, tmp_path / "chosen" / "round-000002.safetensors")
    with pytest.raises(UserError, match=r"round-000002.safetensors .* another than the sha256 of round-000002.json"):
        load_chosen(tmp_path, 2)
