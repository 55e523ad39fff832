"""A few sites, each with its own samples and its own name, from the file to the verdict."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from helpers_cli import Cli

SITES = {"mayo": 24, "nice": 16, "oslo": 12, "pisa": 8}  # training samples; half as many for testing


@cache
def arrays() -> dict[str, Any]:
    """Four sites that disagree on what the classes are called."""
    draw, found = np.random.default_rng(0), {}
    for part, share in (("", 1), ("test_", 2)):
        owner = np.repeat(list(SITES), [n // share for n in SITES.values()])
        y = np.arange(len(owner)) % 3
        x = draw.normal(size=(len(owner), 4)).astype(np.float32) / 2
        x[np.arange(len(y)), (y + (owner == "pisa")) % 3] += 1
        found |= {f"{part}x": x, f"{part}y": y, f"{part}client": owner}
    return found


def write(folder: Path, *left_out: str) -> str:
    np.savez(folder / "sites.npz", **{k: v for k, v in arrays().items() if k not in left_out})
    return "npz:sites.npz"


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which three methods were compared at four sites."""
    folder = tmp_path_factory.mktemp("sites")
    typed = ("--data", write(folder), "--partition", "natural", "--model", "logreg", "--rounds", "2", "--seeds", "2")
    done = cli.succeed("compare", "local", "fedavg", "fedper", *typed, "--out", "a", cwd=folder)
    (folder / "said").write_text(done.out)
    return folder


def test_a_comparison_asks_the_data_how_many_clients_there_are(compared: Path) -> None:
    assert "mean over all 4 clients" in (compared / "said").read_text()


def test_test_samples_that_nobody_is_named_for_are_not_dealt_out(cli: Cli, tmp_path: Path) -> None:
    data = write(tmp_path, "test_client")
    for command in (("run", "fedavg"), ("compare", "local", "fedavg")):
        typed = (*command, "--data", data, "--partition", "natural", "--rounds", "1")
        cli.refuse(*typed, cwd=tmp_path, names=("not whose the test samples are", "save test_client beside test_x"))
    assert not (tmp_path / "runs").exists()
    cli.succeed("run", "fedavg", "--data", data, "--partition", "iid", "--clients", "2", "--rounds", "1", cwd=tmp_path)


def test_a_test_table_without_the_column_of_sites_is_refused(cli: Cli, tmp_path: Path) -> None:
    rows = "\n".join(f"{i / 7:.3f},{'ab'[i % 2]},{('mayo', 'nice')[i % 3 > 0]}" for i in range(24))
    (tmp_path / "train.csv").write_text(f"age,kind,site\n{rows}\n")
    (tmp_path / "test.csv").write_text("age,kind\n1,a\n2,b\n")
    data = "csv:train.csv,target=kind,client=site,test-file=test.csv"
    cli.refuse("run", "fedavg", "--data", data, cwd=tmp_path, names=("test.csv has no column 'site'",))


def test_test_images_without_folders_of_clients_are_refused(cli: Cli, tmp_path: Path) -> None:
    for folder in ("train/mayo/cat", "train/mayo/dog", "train/nice/cat", "test/cat", "test/dog"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((4, 4), 40 * i, np.uint8)).save(tmp_path / "images" / folder / f"{i}.png")
    typed = ("--data", "image-folder:images,clients-by=folder", "--partition", "natural")
    names = ("test/cat holds images, and nobody knows whose they are", "images/test/CLIENT/cat")
    cli.refuse("run", "fedavg", *typed, cwd=tmp_path, names=names)
