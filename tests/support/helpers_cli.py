"""The command line in processes of its own, cheap enough for hundreds of them.

What runs in a fork (tests/support/forks.py) is the real entry point with a real exit status, and real signals, limits
and disks can meet it.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from safetensors.torch import load_file

from coterie.core.errors import UserError
from coterie.core.files import digest, write_json
from coterie.core.tensors import Tensors
from forks import ForkServer, serve

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no such name, and runs none of these commands

# Small enough that a whole run takes a fraction of a second, large enough that every part of a model moves.
DATA = ("--data", "synthetic:size=400,classes=4")
SMALL = (*DATA, "--clients", "5", "--rounds", "3")


class Finished(NamedTuple):
    """A command that has ended."""

    status: int  # negative: killed by that signal
    out: str
    err: str
    events: list[str]  # what it changed in its folder, in order: "write a/metrics.jsonl", "rename a/summary.json", ...

    @property
    def sentences(self) -> list[str]:
        """The lines that tell the person what to change."""
        return [line for line in self.err.splitlines() if line.startswith("coterie: ")]

    @property
    def continuation(self) -> str:
        """The command an interrupted one prints."""
        lines = self.err.splitlines()
        after = [lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if line.endswith("Continue with:")]
        assert len(after) == 1, self.err
        return after[0]


@dataclass(frozen=True)
class Started:
    """A command under way."""

    cli: "Cli"
    pid: int
    log: Path

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def wait(self) -> Finished:
        """Its end."""
        status = self.cli.ask({"wait": self.pid})
        out, err, events = (self.log.with_suffix(s) for s in (".out", ".err", ".events"))
        changes = events.read_text().splitlines() if events.exists() else []
        return Finished(status, out.read_text(), err.read_text(), changes)


class Cli(ForkServer):
    """``coterie ARGUMENTS`` in forked processes; use it in a ``with`` statement."""

    def __init__(self) -> None:
        super().__init__(__file__)
        self.started = 0

    def start(
        self,
        *arguments: str,
        cwd: Path,
        at: int | str | None = None,
        send: signal.Signals = KILL,
        limit: int | None = None,
        torn: bool = False,
        in_step: bool = True,
    ) -> Started:
        """Starts a command in the folder ``cwd``.

        at: the number of a change, or a pattern of it, right before which the process gets the signal ``send``;
        limit: the largest file it may write, in bytes; torn: the write over the limit kills it half-way;
        in_step: every round's checkpoint is written before the next round begins, so that the changes are the same
        in every run, else it is written beside the training, or not at all, as time allows.
        """
        self.started += 1
        log = Path(self.logs.name) / str(self.started)
        request = {"arguments": arguments, "cwd": str(cwd), "log": str(log)}
        circumstances = {"at": at, "send": send, "limit": limit, "torn": torn, "in_step": in_step}
        return Started(self, self.ask({**request, **circumstances}), log)

    def run(self, *arguments: str, cwd: Path, **circumstances: Any) -> Finished:
        """Starts a command and waits for its end."""
        return self.start(*arguments, cwd=cwd, **circumstances).wait()

    def succeed(self, *arguments: str, cwd: Path) -> Finished:
        """Runs a command that must end well."""
        done = self.run(*arguments, cwd=cwd)
        assert done.status == 0, done.err
        assert "Traceback" not in done.err
        assert "Warning" not in done.err
        return done

    def refuse(self, *arguments: str, cwd: Path, names: tuple[str, ...], **circumstances: Any) -> Finished:
        """Runs a command that must end with status 2 and one sentence, the last line, with all of ``names`` in it."""
        done = self.run(*arguments, cwd=cwd, **circumstances)
        assert "Traceback" not in done.err, done.err
        assert done.status == 2, done
        assert len(done.sentences) == 1, done.err
        assert done.err.splitlines()[-1] == done.sentences[0]  # so it is one line, too
        assert [name for name in names if name not in done.sentences[0]] == [], done.sentences[0]
        return done


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, hidden and temporary files included; None for folders."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without the seconds, the only thing that may differ between two equal runs."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.endswith("seconds")} for line in lines]


def summary(folder: Path) -> dict[str, Any]:
    """The summary of a run without the seconds."""
    return {k: v for k, v in json.loads((folder / "summary.json").read_text()).items() if not k.endswith("seconds")}


def assert_same_run(one: Path, other: Path) -> None:
    """Two run folders hold the same run, to the last bit, and the same files."""
    left, right = contents(one), contents(other)
    assert sorted(left) == sorted(right), f"not the same files: {sorted(left.keys() ^ right.keys())}"
    assert any(name.startswith("clients/") for name in left), "there are no clients"
    assert rows(one) == rows(other), "metrics.jsonl differs"
    assert summary(one) == summary(other), "summary.json differs"
    timed = ("metrics.jsonl", "summary.json", "digests.json")
    assert _digests(one, timed) == _digests(other, timed), "digests.json differs"
    different = [name for name in left if left[name] != right[name] and name not in timed]
    assert different == [], f"these differ: {different}"


def _digests(folder: Path, without: tuple[str, ...]) -> dict[str, str]:
    """The digests of a run but those of some files."""
    found = json.loads((folder / "digests.json").read_text())["sha256"]
    return {name: sha for name, sha in found.items() if name not in without}


def reseal(folder: Path) -> None:
    """Makes the files that a test has changed count as those that the run wrote."""
    named = json.loads((folder / "digests.json").read_text())["sha256"]
    write_json(folder / "digests.json", {"sha256": {name: digest(folder / name) for name in named}})


def saved_rounds(folder: Path) -> list[int]:
    """The rounds whose checkpoint counts and can be read."""
    markers = sorted((folder / "checkpoint").glob("round-*.json"))
    assert all(load_file(path.with_suffix(".safetensors")) for path in markers)
    return [json.loads(path.read_text())["round"] for path in markers]


@contextmanager
def tmpfs(at: Path, options: str) -> Iterator[None]:
    """A small disk of its own, where the system lets us mount one."""
    if shutil.which("mount") is None:
        pytest.skip("no disk can be mounted here: there is no command mount")
    at.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "coterie-test", at], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


# What follows runs in the process that forks.


def _serve() -> None:
    """Imports what commands need, and answers requests."""
    # torch._dynamo is what vmap imports; the last two are what every table that is printed does.
    for module in (
        "coterie.cli.training.run",
        "coterie.report.library",
        "torch._dynamo",
        "numpy.ma",
        "rich._emoji_codes",
    ):
        import_module(module)
    with suppress(UserError):  # which says that there is no plotly
        import_module("coterie.report.library").compressed_library()
    commands: Any = typer.main.get_command(import_module("coterie.cli.app").app)
    commands.commands["run"].make_context("run", ["local"]).close()  # Typer imports half of itself to read arguments
    serve(_command)


def _command(
    arguments: list[str],
    cwd: str,
    log: str,
    at: int | str | None,
    send: int,
    limit: int | None,
    torn: bool,
    in_step: bool,
) -> None:
    """The entry point, under the given circumstances."""
    os.chdir(cwd)
    _watch(cwd, f"{log}.events", at, send)
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if torn else signal.SIG_IGN)
    if in_step:
        _write_in_step()
    from coterie.cli import main

    sys.argv = ["coterie", *arguments]
    main()


def _write_in_step() -> None:
    """Every round is due at once, and waited for."""
    from coterie.store import folder

    keep = folder.Writer.keep

    def keep_and_wait(self: folder.Writer, row: dict[str, Any], tensors: Tensors) -> None:
        keep(self, row, tensors)
        self.wait()

    folder.SHARE = math.inf
    folder.Writer.keep = keep_and_wait


def _watch(cwd: str, log: str, at: int | str | None, send: int) -> None:
    """Writes down every change below ``cwd`` before it is made, and sends the signal before the one asked for."""
    changes: list[str] = []
    record = os.open(log, os.O_WRONLY | os.O_CREAT)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        change = _change(event, values)
        if change is None or not change[1].startswith(cwd + os.sep):
            return
        text = f"{change[0]} {os.path.relpath(change[1], cwd)}"
        here = at == len(changes) if isinstance(at, int) else at is not None and fnmatchcase(text, at)
        changes.append(text)
        os.write(record, f"{text}\n".encode())
        if here:
            os.kill(os.getpid(), send)

    sys.addaudithook(hook)


def _change(event: str, values: tuple[Any, ...]) -> tuple[str, str] | None:
    """What an audit event is about to change, if anything; of a renaming, the new name."""
    if event == "open" and isinstance(values[0], str | Path) and values[2] & (os.O_WRONLY | os.O_RDWR):
        return "write", str(Path(values[0]).absolute())
    if event == "os.rename":
        return "rename", str(Path(values[1]).absolute())
    if event in ("os.mkdir", "os.remove"):
        return event.removeprefix("os."), str(Path(values[0]).absolute())
    return None


if __name__ == "__main__":
    _serve()
