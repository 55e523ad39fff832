"""What programs get of a command: JSON and CSV alone on the standard output, completed words, costs beforehand."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.algorithms import BUILDERS
from coterie.cli.common.completion import complete_method, method_names
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.measure.compare.columns import Cell, Spread
from coterie.report.texts import ResultTable, csv_text
from coterie.training.schedule import forecast
from helpers_cli import contents
from in_process import Answer, answer

SMALL = ("--data", "synthetic:size=400,classes=4", "--clients", "6", "--rounds", "2")


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def run_as_json(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A run of two rounds, printed as JSON."""
    folder = tmp_path_factory.mktemp("json")
    return folder, answer("run", "dfedalt", *SMALL, "--format", "json", "--out", "o", cwd=folder)


def test_a_run_is_printed_as_json(run_as_json: tuple[Path, Answer]) -> None:
    folder, done = run_as_json
    found = json.loads(done.out)
    (row,) = found["rows"]
    summary = json.loads((folder / "o" / "summary.json").read_text())
    final = summary["personal_accuracy"]["after_mix"]["final"]
    assert row["method"] == "dfedalt"
    assert row["after aggregation (%)"]["value"] == pytest.approx(100 * final)
    assert row["sent"]["value"] == summary["bytes_sent"]
    assert "results: o" in done.err


def test_a_comparison_is_printed_as_csv(tmp_path: Path) -> None:
    done = answer("compare", "local", "fedavg", *SMALL, "--format", "CSV", "--out", "c", cwd=tmp_path)
    rows = read_csv(done.out)
    saved = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [row["method"] for row in rows] == ["local", "fedavg"]
    for row, method in zip(rows, saved, strict=True):
        assert float(row["sent"]) == method["runs"][0]["bytes_sent"]
        spread = method["runs"][0]["personal_accuracy"]["after_mix"]["std"]
        assert float(row["after aggregation (%) ± over clients"]) == pytest.approx(100 * spread, rel=1e-12)
    assert not [heading for heading in rows[0] if heading.startswith("sent ")]  # it has no spread
    again = json.loads(answer("report", "c", "--format", "json", cwd=tmp_path).out)["rows"]
    assert [row["method"] for row in again] == ["local", "fedavg"]
    told = [row["after aggregation (%)"] for row in again]
    assert [cell["spread"] for cell in told] == [float(row["after aggregation (%) ± over clients"]) for row in rows]
    assert {cell["spread_over"] for cell in told} == {"clients"}


def test_every_spread_says_what_it_is_over() -> None:
    """A method with several seeds beside one with one."""
    cells = [Cell(1.0, "1.0", (Spread(over, 2 / 3, "0.7"),)) for over in ("seeds", "clients")]
    rows = read_csv(csv_text(ResultTable("", ["x"], [("a", cells[:1]), ("b", cells[1:])], "", [], [], [])))
    assert rows[0] == {"method": "a", "x": "1.0", "x ± over seeds": str(2 / 3), "x ± over clients": ""}
    assert rows[1] == {"method": "b", "x": "1.0", "x ± over seeds": "", "x ± over clients": str(2 / 3)}


@pytest.mark.parametrize("words", [(), ("dfedalt",), ("presets",), ("columns",)])
def test_lists_are_printed_for_programs(words: tuple[str, ...], tmp_path: Path) -> None:
    found = json.loads(answer("list", *words, "--format", "json", cwd=tmp_path).out)
    rows = found if isinstance(found, list) else found["settings" if words else "methods"]
    assert [list(row) for row in read_csv(answer("list", *words, "--format", "csv", cwd=tmp_path).out)] == [
        list(row) for row in rows
    ]
    if not words:
        assert {row["method"] for row in rows} == BUILDERS.keys()
        assert found["models"] == list(ct.models.BUILDERS)
    if words == ("dfedalt",):
        (lr,) = (row for row in rows if row["setting"] == "lr")
        assert (lr["python"], lr["command"], lr["type"]) == (0.1, 0.02, "a number")


