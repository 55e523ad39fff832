"""One method with several settings in one comparison: dfedalt@lr=0.1."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.study.comparison import ComparisonPlan
from helpers_cli import contents, rows
from in_process import answer
from pages import Page

SMALL = ("--data", "synthetic:size=400,classes=4", "--clients", "6", "--rounds", "2", "--quiet")
TYPED = ("compare", "fedavg", "FedAvg@lr=0.3,momentum=0", "local", *SMALL)
LABELS = ["fedavg", "fedavg@lr=0.3,momentum=0", "local"]
UNEQUAL = (
    "Unequal work: lr 0.3 (fedavg@lr=0.3,momentum=0), 0.02 (fedavg, local); "
    "momentum 0 (fedavg@lr=0.3,momentum=0), 0.9 (fedavg, local)."
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison of a method with itself."""
    folder = tmp_path_factory.mktemp("twice")
    done = answer(*TYPED, "--out", "c", cwd=folder)
    assert done.status == 0, done.err
    return folder, done.out


def test_rows_are_named_as_they_were_typed(compared: tuple[Path, str]) -> None:
    """In the terminal, in compare.json, on the page, in LaTeX and in CSV, all alike; one line says what differs."""
    folder, out = compared
    assert [label for label in LABELS if f"\n{label} " in out] == LABELS
    saved = json.loads((folder / "c" / "compare.json").read_text())
    assert [method["method"] for method in saved] == LABELS
    page = Page(folder / "c" / "report.html").root.text
    assert [label for label in LABELS if label in page] == LABELS
    latex = answer("report", "c", "--format", "latex", cwd=folder).out
    assert r"FedAvg@lr=0.3,momentum=0 &" in latex
    assert out.index(UNEQUAL) < out.index("aggregation")
    assert UNEQUAL in page
    assert f"% {UNEQUAL}" in latex
    lines = answer("report", "c", "--format", "csv", cwd=folder).out.splitlines()
    assert [row[0] for row in csv.reader(lines[1:])] == LABELS


@pytest.mark.parametrize("words", [("--validation", "0.4"), ("--precision", "bf16"), ("--select", "best-test")])
def test_another_protocol_is_no_other_seed(compared: tuple[Path, str], words: tuple[str, ...]) -> None:
    """Runs that were trained or read otherwise are rows of their own."""
    folder, name = compared[0], words[0].removeprefix("--")
    assert answer("run", "local", *SMALL, *words, "--seed", "1", "--out", name, cwd=folder).status == 0
    table = answer("report", "c/local-seed0", name, "--format", "markdown", cwd=folder).out
    assert f"| local {name}={words[1]} |" in table


def test_a_refused_continuation_changes_nothing(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    before = contents(folder / "c")
    typed = ("compare", "fedavg", "local", *SMALL, "--target", "95", "--set", "lr=0.7", "--out", "c", "--resume")
    refused = answer(*typed, cwd=folder)
    assert refused.status == 2
    assert "cannot resume" in refused.err
    assert contents(folder / "c") == before


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl"])
def test_a_lost_run_is_named(compared: tuple[Path, str], tmp_path: Path, file: str) -> None:
    """A mean over the other seeds alone would be another number."""
    lost = tmp_path / "c" / "local-seed0" / file
    shutil.copytree(compared[0] / "c", tmp_path / "c")
    lost.unlink()
    told = answer("report", "c", "--format", "csv", cwd=tmp_path)
    assert told.status == 2
    assert f"the table is without a run: {lost.relative_to(tmp_path)} " in told.err
    assert "fedavg" in told.out


def test_each_is_trained_as_if_it_were_alone(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    alone = ("run", "fedavg", *SMALL, "--evaluate-every", "1", "--set", "lr=0.3", "--set", "momentum=0", "--out", "a")
    assert answer(*alone, cwd=folder).status == 0
    assert rows(folder / "a") == rows(folder / "c" / "fedavg@lr=0.3_momentum=0-seed0")
    typed = ("run", "fedavg@lr=0.3,momentum=0", *SMALL, "--evaluate-every", "1", "--out", "b")
    assert answer(*typed, cwd=folder).status == 0
    assert rows(folder / "a") == rows(folder / "b")


def test_what_is_typed_behind_a_name_comes_first() -> None:
    """Before --set, which comes before the preset; a list keeps its commas, and steps take the place of epochs."""
    methods = ["dfedalt@lr=0.1,epochs=1,2", "dfedalt@steps=3", "fedavg"]
    plan = typed_plan(methods, RunOptions(set=["lr=0.5", "momentum=0.5", "dfedalt.clip=3"]))
    first, second, third = (plan.algorithms[m].settings for m in methods)
    assert (first["lr"], first["momentum"], first["clip"], first["epochs"]) == (0.1, 0.5, 3.0, (1, 2))
    assert (second["lr"], second["steps"], second["epochs"], second["clip"]) == (0.5, 3, None, 3.0)
    assert (third["lr"], third["clip"]) == (0.5, 10.0)


def test_names_that_are_too_long_for_a_folder_are_told_apart() -> None:
    settings = "batch_size=16,epochs=1,lr=0.02,lr_decay=0.99,momentum=0.9,personal_epochs=1,personal_lr=0.02"
    methods = [f"dfedalt@{settings},weight_decay={value}" for value in ("0.0", "0.01")]
    plan = typed_plan(methods, RunOptions(data="synthetic:size=400,classes=4", clients=3, rounds=1))
    runs = ComparisonPlan.of(plan, 1, None, None).runs
    assert [method for method, _ in runs.values()] == methods
    assert all(len(name) <= 100 + len("-seed0") for name in runs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "local", "dfedalt@"), "write dfedalt@KEY=VALUE"),
        (("compare", "dfedalt", "dfedalt"), "named twice"),
        (("compare", "dfedalt", "dfedalt@lr=0.02"), "twice with the same settings"),
        (("compare", "dfedalt", "dfedalt@mu=1"), "has no option 'mu'"),
        (("compare", "dfedalt@lr=x", "local"), "lr='x'"),
        (("compare", "dfedalt", "dfedalt@momentum=0", "--tune", "lr=0.1,0.2"), "leave one of them out"),
        (("tune", "dfedalt@momentum=0", "--grid", "lr=0.1,0.2"), "--set momentum=0"),
        (("run", "dfedatl@lr=1"), "did you mean dfedalt"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = answer(*words, cwd=tmp_path)
    assert (done.status, contents(tmp_path)) == (2, {})
    assert said in done.err.splitlines()[-1]


def test_values_of_a_grid_may_have_commas(tmp_path: Path) -> None:
    typed = ("tune", "fedavg", *SMALL[:-1], "--grid", "epochs=1,2;3", "--grid", "lr=0.1,0.2", "--out", "t")
    done = answer(*typed, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "personal accuracy on validation samples" in done.err
    assert "after aggregation" not in done.err  # which would be on test samples
    tried = [trial["settings"] for trial in json.loads((tmp_path / "t" / "tune.json").read_text())["trials"]]
    assert [(texts["epochs"], texts["lr"]) for texts in tried] == [
        ("1,2", "0.1"),
        ("1,2", "0.2"),
        ("3", "0.1"),
        ("3", "0.2"),
    ]
    config = json.loads((tmp_path / "t" / "trial001-seed0" / "config.json").read_text())
    assert config["settings"]["epochs"] == [1, 2]
