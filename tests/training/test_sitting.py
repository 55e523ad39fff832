"""Runs in several sittings: a time limit that ends them in time, and packs that carry them elsewhere."""

import shlex
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
from coterie import cli
from coterie.core.spec import parse_seconds
from coterie.store import folder, models
from coterie.store.safetensors import save_tensors
from coterie.training.time_limit import LATEST, MARGIN, RoundTimes, TimeLimit
from helpers_cli import assert_same_run, saved_rounds
from tracked import row

DATA = ("--data", "synthetic:size=240,classes=3", "--clients", "4", "--set", "steps=1")
SMALL = (*DATA, "--rounds", "3")
RECIPE = (
    "recipe",
    "run",
    "dfedalt-t1",
    "--case",
    "1",
    "--methods",
    "fedavg,dfedalt",
    "--seeds",
    "1",
    "--model",
    "logreg",
)


class Clock:
    """A clock that others turn; as a tracker it turns itself, by so many seconds a round."""

    name = "clock"

    def __init__(self, *rounds: float) -> None:
        self.now, self.rounds = 0.0, rounds

    def __call__(self) -> float:
        return self.now

    def begin(self, *_: object) -> str:
        return "it ticks"

    def round(self, row: Any) -> None:
        self.now += self.rounds[(row["round"] - 1) % len(self.rounds)]

    def end(self, summary: object) -> None: ...


def fit(
    out: Path | None, clock: Clock | None = None, time: str = "100s", method: str = "fedper", **options: Any
) -> ct.Run:
    fed = ct.data.federate("synthetic:size=240,classes=3", clients=4, partition="iid")
    algorithm = ct.algorithms.build(method, steps=1, participation=0.5)
    limited: dict[str, Any] = {} if clock is None else {"time_limit": TimeLimit(time, clock), "trackers": [clock]}
    given = {"rounds": 6, "progress": False, "evaluate_every": 1, "out": out, **limited, **options}
    return ct.fit(ct.models.build("logreg", fed), fed, algorithm, **given)


