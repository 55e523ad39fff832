"""One writer of a folder at a time, and folders in which nothing has begun stand in nobody's way."""

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.core.errors import UserError
from coterie.models.model import cross_entropy
from coterie.store import lock
from coterie.store.lock import LOCK, sole_writer, writer_of
from helpers_cli import DATA, Cli, contents, rows

TINY = (*DATA, "--model", "logreg", "--clients", "2", "--set", "steps=1")
LONG = (*TINY, "--rounds", "100000", "--quiet")


def test_a_second_writer_is_told_of_the_first(tmp_path: Path) -> None:
    """In the same process too: two threads may train."""
    folder = tmp_path / "a"
    with sole_writer(folder, pytest.fail) as held:
        assert not held.killed
        names = rf"a is being written by process {os.getpid()} on [\w.-]+: wait until it has ended, or choose another"
        with pytest.raises(UserError, match=names), sole_writer(folder, pytest.fail):
            pytest.fail("both write")
        (folder / LOCK).write_text("\x1b[2J")  # a file that anybody may have written
        with pytest.raises(UserError, match="written by another process"), sole_writer(folder, pytest.fail):
            pytest.fail("both write")
    assert not folder.exists()  # nothing was begun in it


@pytest.mark.skipif(sys.platform == "win32", reason="it has no shared locks")
def test_who_looks_stands_in_nobodys_way(tmp_path: Path) -> None:
    import fcntl

    looker = os.open(tmp_path / LOCK, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_SH)
    assert writer_of(tmp_path) is None  # not the other one who looks
    threading.Timer(0.05, os.close, [looker]).start()
    with sole_writer(tmp_path, pytest.fail):
        assert writer_of(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"


def test_the_lock_of_a_process_that_was_killed_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 on elsewhere")
    with sole_writer(tmp_path, pytest.fail) as held:
        assert held.killed
    assert contents(tmp_path) == {}


def test_a_file_that_was_removed_meanwhile_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened it before its owner removed it must not hold a lock that the next one does not see."""
    before, tries = lock._lock, []

    def removed_first(handle: int) -> None:
        before(handle)
        tries.append(handle)
        if len(tries) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(lock, "_lock", removed_first)
    with sole_writer(tmp_path, pytest.fail):
        assert len(tries) == 2
        with pytest.raises(UserError, match="being written"), sole_writer(tmp_path, pytest.fail):
            pytest.fail("both write")


def test_a_file_system_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", refuse)
    said: list[str] = []
    with sole_writer(tmp_path, said.append):
        pass
    assert said == [f"the file system of {tmp_path} has no locks (No locks available): start no second command there"]


@pytest.mark.skipif(sys.platform == "win32", reason="there, a lock needs a file that is open for writing")
def test_who_looks_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is lent for reading can be looked at; the rights of root would hide it."""
    (tmp_path / LOCK).touch()
    opened: list[int] = []
    unchanged = os.open
    monkeypatch.setattr(lock.os, "open", lambda path, flags: opened.append(flags) or unchanged(path, flags))
    assert writer_of(tmp_path) is None
    assert opened == [os.O_RDONLY]


def test_a_link_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="cannot write"), sole_writer(tmp_path, pytest.fail):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


def test_two_commands_one_folder(cli: Cli, tmp_path: Path) -> None:
    """Neither begins nor goes on with what another one is writing; a kill gives it free."""
    started = cli.start("run", "fedavg", *LONG, "--out", "a", cwd=tmp_path)
    until(lambda: (tmp_path / "a" / "metrics.jsonl").exists())
    names = (f"a is being written by process {started.pid} on", "another --out")
    cli.refuse("run", "a", "--resume", cwd=tmp_path, names=names)
    cli.refuse("run", "fedavg", *LONG, "--out", "a", cwd=tmp_path, names=names)
    started.send(signal.SIGKILL)
    started.wait()
    goes_on = cli.start("run", "a", "--resume", "--quiet", cwd=tmp_path)
    before = len(rows(tmp_path / "a"))
    until(lambda: len(rows(tmp_path / "a")) > before + 1)
    goes_on.send(signal.SIGTERM)
    assert goes_on.wait().status == 130
    assert [row["round"] for row in rows(tmp_path / "a")] == list(range(1, len(rows(tmp_path / "a")) + 1))


def test_two_comparisons_one_folder(cli: Cli, tmp_path: Path) -> None:
    typed = ("compare", "local", "fedavg", *LONG, "--out", "c")
    started = cli.start(*typed, cwd=tmp_path)
    until(lambda: (tmp_path / "c" / "local-seed0" / "metrics.jsonl").exists())
    names = (f"c is being written by process {started.pid} on", "another --out")
    cli.refuse(*typed, "--resume", cwd=tmp_path, names=names)
    started.send(signal.SIGKILL)
    started.wait()
    cli.refuse(*typed, cwd=tmp_path, names=("c already exists", "--resume"))  # it has finished rounds


