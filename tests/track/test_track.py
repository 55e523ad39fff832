"""Trackers: what they are told is what the run measured, once, however it was interrupted; they never stop a run."""

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie import cli
from coterie.core.errors import UserError
from coterie.store import folder as store

Row = dict[str, Any]
PACKAGES = {"tensorboard": ct.track.TensorBoard, "mlflow": ct.track.MLflow, "wandb": ct.track.WandB}
SMALL = ["--data", "synthetic:size=240,classes=3", "--clients", "4", "--rounds", "2"]
ROUNDS = 5
others_warn = pytest.mark.filterwarnings("ignore")  # what these packages and theirs deprecate is not ours to mend


class Told:
    """A tracker that keeps what it is told."""

    name = "told"

    def __init__(self, fails: str = "", at: int = 0, error: BaseException | None = None) -> None:
        self.fails, self.at, self.error = fails, at, error or OSError("the server is gone\nat line 3")
        self.calls: list[tuple[str, Any]] = []

    def begin(self, config: Mapping[str, Any], folder: Path | None, history: Sequence[Row]) -> str:
        return self._keep("begin", [row["round"] for row in history]) or "here"

    def round(self, row: Row) -> None:
        self._keep("round", row)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self._keep("end", summary)

    def _keep(self, call: str, value: Any) -> str:
        self.calls.append((call, value))
        if call == self.fails and (call != "round" or value["round"] == self.at):
            raise self.error
        return ""

    def of(self, call: str) -> list[Any]:
        return [value for name, value in self.calls if name == call]


def fit(out: Path | None = None, trackers: Sequence[ct.track.Tracker] = (), **options: Any) -> ct.Run:
    fed = ct.data.federate("synthetic:size=240,classes=3", clients=4, partition="iid")
    algorithm = ct.algorithms.dfedavg(topology="ring", steps=1)
    model, common = ct.models.build("logreg", fed), {"rounds": ROUNDS, "progress": False, "engine": "serial"}
    return ct.fit(model, fed, algorithm, out=out, trackers=trackers, **{**common, **options})