def coterie(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The real entry point, in this process."""
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let every time limit be over after so many rounds and finished runs."""
    monkeypatch.setattr(TimeLimit, "left", property(lambda self: 1e9 if self.steps < steps else 0.0))


TIMES = {"25m": 1500, "90s": 90, "1.5h": 5400, "1h30m": 5400, "1h0.5m5s": 3635, " 2m ": 120}
WRONG = ("", "25", "0m", "-5m", "5x", "m", "30m1h", "1e3s", "infs", "nan", "1.2.3s", "25 m", "9" * 400 + "h")


def test_times_are_read() -> None:
    assert {text: parse_seconds(text) for text in TIMES} == TIMES
    for text in WRONG:
        with pytest.raises(ct.UserError, match="is not a time: write it as 90s, 25m, "):
            parse_seconds(text)
    assert ct.TimeLimit(1500).seconds == ct.TimeLimit("25m").seconds


def test_what_the_next_round_takes_is_learned() -> None:
    times = RoundTimes([], every=40)
    assert times.expected(evaluate=True) == 0  # nobody knows
    times.seen(False, 50.0)  # with building
    assert times.expected(evaluate=False) == MARGIN * 50
    times.seen(False, 4.0)
    assert times.expected(evaluate=False) == MARGIN * 4
    assert times.expected(evaluate=True) == MARGIN * (4 + 50)  # it may build as well
    times.seen(True, 9.0)
    assert times.expected(evaluate=True) == MARGIN * 9
    for seconds in [7.0, *[2.0] * (LATEST - 1)]:
        times.seen(False, seconds)
    assert times.expected(evaluate=False) == MARGIN * 7  # the longest of the latest
    times.seen(False, 2.0)
    assert times.expected(evaluate=False) == MARGIN * 2
    seldom = RoundTimes([], every=40)
    seldom.seen(False, 5.0)
    assert seldom.expected(evaluate=True) == MARGIN * (5 + 5 * 40 / 10)


def test_what_earlier_processes_took_is_known() -> None:
    seen: list[Any] = [{**row(t), "seconds": s} for t, s in enumerate((99.0, 3.0, 2.0), 1)]
    again = RoundTimes(seen, every=1)  # of a version that did not time evaluations
    assert again.expected(evaluate=False) == MARGIN * 3
    assert again.expected(evaluate=True) == MARGIN * 6
    again = RoundTimes([{**one, "evaluation_seconds": 8.0} for one in seen], every=1)
    assert again.expected(evaluate=True) == MARGIN * (3 + 8)


def test_a_run_in_sittings_is_the_run_without(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    clock = Clock(10.0, 25.0)  # seconds of odd and even rounds
    with pytest.raises(ct.OutOfTime, match=r"stopped in time: round 5 of 6 takes about 3\S* s, and 24 s are left"):
        fit(tmp_path / "a", clock)
    assert clock.now == 70  # of the 94 that can be used
    assert saved_rounds(tmp_path / "a")[-1] == 4
    run = fit(tmp_path / "a", clock, resume=True)
    assert_same_run(tmp_path / "a", tmp_path / "whole")
    assert all(torch.equal(run.final[k], v) for k, v in whole.final.items())


def test_an_evaluated_round_is_longer(tmp_path: Path) -> None:
    """There is time for many rounds, but not for the evaluation that comes next."""
    with pytest.raises(ct.OutOfTime, match=r"round 6 of 9 takes about 6\S* s"):
        fit(tmp_path / "a", Clock(5.0, 5.0, 50.0), time="120s", rounds=9, evaluate_every=3)


def test_a_time_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ct.UserError, match="give out, the folder to write it to"):
        fit(None, time_limit=ct.TimeLimit(1))
    clock = Clock(60.0)
    limit = TimeLimit("1s", clock)
    clock.now += 2  # before the first run
    sentence = (
        "a time limit of 1s is too short to begin with: the first round of a run finds no time left; give more time"
    )
    with pytest.raises(ct.UserError, match=sentence):
        fit(tmp_path / "a", clock, time_limit=limit)
    assert not (tmp_path / "a").exists()


def test_the_clients_models_must_fit_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds are done, and the next sitting only writes the models."""
    stop_after(monkeypatch, 6)
    with pytest.raises(ct.OutOfTime, match="writing the clients' models"):
        fit(tmp_path / "a", Clock(0.0))
    assert saved_rounds(tmp_path / "a")[-1] == 6
    assert fit(tmp_path / "a", Clock(0.0), resume=True).summary["rounds"] == 6


@pytest.mark.parametrize(("seconds", "fits"), [(1.0, True), (40.0, False)])
def test_what_writing_a_model_takes_is_learned_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, fits: bool
) -> None:
    """A checkpoint of the server, however long it took, says little about the files of all clients."""
    clock = Clock(0.0)

    def turn(path: Path, tensors: object) -> str:
        clock.now += seconds if path.name.startswith("client-") else 0.0
        sha256: str = save_tensors(path, tensors)
        return sha256

    monkeypatch.setattr(models, "save_tensors", turn)
    monkeypatch.setattr(folder.Writer, "longest", property(lambda self: 40.0, lambda self, took: None), raising=False)
    if fits:
        assert fit(tmp_path / "a", clock, method="fedper").summary["rounds"] == 6
        return
    with pytest.raises(ct.OutOfTime, match="writing the clients' models takes about 144 s, and 54 s are left"):
        fit(tmp_path / "a", clock, method="fedper")
    assert len(list((tmp_path / "a" / "clients").glob("client-*"))) == 1
    monkeypatch.undo()
    fit(tmp_path / "a", method="fedper", resume=True)
    fit(tmp_path / "whole", method="fedper")
    assert_same_run(tmp_path / "a", tmp_path / "whole")


def test_later_runs_are_not_begun_in_vain(tmp_path: Path) -> None:
    """A first run shows how long it takes until a first round is saved."""
    clock = Clock(60.0, 8.0, 8.0, 8.0, 8.0, 8.0)
    limit = TimeLimit("150s", clock)
    fit(tmp_path / "a", clock, time_limit=limit)
    with pytest.raises(ct.OutOfTime, match="the first round of a run takes about 60 s, and 43 s are left"):
        fit(tmp_path / "b", clock, time_limit=limit)
    assert not (tmp_path / "b").exists()


def sittings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], steps: int, *words: str
) -> tuple[list[str], list[str]]:
    """Type a command, and whatever it prints to go on with until nothing is left; return what was done, and typed."""
    stop_after(monkeypatch, steps)
    said, typed = [], [shlex.join(["coterie", *words])]
    while coterie(monkeypatch, *shlex.split(typed[-1])[1:]) == 75:
        *_, done, command = capsys.readouterr().err.splitlines()
        assert done.startswith("stopped in time: ")
        assert done.endswith(". Continue with:")
        said.append(done.removeprefix("stopped in time: ").removesuffix(". Continue with:"))
        typed.append(command.strip())
    return said, typed


def test_a_run_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "run", "fedper", *SMALL, "--out", "whole") == 0
    said, typed = sittings(monkeypatch, capsys, 2, "run", "fedper", *SMALL, "--out", "a", "--for", "25m", "--quiet")
    assert said == ["2 of 3 rounds are done, 1 is left"]
    assert typed[1] == "coterie run a --resume --for 25m --quiet"
    assert_same_run(Path("a"), Path("whole"))


def test_a_recipe_in_sittings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time is over all runs, finished ones are not run again, and the table is that of one sitting."""
    monkeypatch.chdir(tmp_path)
    command = (*RECIPE, *SMALL)
    assert coterie(monkeypatch, *command, "--out", "whole", "-q") == 0
    table = capsys.readouterr().out
    said, typed = sittings(monkeypatch, capsys, 5, *command, "--out", "a", "--for=25m", "-q")
    assert said == [
        "1 of 2 runs are finished, 1 is left; 1 of 3 rounds of case1-dfedalt-seed0 are done, 2 are left",
    ]
    assert typed[1] == f"{typed[0]} --resume"
    assert (
        capsys.readouterr().out.replace("results: a", "results: whole").replace("report: a", "report: whole") == table
    )
    for run in ("case1-fedavg-seed0", "case1-dfedalt-seed0"):
        assert_same_run(Path("a") / run, Path("whole") / run)
    assert "--for" not in Path("a/command.txt").read_text()


@pytest.mark.parametrize("text", ["25", "soon", "0s"])
def test_a_time_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "run", "fedper", *SMALL, "--for", text) == 2
    assert capsys.readouterr().err == f"coterie: {text!r} is not a time: write it as 90s, 25m, 1.5h or 1h30m\n"
    assert not list(tmp_path.iterdir())