def test_graphs_and_splits_are_printed_for_programs(tmp_path: Path) -> None:
    ring = json.loads(answer("topology", "ring", "--clients", "4", "--format", "json", cwd=tmp_path).out)
    assert (ring["messages_per_round"], ring["diameter"]) == (8, 2)
    assert ring["spectral_gap"] == pytest.approx(2 / 3)
    words = ("data", "show", "digits", "--clients", "3", "--format")
    split, rows = (answer(*words, kind, cwd=tmp_path).out for kind in ("json", "csv"))
    fed = ct.data.federate("digits", clients=3, partition="dirichlet:0.3", seed=0)
    assert [row["samples"] for row in json.loads(split)["clients"]] == fed.sizes.tolist()
    assert [[int(row[f"class {c}"]) for c in range(10)] for row in read_csv(rows)] == fed.class_counts().tolist()
    refused = answer(*words, "yaml", cwd=tmp_path)
    assert (refused.status, refused.out) == (2, "")
    assert "choose one of csv, json, table" in refused.err


def dry(*words: str, cwd: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer(*words, "--dry-run", "--format", "json", cwd=cwd).out)
    return found


def test_what_a_dry_run_tells_is_what_the_run_comes_to(run_as_json: tuple[Path, Answer], tmp_path: Path) -> None:
    (cost,) = dry("run", "dfedalt", *SMALL, cwd=tmp_path)
    summary = json.loads((run_as_json[0] / "o" / "summary.json").read_text())
    assert (cost["flops"], cost["bytes_sent"]) == (summary["flops"], summary["bytes_sent"])
    assert cost.keys() == {"method", "flops", "bytes_sent", "memory_bytes"}
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "method", ["local", "fedavg", "dfedsalt", "ditto", "apfl", "scaffold-p", "osgp", "heterofl", "flanc", "fedlmt"]
)
def test_flops_and_bytes_are_counted_as_rounds_count_them(method: str) -> None:
    """SAM's second gradient, second models, submodels, directed graphs; one round of each."""
    settings = ["batch_size=256", "epochs=1"]
    options = RunOptions(data="digits", clients=6, rounds=6, model="resnet8-bn:width=4", set=settings)
    e = typed_plan([method], options).prepared(method, 0).experiment
    told = forecast(e)
    r, state = e.round(0), e.start().state
    trained = e.program.train(state, r)
    one = sum(count * e.flops_per_sample(model) for model, count in trained.passes)
    sent = e.program.traffic(state, r).totals.bytes
    assert told.flops >= one
    if e.program.submodels is None:
        assert (told.flops, told.cohort) == (6 * one, len(r.cohort))
    assert (told.bytes > 0) == (sent > 0)
    assert e.program.topology is not None or e.program.submodels is not None or told.bytes == 6 * sent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "local", "fedavg", "--tune", "lr=0.1,0.2"), "leave --tune out"),
        (("run", "fedavg", "--set", "mu=1"), "has no option 'mu'"),
        (("run", "a.json"), "name its method"),
    ],
)
def test_a_dry_run_refuses_what_it_cannot_count(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = answer(*words, "--dry-run", cwd=tmp_path)
    assert (done.status, contents(tmp_path)) == (2, {})
    assert said in done.err


def test_a_shell_completes_the_names_of_methods() -> None:
    """As bash asks for them; nothing of torch is imported for it."""
    assert method_names() == list(BUILDERS)
    assert complete_method("DFedS") == ["dfedsalt", "dfedsam", "dfedsam-mgs"]
    asked = {"_COTERIE_COMPLETE": "complete_bash", "COMP_WORDS": "coterie run dfeds", "COMP_CWORD": "2"}
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "import sys; sys.argv[0] = 'coterie'; from coterie.cli import main; main()",
    ]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout.split() == ["dfedsalt", "dfedsam", "dfedsam-mgs"]
    assert "| torch" not in done.stderr