def interrupted(out: Path, trackers: Sequence[ct.track.Tracker], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was told of as far as round 3 and is saved as far as round 2."""
    monkeypatch.setattr(store, "SHARE", float("inf"))
    keep = store.Writer.keep

    def keep_and_wait(self: store.Writer, row: Row, tensors: Any) -> None:
        keep(self, row, tensors)
        self.wait()

    with monkeypatch.context() as patched:
        patched.setattr(store.Writer, "keep", keep_and_wait)
        with pytest.raises(KeyboardInterrupt):
            fit(out, [*trackers, Told("round", 3, KeyboardInterrupt())])
    for path in (out / "checkpoint").glob("round-000003*"):
        path.unlink()


# Any tracker


def test_a_tracker_is_told_of_every_round() -> None:
    told = Told()
    run = fit(trackers=[told])
    assert [call for call, _ in told.calls] == ["begin", *["round"] * ROUNDS, "end"]
    assert told.of("begin") == [[]]
    assert told.of("end") == [run.summary]
    sent = 0
    for row, given in zip(run.history, told.of("round"), strict=True):
        sent += row["bytes_sent"]
        assert given == {**row, "bytes_sent_total": sent}


def test_it_is_told_of_an_interruption_and_of_what_was_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Told(), Told()
    interrupted(tmp_path / "a", [before], monkeypatch)
    assert before.of("end") == [None]
    run = fit(tmp_path / "a", [after], resume=True)
    assert after.of("begin") == [[1, 2]]
    assert [row["round"] for row in after.of("round")] == [3, 4, 5]
    assert after.of("round")[-1]["bytes_sent_total"] == run.summary["bytes_sent"]


@pytest.mark.parametrize(("call", "at"), [("begin", 0), ("round", 2), ("end", 0)])
def test_a_tracker_that_fails_is_left_out_and_said_once(
    call: str, at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Told(call, at), Told()
    run = fit(tmp_path / "a", [bad, good])
    assert capsys.readouterr().err == (
        "told failed and is left out of this run, which goes on without it (the server is gone)\n"
    )
    assert bad.calls[-1][0] == call
    assert len(bad.calls) == 1 + (at if call == "round" else 0 if call == "begin" else ROUNDS + 1)
    assert len(good.calls) == ROUNDS + 2
    assert ct.load(tmp_path / "a").summary == run.summary


@pytest.mark.parametrize(
    ("call", "at", "of"), [("begin", 0, "the begin"), ("round", 2, "round 2"), ("end", 0, "the end")]
)
def test_a_mistake_in_a_tracker_of_ones_own_passes_as_it_is(call: str, at: int, of: str) -> None:
    mine, good = KeyError("mine"), Told()
    with pytest.raises(KeyError) as raised:
        fit(trackers=[good, Told(call, at, mine)])
    assert raised.value is mine
    assert mine.__notes__ == [f"It happened in the tracker told, when it was told of {of}."]
    assert good.of("end") == [None] if call != "end" else len(good.of("end")) == 1


def test_an_error_of_the_run_is_not_hidden_by_one_of_a_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(trackers=[Told("round", 2, KeyboardInterrupt()), Told("end", 0, KeyError("mine"))])
    assert "told failed" in capsys.readouterr().err


def test_a_run_that_cannot_begin_is_not_tracked(tmp_path: Path) -> None:
    told = Told()
    fit(tmp_path / "a")
    with pytest.raises(UserError, match="already exists"):
        fit(tmp_path / "a", [told])
    assert told.calls == []


# Packages that are not there


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(
    "command", ["run fedavg", "compare local fedavg", "recipe run dfedalt-t1 --case 1 --data digits"]
)
def test_a_missing_package_is_named_before_anything_is_trained(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["coterie", *command.split(), "--model", "small-cnn", f"--{name}", "--out", "a"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"coterie: this tracker needs {name}: run pip install 'coterie[{name}]'\n"
    assert list(tmp_path.iterdir()) == []


# TensorBoard


@pytest.fixture
def events() -> Callable[[Path], dict[str, list[tuple[int, float]]]]:
    """What TensorBoard itself reads in a folder."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: pip install 'coterie[tensorboard]'",
    )

    def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
        found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}

    return read


def assert_told(found: Mapping[str, Sequence[tuple[int, float]]], run: ct.Run) -> None:
    """Every number of every round is there once, in order."""
    for name in ("personal_accuracy_after_mix", "global_accuracy", "train_loss", "bytes_sent"):
        wanted = [(row["round"], row[name]) for row in run.history if row[name] is not None]
        assert [step for step, _ in found[name]] == [step for step, _ in wanted], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in wanted], rel=1e-5), name
    assert [step for step, _ in found["seconds"]] == list(range(1, ROUNDS + 1))  # played twice, it may take longer
    assert found["bytes_sent_total"][-1] == (ROUNDS, pytest.approx(run.summary["bytes_sent"]))


@others_warn
def test_tensorboard_reads_every_round_once(
    events: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "a", [ct.track.TensorBoard()], monkeypatch)
    assert [step for step, _ in events(tmp_path / "a" / "tensorboard")["seconds"]] == [1, 2, 3]
    run = fit(tmp_path / "a", [ct.track.TensorBoard()], resume=True, evaluate_every=1)
    assert_told(events(tmp_path / "a" / "tensorboard"), run)


@others_warn
def test_tensorboard_that_comes_later_gets_the_whole_history(
    events: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "a", [], monkeypatch)
    run = fit(tmp_path / "a", [ct.track.TensorBoard(tmp_path / "logs")], resume=True)
    assert_told(events(tmp_path / "logs" / "a"), run)


@others_warn
def test_tensorboard_has_a_folder_for_every_run(
    events: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["coterie", "compare", "local", "fedavg", *SMALL, "--tensorboard", "--quiet", "--out", "c"]
    )
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    for method in ("local", "fedavg"):
        assert len(events(tmp_path / "c" / f"{method}-seed0" / "tensorboard")["train_loss"]) == 2


@others_warn
def test_tensorboard_needs_a_folder(events: object) -> None:
    with pytest.raises(UserError, match=r"out=FOLDER, or write TensorBoard\(FOLDER\)"):
        fit(trackers=[ct.track.TensorBoard()])