def test_the_sentences_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stop_after(monkeypatch, 0)
    assert coterie(monkeypatch, "run", "fedper", *SMALL, "--out", "a", "--for", "1s", "-q") == 2
    assert "a time limit of 1s is too short to begin with" in capsys.readouterr().err
    assert coterie(monkeypatch, "recipe", "run", "fedlmt-t1", "--for", "1m") == 2
    assert "--for is of no use to fedlmt-t1, which trains nothing" in capsys.readouterr().err


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with one finished run and one under way."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        stop_after(patch, 5)
        assert coterie(patch, "compare", "local", "fedper", *SMALL, "--out", "c", "--for", "25m", "-q") == 75
    return folder


def unpacked(pack: Path, where: Path) -> list[str]:
    with tarfile.open(pack) as archive:
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early Python 3.11 has none
        archive.extractall(where, **safely)
        assert {(m.uname, m.gname, m.uid) for m in archive} == {("", "", 0)}
        return archive.getnames()


def test_a_pack_goes_on_elsewhere(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "pack", str(begun / "c")) == 0
    said = capsys.readouterr().out
    assert "c.tar.gz is " in said
    assert "with 1 finished and 1 unfinished runs" in said
    assert "--no-checkpoints leaves them out" in said
    names = unpacked(Path("c.tar.gz"), tmp_path)
    assert not [name for name in names if name.startswith("c/local-seed0/checkpoint") or "/clients/" in name]
    assert [n for n in names if "checkpoint" in n] == [
        f"c/fedper-seed0/checkpoint/round-000001.{kind}" for kind in ("json", "safetensors")
    ]
    assert coterie(monkeypatch, "compare", "local", "fedper", *SMALL, "--out", "c", "--resume", "-q") == 0
    assert not Path("c/local-seed0/clients").exists()  # it was not run again
    assert coterie(monkeypatch, "compare", "local", "fedper", *SMALL, "--out", "whole", "-q") == 0
    assert_same_run(Path("c/fedper-seed0"), Path("whole/fedper-seed0"))
    read = ct.load("c/local-seed0")
    assert (len(read.clients), read.final, len(read.history)) == (0, {}, 3)
    assert coterie(monkeypatch, "export", "c/local-seed0", "--client", "0", "--out", "m.safetensors") == 2
    assert "c/local-seed0 has no models: coterie pack leaves them out" in capsys.readouterr().err
    with pytest.raises(ct.UserError, match="its configuration differs"):  # what is finished is not taken for another
        fit(Path("c/local-seed0"), resume=True)


