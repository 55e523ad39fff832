"""What is seen of a run while it trains: a bar in a terminal, few lines elsewhere, nothing when it is to be quiet."""

import re
import signal
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie import cli
from coterie.engines import Serial
from coterie.track.progress import APART, LONGEST, LineThrottle, Pace, Progress
from coterie.training.select_engine import Choice
from tracked import row

SMALL = ["--data", "synthetic:size=240,classes=3", "--clients", "4", "--rounds", "3"]


def coterie(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The real entry point, in this process."""
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def fit(**options: Any) -> ct.Run:
    fed = ct.data.federate("synthetic:size=240,classes=3", clients=4, partition="iid")
    algorithm = ct.algorithms.dfedavg(topology="ring", steps=1)
    return ct.fit(ct.models.build("logreg", fed), fed, algorithm, **{"rounds": 3, **options})


def test_the_time_that_is_left_counts_this_process_only() -> None:
    pace = Pace(done=90, now=1000.0)  # ninety rounds were played before
    assert pace.left(100, now=1001.0) is None
    pace.seen(91, now=1030.0)
    assert pace.left(100, now=1030.0) == 9 * 30
    assert pace.left(100, now=1040.0) == 9 * 30 - 10  # it counts down while a round lasts
    pace.seen(92, now=1032.0)  # the first one built the engine
    assert pace.left(100, now=1032.0) == 8 * 2
    assert pace.left(100, now=9999.0) == 0


def test_the_pace_follows_rounds_that_get_longer() -> None:
    pace, now = Pace(0, 0.0), 0.0
    for done in range(1, 101):
        now += 1.0 if done <= 50 else 3.0
        pace.seen(done, now)
    assert pace.left(200, now) == pytest.approx(300)


def test_rounds_that_build_programs_do_not_count_for_the_pace() -> None:
    pace = Pace(0, now=0.0)
    pace.seen(1, now=85.0, built=True)
    assert pace.left(10, now=86.0) is None
    pace.seen(2, now=87.0)
    assert pace.left(10, now=87.0) == 8 * 2
    pace.seen(3, now=187.0, built=True)  # a first evaluation, say
    pace.seen(4, now=189.0)
    assert pace.left(10, now=189.0) == 6 * 2


class Builder(Serial):
    """Builds two programs when it is called first, and a third one in the last round."""

    calls = 0

    def scan(self, *given: Any, **keys: Any) -> Any:
        self.calls += 1
        for number in {1: (1, 2), 3: (3,)}.get(self.calls, ()):
            assert self.on_build is not None
            self.on_build(number, 2 if number < 3 else None)
        return super().scan(*given, **keys)


def built(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr("coterie.training.prepare.select_engine", lambda *_: Choice(Builder(), "it builds"))
    fit(progress="dfedavg", evaluate_every=3, **options)


def test_plain_lines_say_that_programs_are_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built(monkeypatch)
    first, ended, one, again, ended_again, last = capsys.readouterr().err.splitlines()
    assert first == "dfedavg: building 2 programs, serial on cpu"
    assert re.fullmatch(r"dfedavg: the programs are built, 2 in all; round 1 took 0:00:0\d with that", ended)
    assert "round 1/3" in one
    assert "ETA -:--:--" in one  # the only round so far was none to judge by
    assert again == "dfedavg: building programs, serial on cpu"
    assert "3 in all; round 3 took" in ended_again
    assert "took 0:00:0" in last


@pytest.mark.parametrize(("rounds", "seconds"), [(3, 0.01), (100, 0.01), (100, 60.0), (1000, 36.0), (100_000, 0.36)])
def test_plain_lines_come_at_a_decent_pace(rounds: int, seconds: float) -> None:
    throttle = LineThrottle(0, rounds, now=0.0)
    told = [t for t in range(1, rounds + 1) if throttle.due(t, now=seconds * t)]
    assert told[0] == 1
    assert told[-1] == rounds
    assert len(told) <= 12 + rounds * seconds / LONGEST
    gaps = [seconds * (b - a) for a, b in pairwise(told[:-1])]
    assert all(APART <= gap < LONGEST + seconds for gap in gaps)


def test_plain_lines_tell_everything(capsys: pytest.CaptureFixture[str]) -> None:
    fit(progress="dfedavg, seed 0 (2 of 6)", evaluate_every=2)
    out, err = capsys.readouterr()
    assert out == ""
    first, last = err.splitlines()
    where = "vectorized:4 on cpu"
    assert re.fullmatch(
        rf"dfedavg, seed 0 \(2 of 6\): round 1/3, train loss \d\.\d{{3}}, [\d.]+ kB sent, ETA 0:00:\d\d, {where}", first
    )
    assert re.search(r"round 3/3, personal accuracy after aggregation \d+\.\d %, train loss .*, took 0:00:\d\d", last)
    assert last.endswith(where)


def test_the_accuracy_that_was_last_measured_is_shown_with_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("local", 3, "serial on cpu", shown=True) as bar:
        bar.begin([row(1, 0.25)])
        bar.update(row(2, None))
    said = capsys.readouterr().err
    assert "round 2/3, personal accuracy after aggregation 25.0 % (round 1), train loss 1.250, 2 kB sent" in said


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process believe that it writes to one."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80", "LINES": "25"}.items():
        monkeypatch.setenv(name, value)


def drawn(err: str) -> list[str]:
    """Return the lines that a terminal showed, one after another."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_the_bar_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch)
    fit(progress="dfedavg, seed 0 (2 of 6)")
    lines = drawn(capsys.readouterr().err)
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(r"dfedavg, seed 0 \(2 of 6\) ━+ 3/3 took 0:00:\d\d vectorized:4 on cpu", lines[-2])
    assert re.fullmatch(r"  personal accuracy after aggregation .* %, train loss .*, [\d.]+ kB sent", lines[-1])


def test_the_bar_says_that_programs_are_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    built(monkeypatch)
    lines = drawn(capsys.readouterr().err)
    shown = [m[0] for line in lines if (m := re.search(r"(?<=/3 )(building programs? \d( of \d)?|took)", line))]
    order = [text for text, _ in groupby(shown)]
    assert order == ["building programs 1 of 2", "building programs 2 of 2", "building program 3", "took"]
    assert max(map(len, lines)) <= 80


def test_after_building_the_bar_returns_to_rounds() -> None:
    with Progress("local", 4, "serial on cpu", shown=False) as bar:
        bar.begin([])
        bar.building(1, 5)
        assert bar.time == "building programs 1 of 5"
        bar.update(row(1))
        assert bar.time == "ETA -:--:--"
        bar.update(row(2))
        assert bar.time == "ETA 0:00:00"
        bar.building(6, None)
        assert bar.time == "building program 6"
        bar.update(row(3))
        assert bar.time == "ETA 0:00:00"  # the pace of before


class Interrupter(Serial):
    """Ctrl-C comes while it builds a program in the second round."""

    calls = 0

    def scan(self, *given: Any, **keys: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            assert self.on_build is not None
            self.on_build(1, 2)
            signal.raise_signal(signal.SIGINT)
        return super().scan(*given, **keys)


def test_ctrl_c_while_programs_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may have it ignored
    with monkeypatch.context() as patch:
        patch.setattr("coterie.training.prepare.select_engine", lambda *_: Choice(Interrupter(), "it is interrupted"))
        terminal(patch)
        assert coterie(patch, "run", "local", *SMALL, "--evaluate-every", "3", "--out", "a") == 130
    signal.signal(signal.SIGINT, before)
    lines = drawn(capsys.readouterr().err)
    assert any("1/3 building programs 1 of 2" in line for line in lines)
    assert lines[-2:] == ["interrupted; finished rounds are saved. Continue with:", "  coterie run a --resume"]
    assert len(Path("a/metrics.jsonl").read_text().splitlines()) == 1
    assert coterie(monkeypatch, "run", "a", "--resume", "--quiet") == 0


def test_quiet_leaves_the_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "run", "fedavg", *SMALL, "--out", "a", "--quiet") == 0
    out, err = capsys.readouterr()
    assert "results: a" in out
    assert err == ""
    assert coterie(monkeypatch, "compare", "local", "dfedsam", *SMALL, "--out", "c", "-q") == 0
    out, err = capsys.readouterr()
    assert "results: c" in out
    assert err == ""
    assert coterie(monkeypatch, "run", "quux", "-q") == 2
    assert capsys.readouterr().err.startswith("coterie: unknown method")


def test_several_runs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coterie(monkeypatch, "compare", "local", "fedavg", *SMALL, "--seeds", "2", "--out", "c") == 0
    told = re.findall(r"^(.*): round 3/3", capsys.readouterr().err, re.MULTILINE)
    assert told == [
        f"{m}, seed {s} ({n} of 4)" for n, (m, s) in enumerate(((m, s) for m in ("local", "fedavg") for s in (0, 1)), 1)
    ]