# MLflow


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with a file of its own; its client."""
    module = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'coterie[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install 'coterie[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return module.MlflowClient()


@others_warn
def test_mlflow_has_every_round_once_in_one_run(mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "a", [ct.track.MLflow()], monkeypatch)
    (begun,) = mlflow.search_runs([mlflow.get_experiment_by_name("coterie").experiment_id])
    assert begun.info.status == "KILLED"
    run = fit(tmp_path / "a", [ct.track.MLflow()], resume=True)
    fit(tmp_path / "a", [ct.track.MLflow()], resume=True)  # finished: nothing is told twice
    (ended,) = mlflow.search_runs([begun.info.experiment_id])
    assert (ended.info.run_id, ended.info.run_name, ended.info.status) == (begun.info.run_id, "a", "FINISHED")
    assert ended.data.params["settings.lr"] == str(run.config["settings"]["lr"])
    histories = {k: mlflow.get_metric_history(ended.info.run_id, k) for k in ended.data.metrics}
    assert_told({k: [(m.step, m.value) for m in history] for k, history in histories.items()}, run)
    best = histories["summary.personal_accuracy.after_mix.best"]
    assert [m.value for m in best] == [run.summary["personal_accuracy"]["after_mix"]["best"]]


@others_warn
def test_mlflow_elsewhere_gets_a_new_run_with_the_whole_history(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "a", [ct.track.MLflow()], monkeypatch)
    elsewhere = ct.track.MLflow("other", f"sqlite:///{tmp_path}/other.db")
    run = fit(tmp_path / "a", [elsewhere], resume=True)
    known_as = json.loads((tmp_path / "a" / "trackers.json").read_text())["mlflow"]
    assert [m.step for m in elsewhere.client.get_metric_history(known_as, "seconds")] == [1, 2, 3, 4, 5]
    assert elsewhere.client.get_run(known_as).data.params["method"] == run.config["method"]


@others_warn
def test_an_mlflow_server_that_does_not_answer_is_refused(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"MLflow cannot be used at http://127\.0\.0\.1:9 .*MLFLOW_TRACKING_URI"):
        ct.track.MLflow(uri="http://127.0.0.1:9")


# Weights & Biases


def records(file: Path) -> Iterator[Any]:
    """What an offline run holds: records in the pieces of a LevelDB log, behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while len(data) - at >= 7:
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def whole_file(file: Path) -> list[Any]:
    """All records of a run that has ended; W&B writes them in a process of its own, which may be behind."""
    from google.protobuf.message import DecodeError

    for _ in range(300):
        try:
            found = list(records(file))
        except DecodeError:  # the last piece is half written
            found = []
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{file.name} has no end")


@others_warn
def test_wandb_goes_on_offline_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'coterie[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    interrupted(tmp_path / "a", [ct.track.WandB()], monkeypatch)
    time.sleep(1.0)  # W&B names its files by the second, and would write both into one
    run = fit(tmp_path / "a", [ct.track.WandB()], resume=True)
    files = sorted((tmp_path / "a" / "wandb").glob("offline-run-*/*.wandb"))
    told = [whole_file(path) for path in files]
    names = {record.run.run_id for each in told for record in each if record.HasField("run")}
    assert names == {json.loads((tmp_path / "a" / "trackers.json").read_text())["wandb"]}
    rows = [[_row(record) for record in each if record.HasField("history")] for each in told]
    assert [[row["_step"] for row in each] for each in rows] == [[1, 2, 3], [3, 4, 5]]
    for row in (*rows[0], *rows[1][1:]):
        assert row["train_loss"] == run.history[row["_step"] - 1]["train_loss"]


def _row(record: Any) -> Row:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


@others_warn
def test_wandb_without_a_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'coterie[wandb]'")

    def login() -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "login", login)
    monkeypatch.setattr(wandb, "setup", lambda: _Online)
    with pytest.raises(UserError, match=r"No API key.*wandb login.*WANDB_MODE=offline"):
        ct.track.WandB()


class _Online:
    class settings:  # noqa: N801
        mode = "online"