def test_a_pack_without_checkpoints_says_that_it_cannot_go_on(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "pack", str(begun / "c"), "--out", "p.tar", "--no-checkpoints") == 0
    assert "unfinished runs go on only where they were packed" in capsys.readouterr().out
    names = unpacked(Path("p.tar"), tmp_path)
    assert [n for n in names if "checkpoint" in n] == ["c/fedper-seed0/checkpoint/left-out"]
    rows = Path("c/fedper-seed0/metrics.jsonl").read_text()
    assert coterie(monkeypatch, "run", "c/fedper-seed0", "--resume", "-q") == 2
    assert "was left out of its pack: go on where it was packed" in capsys.readouterr().err
    assert Path("c/fedper-seed0/metrics.jsonl").read_text() == rows  # nothing is lost
    assert coterie(monkeypatch, "watch", "c", "--once") == 0


def test_a_comparison_that_still_tunes_is_packed_with_its_trial(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report says that it is too early, and how to go on."""
    monkeypatch.chdir(tmp_path)
    trial = Path("d/tune-fedper/trial001-seed0")
    shutil.copytree(begun / "c" / "fedper-seed0", trial)
    shutil.copy(begun / "c" / "plan.json", "d")
    assert coterie(monkeypatch, "pack", "d") == 0
    assert "with 0 finished and 1 unfinished runs" in capsys.readouterr().out
    assert f"{trial.as_posix()}/checkpoint/round-000001.json" in unpacked(Path("d.tar.gz"), tmp_path / "e")
    assert coterie(monkeypatch, "report", "d") == 2
    assert "still choosing settings" in (said := capsys.readouterr().err)
    assert "--resume" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere holds no run"),
        (["c", "--out", "c.zip"], "a pack is an archive of tar: write it to c.zip.tar.gz instead of c.zip"),
        (["c", "--out", "there.tar"], "there.tar already exists: choose another --out"),
        (["c", "../begun0/c"], "two of the folders have one name (c, c): pack them one by one"),
    ],
)
def test_packs_that_are_refused(
    begun: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(begun)
    Path("there.tar").touch()
    assert coterie(monkeypatch, "pack", *words) == 2
    assert capsys.readouterr().err.startswith(f"coterie: {sentence}")
    assert sorted(p.name for p in begun.iterdir()) == ["c", "there.tar"]
