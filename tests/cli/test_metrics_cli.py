"""Metrics and losses through the commands: nothing speaks of accuracy or percent where something else is measured."""

import json
import re
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from helpers_cli import Cli
from pages import Page

SITES = (40, 32, 26, 20, 14, 10)
ASKED = ("--data", "csv:t.csv,target=price,client=site", "--model", "logreg", "--rounds", "2", "--loss", "mse")
WRONG_WORDS = re.compile(r"accurac|(?<!95.)(?<!95.\\)%", re.IGNORECASE | re.DOTALL)  # intervals are those of 95 %


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of six sites of unequal size."""
    folder, draw, lines = tmp_path_factory.mktemp("sites"), np.random.default_rng(0), ["site,age,dose,price"]
    for site, count in enumerate(SITES):
        for age, dose, noise in draw.normal(size=(count, 3)):
            lines.append(f"s{site},{age:.4f},{dose:.4f},{3 + age - 0.5 * dose + 0.1 * noise:.4f}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "mine.py").write_text(
        "from coterie.measure import metric\n\n\ndef largest(outputs, targets):\n"
        "    return (outputs.flatten() - targets.flatten()).abs().max()\n\n\n"
        "error = metric(largest, 'error', higher_is_better=False)\n",
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def compared(cli: Cli, sites: Path) -> str:
    """What a comparison of regressions says."""
    done = cli.succeed(
        *("compare", "local", "fedavg", *ASKED, "--metric", "mse", "--metric", "r2", "--target", "1", "--out", "c"),
        cwd=sites,
    )
    return done.out + done.err


def test_a_comparison_speaks_of_the_metric(cli: Cli, sites: Path, compared: str) -> None:
    assert not WRONG_WORDS.search(compared.replace("10 %", ""))
    assert "lower is better" in compared
    assert re.search(r"^fedavg \(0\.[\d]+\) is 0\.\d+ ahead of local", compared, re.MULTILINE)
    assert "All values of MSE (lower is better)" in compared
    words = ("compare", "local", "fedavg", *ASKED, "--metric", "mse", "--metric", "r2", "--target", "1", "--out", "c")
    whole = cli.succeed(*words, "--resume", "--format", "markdown", cwd=sites).out
    assert "Rounds to 1: the first evaluated round whose mean personal MSE after aggregation is that low" in whole
    assert "R2: the personal R2 after aggregation; higher is better" in whole


def test_the_files_and_all_who_read_them_do(cli: Cli, sites: Path, compared: str) -> None:
    run = sites / "c" / "fedavg-seed0"
    for name in ("config.json", "metrics.jsonl", "summary.json", "clients.json"):
        assert "accurac" not in (run / name).read_text(encoding="utf-8"), name
    page = Page(sites / "c" / "report.html")
    said = page.root.one(id="s1").text
    assert not WRONG_WORDS.search(said), WRONG_WORDS.search(said)
    assert "R2 after aggregation" in page.charts["s1-rounds"]["views"]
    assert not WRONG_WORDS.search(json.dumps(page.charts).replace("%{", ""))
    again = ("compare", "local", "fedavg", *ASKED, "--metric", "mse", "--metric", "r2", "--out", "c", "--resume")
    code = cli.succeed(*again, "--format", "latex", cwd=sites).out
    assert not WRONG_WORDS.search(re.sub(r"^% ", "", code, flags=re.MULTILINE))  # comments, not units
    assert "MSE" in cli.succeed("watch", "c", "--once", cwd=sites).out
    cli.succeed("export", str(run), "--client", "1", "--out", "one.safetensors", cwd=sites)
    assert b'"mse"' in (sites / "one.safetensors").read_bytes()[:4000]


def test_a_run_goes_on_and_is_repeated_with_its_loss_and_metrics(cli: Cli, sites: Path, compared: str) -> None:
    cli.succeed("run", str(sites / "c" / "local-seed0"), "--out", "again", "--quiet", cwd=sites)
    read = [json.loads((sites / f / "summary.json").read_text()) for f in ("again", "c/local-seed0")]
    for summary in read:
        del summary["seconds"]
    assert read[0] == read[1]
    assert read[0]["personal_r2"]["after_mix"]["final"] < 1


def test_a_function_of_ones_own_is_typed_and_trusted(cli: Cli, sites: Path) -> None:
    done = cli.succeed("run", "fedavg", *ASKED, "--metric", "mine:error", "--out", "own", cwd=sites)
    assert "personal error after aggregation" in done.out + done.err
    names = ("--trust mine:error",)
    cli.refuse("run", "own", "--out", "own2", cwd=sites, names=names)
    cli.succeed("run", "own", "--out", "own2", "--trust", "mine:error", "--quiet", cwd=sites)
    (sites / "one.csv").write_text("".join((sites / "t.csv").read_text().splitlines(keepends=True)[:20]))
    site = cli.succeed("personalize", "own", "--data", "one.csv", "--out", "site.safetensors", cwd=sites)
    assert "MSE on" in site.out  # nobody has typed that mine:error may run
    assert json.loads((sites / "own2" / "config.json").read_text())["metrics"][0] == {
        "name": "mine:error",
        "column": "error",
        "higher_is_better": False,
        "average": "clients",
        "percent": False,
    }


@pytest.mark.parametrize(
    ("file", "key", "damaged", "said"),
    [
        ("summary.json", "personal_mse", 3, "digests.json"),
        ("summary.json", "global_r2", "high", "digests.json"),
        ("summary.json", "personal_mse", None, "digests.json"),
        ("clients.json", "mse", {"after_mix": [0.5]}, "digests.json"),
        ("clients.json", "r2", {"after_mix": "x"}, "digests.json"),
        ("metrics.jsonl", "", None, "damaged"),
    ],
)
def test_damaged_metrics_are_one_sentence(
    cli: Cli, sites: Path, compared: str, tmp_path: Path, file: str, key: str, damaged: object, said: str
) -> None:
    copytree(sites / "c" / "fedavg-seed0", tmp_path / "run")
    path = tmp_path / "run" / file
    path.write_text("{\n" if not key else json.dumps({**json.loads(path.read_text()), key: damaged}), encoding="utf-8")
    cli.refuse("report", "run", cwd=tmp_path, names=(file, said))


WRONG = {
    "auroc of numbers": ((*ASKED, "--metric", "auroc"), ("auroc", "numbers", "mse")),
    "mse of classes": (("--metric", "mse"), ("mse", "one class per sample", "accuracy")),
    "dice of vectors": ((*ASKED, "--metric", "dice"), ("dice", "pixel", "numbers")),
    "no such metric": (("--metric", "nonsense"), ("nonsense", "macro-f1", "module:function")),
    "twice": (("--metric", "auroc", "--metric", "auroc"), ("auroc", "twice")),
    "a function of one thing": (("--metric", "json:loads"), ("loads", "(outputs, targets)")),
    "the dice of vectors": (("--loss", "dice"), ("dice", "pixels", "cross-entropy")),
    "no such loss": (("--loss", "l2"), ("l2", "mse", "cross-entropy")),
    "cross-entropy of numbers": (ASKED[:-2], ("float32", "--loss mse")),
    "mse of ten classes": (("--loss", "mse"), ("outputs", "another loss")),
    "a target in percent": (
        ("--metric", "balanced-accuracy", "--target", "101"),
        ("--target 101", "balanced accuracy"),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_one_sentence(cli: Cli, sites: Path, wrong: str) -> None:
    words, names = WRONG[wrong]
    cli.refuse("compare", "local", "fedavg", *words, "--out", "wrong", cwd=sites, names=names)
    assert not (sites / "wrong").exists()
