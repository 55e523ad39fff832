"""Folders that anybody may have written: what is damaged is named by file and field, and never ends in a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.core.checked_json import parse_json, read_json, read_rows, read_text
from coterie.core.errors import DamagedFileError, UserError
from coterie.core.files import write_json
from coterie.core.schema import ACCURACY, CheckpointFile, ClientSummary, Config, MetricInfo, PersonalAccuracy
from coterie.core.schema_several import Plan
from coterie.store import RunFolder
from coterie.store.folder import RESAMPLED
from helpers_cli import reseal

pytestmark = pytest.mark.hostile

GRAPH = {"name": "ring", "fixed": True, "stochastic": "doubly", "round": 1, "messages": 2, "edges": [[0, 1, 0.5]]}
# The kind of file, what it holds, and the field and the reason that the sentence must name.
WRONG: dict[str, tuple[Any, str, str]] = {
    "missing": (Plan, '{"runs": []}', "target is missing"),
    "another type": (Plan, '{"runs": "a", "target": 80}', r"runs does not fit \(Expected array, got str\)"),
    "of an entry": (Plan, '{"runs": ["a", 3], "target": 80}', r"runs\[1\] does not fit \(Expected str, got int\)"),
    "true is no number": (
        Plan,
        '{"runs": [], "target": true}',
        r"target does not fit \(Expected float | null, got bool\)",
    ),
    "out of range": (CheckpointFile, '{"round": -1}', r"round does not fit \(Expected int >= 0\)"),
    "not a number": (Plan, '{"runs": [], "target": NaN}', "target is nan and should be a finite number"),
    "infinite": (Plan, '{"runs": [], "target": 1e999}', "target is inf and should be a finite number"),
    "huge": (Plan, f'{{"runs": [], "target": {10**400}}}', r"target is 10+\.\.\.0+ and should be a finite number"),
    "where a type knows nothing": (Plan, '{"runs": [], "target": 80, "x": [[1e999]]}', r"x\[0\]\[0\] is inf"),
    "nested": (Plan, '{"runs": [], "target": 80, "x": ' + "[" * 99 + "]" * 99 + "}", r"x(\[0\])+ is nested too deep"),
    "nested deeper": (Plan, "[" * 100_000, "nested too deep"),
    "not whole": (Plan, '{"runs": [', "not valid JSON"),
    "no object": (Plan, "3", r"all of it does not fit \(Expected object, got int\)"),
    "leads elsewhere": (
        Plan,
        '{"runs": ["../a"], "target": 80}',
        r"runs\[0\] does not fit \(Expected str matching regex ",
    ),
    "half a character": (Plan, r'{"runs": ["\ud800"], "target": 80}', r"runs\[0\] is '.ud800', with a control"),
    "an escape sequence": (Plan, r'{"runs": ["\u001b[2J"], "target": 80}', r"runs\[0\] is '.x1b\[2J', with a control"),
    "a name of a key": (Plan, r'{"runs": [], "target": 80, "\u001b": 1}', r"'.x1b' is '.x1b', with a control"),
    "a choice": (
        ClientSummary,
        json.dumps({"graph": {**GRAPH, "stochastic": "x"}}),
        r"graph.stochastic does not fit \(Invalid enum value 'x'",
    ),
    "a choice of several lines": (
        MetricInfo,
        json.dumps({**ACCURACY, "average": "x\n - at `$.name`"}),
        r"average does not fit \(Invalid enum value 'x.n - at \$.name'\)",
    ),
    "inside a union": (
        ClientSummary,
        json.dumps({"graph": {**GRAPH, "round": 0}}),
        r"graph.round does not fit \(Expected int >= 1",
    ),
    "an edge": (
        ClientSummary,
        json.dumps({"graph": {**GRAPH, "edges": [[0, 1]]}}),
        r"graph.edges\[0\] does not fit \(Expected array of length 3, got 2",
    ),
    "no rows": (ClientSummary, '{"labels": []}', r"labels does not fit \(Expected array of length >= 1"),
    "keys of a dict": (PersonalAccuracy, '{"after_mix": null}', "after_train is missing"),
    "a key that leads elsewhere": (
        CheckpointFile,
        '{"round": 1, "parts": {"../a": ""}}',
        r"parts does not fit \(Expected str matching",
    ),
    "long": (Config, json.dumps({"method": "x" * 100_000}), "[a-z_]+ is missing"),
    "a long choice": (MetricInfo, json.dumps({**ACCURACY, "average": "x" * 100_000}), "average does not fit"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_sentence_names_file_and_field(wrong: str) -> None:
    kind, text, names = WRONG[wrong]
    with pytest.raises(DamagedFileError, match=f"^a/plan.json is damaged, because .*{names}") as error:
        parse_json(text, kind, "a/plan.json")
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()
    assert str(error.value).endswith(": restore the file, or start the run again")


def test_a_table_has_rows_of_one_length(tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text('{"labels": [[1], [1, 2]]}')
    with pytest.raises(
        DamagedFileError, match=r"clients.json is damaged, because labels has rows of different lengths"
    ):
        RunFolder(tmp_path).client_summary()


def test_draws_are_no_text(tmp_path: Path) -> None:
    """They are in a file of their own, with a digest; a folder of the earlier form is refused."""
    fed = ct.data.federate("synthetic:size=60,classes=3", 3)
    method = ct.algorithms.local(epochs=1)
    run = ct.fit(ct.models.build("mlp", fed), fed, method, rounds=1, progress=False, out=tmp_path / "a")
    draws, path = run.client_summary["resampled"], tmp_path / "a" / RESAMPLED
    assert RunFolder(tmp_path / "a").client_summary() == run.client_summary
    assert "resampled" not in (tmp_path / "a" / "clients.json").read_text()
    assert path.stat().st_size < 4 * len(draws) * len(draws[0]) + 200
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\0")
    with pytest.raises(UserError, match=f"{RESAMPLED} is damaged, because its hash is another"):
        RunFolder(tmp_path / "a").client_summary()
    path.unlink()
    with pytest.raises(UserError, match=f"{RESAMPLED} is damaged, because it is missing"):
        ct.load(tmp_path / "a")
    path.write_bytes(whole)
    write_json(tmp_path / "a" / "clients.json", run.client_summary)
    reseal(tmp_path / "a")
    with pytest.raises(UserError, match=r"clients.json is of an earlier form, .*: start the run again"):
        ct.load(tmp_path / "a")


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    """Integers are numbers, and keys that a later version adds are no damage."""
    written = {"runs": ["a b", "ä"], "target": 80, "more": {"x": [1, None, "line\nline"]}}
    (tmp_path / "plan.json").write_text(json.dumps(written))
    assert read_json(tmp_path / "plan.json", Plan) == written
    parse_json(json.dumps({"graph": GRAPH, "labels": [[1, 0], [0, 2]]}), ClientSummary, "clients.json")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes(b'{"runs": ["\xe4"], "target": 80}')
    for name, names in {
        "device": "plain file",
        "folder": "plain file",
        "latin": "UTF-8 .byte 11.",
        "none": "cannot",
    }.items():
        with pytest.raises(UserError, match=names):
            read_json(tmp_path / name, Plan)
    (tmp_path / "command.txt").write_text("coterie run \x1b[2J")
    with pytest.raises(UserError, match=r"command.txt is damaged, because it is 'coterie run .x1b"):
        read_text(tmp_path / "command.txt")


def test_rows_are_those_of_rounds_in_order(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path) == []
    path.write_bytes(b'{"round": 1')  # it is just being written
    assert read_rows(path) == []
    path.write_bytes(b"\xff\n")
    assert read_rows(path, 0) == []  # what a crash left behind the rows that are asked for
    with pytest.raises(DamagedFileError, match=r"metrics.jsonl, line 1, is damaged, because it is not text"):
        read_rows(path)


def test_a_checkpoint_with_fewer_rows_is_not_gone_on_with(tmp_path: Path) -> None:
    """Rows that are lacking could not be written again."""
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="does not hold rounds 1 to 2: start again with another --out"):
        RunFolder(tmp_path).history(2)


def test_a_measure_beyond_all_numbers_is_null(tmp_path: Path) -> None:
    """A file holds no infinity, and what a run has written can be read again."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog lay on the rug while it rained . " * 20)
    fed = ct.data.federate(f"text:length=8,rows=4,vocabulary=12,path={text}", clients=2, partition="iid", seed=0)
    model = ct.models.build("transformer-mlm:layers=1,dim=8,heads=2,hidden=8", fed)
    method = ct.algorithms.fedavg(lr=300.0, clip=None, steps=3, batch_size=8)
    run = ct.fit(model, fed, method, rounds=1, record=["perplexity"], progress=False, out=tmp_path / "a")
    assert run.history[0]["perplexity"] is None
    assert isinstance(run.history[0]["train_loss"], float)
    assert ct.load(tmp_path / "a").history == run.history