# Nothing has begun

FAILS = {
    "a device": (("run", "fedavg"), ("--device", "cuda"), []),
    "what is recorded": (("run", "fedavg"), ("--record", "perplexity"), ["a", "a/.lock", "a/config.json"]),
    "a comparison": (("compare", "local", "fedavg"), ("--device", "cuda"), []),
    "a comparison's record": (("compare", "local", "fedavg"), ("--record", "perplexity"), ["a", "a/.lock"]),
}


@pytest.mark.parametrize("wrong", FAILS)
def test_a_command_that_failed_stands_in_nobodys_way(cli: Cli, tmp_path: Path, wrong: str) -> None:
    command, option, left = FAILS[wrong]
    typed = (*command, *TINY, "--rounds", "1", "--quiet", "--out", "a")
    failed = cli.run(*typed, *option, "--seed", "3", cwd=tmp_path)
    assert failed.status == 2, failed
    assert list(contents(tmp_path))[: len(left)] == left
    assert bool(contents(tmp_path)) == bool(left)
    cli.succeed(*typed, cwd=tmp_path)
    assert not [name for name in contents(tmp_path) if Path(name).name == LOCK or "seed3" in name]


def test_a_crash_in_the_first_round_can_be_repeated_or_replaced(tmp_path: Path) -> None:
    """And the error of one's own code passes through as it is."""
    federation = ct.data.federate("synthetic:size=80,classes=3", clients=2, partition="iid", seed=0)
    model, method = ct.models.build("logreg", federation), ct.algorithms.fedavg(steps=1)

    def train(loss: Any, resume: bool = False) -> None:
        setup = {"rounds": 1, "out": tmp_path / "a", "progress": False, "engine": "serial"}
        ct.fit(model, federation, method, loss=loss, resume=resume, **setup)

    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if (tmp_path / "a" / "config.json").exists():
            raise ZeroDivisionError("mine")
        return cross_entropy(outputs, targets)

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(broken)
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(broken, resume=True)
    train(None)
    assert LOCK not in contents(tmp_path / "a")
    with pytest.raises(UserError, match="already exists"):
        train(None)


def test_recipes_too(cli: Cli, tmp_path: Path) -> None:
    typed = ("recipe", "run", "dfedalt-f1", "--case", "1", "--methods", "fedavg", "--seeds", "1", "--quiet")
    small = ("--data", "synthetic:size=80,classes=3", "--model", "logreg", "--clients", "2", "--rounds", "1")
    cli.refuse(*typed, *small, "--record", "perplexity", "--out", "a", cwd=tmp_path, names=("perplexity",))
    cli.succeed(*typed, *small, "--out", "a", cwd=tmp_path)
    assert not [name for name in contents(tmp_path) if Path(name).name == LOCK]


KILLED = {
    "run": ("run", "fedavg"),
    "compare": ("compare", "fedavg", "local"),
}


@pytest.mark.parametrize("command", KILLED)
def test_a_kill_before_the_first_round_stands_in_nobodys_way(cli: Cli, tmp_path: Path, command: str) -> None:
    """Only where a lock tells that it was one of ours: a folder that somebody has made stays as it is."""
    typed = (*KILLED[command], *TINY, "--rounds", "1", "--quiet", "--out", "a")
    killed = cli.run(*typed, "--seed", "3", cwd=tmp_path, at="write a*/metrics.jsonl")
    assert killed.status == -signal.SIGKILL
    before = contents(tmp_path)
    locks = [tmp_path / name for name in before if Path(name).name == LOCK]
    assert len(locks) == (1 if command == "run" else 2)
    for path in locks:
        path.unlink()
    cli.refuse(*typed, cwd=tmp_path, names=("a already exists",))
    for path in locks:
        path.touch()
    cli.succeed(*typed, cwd=tmp_path)
    assert not [name for name in contents(tmp_path) if Path(name).name == LOCK or "seed3" in name]


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal is closed otherwise there")
def test_a_crash_in_a_later_round_is_gone_on_with(cli: Cli, tmp_path: Path) -> None:
    """What has finished rounds is kept, whatever happens next."""
    stopped = cli.run(
        "run",
        "fedavg",
        *TINY,
        "--rounds",
        "3",
        "--out",
        "a",
        cwd=tmp_path,
        at="write a/checkpoint/.round-000002*",
        send=signal.SIGTERM,
    )
    assert stopped.status == 130
    assert rows(tmp_path / "a")
    cli.refuse(
        "run", "fedavg", *TINY, "--rounds", "3", "--out", "a", cwd=tmp_path, names=("a already exists", "--resume")
    )
