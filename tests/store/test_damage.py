"""Every field of every file of a folder, damaged in every way, read by every command: a page, or one sentence.

``make test`` takes a small part of all damages, always the same. The exhaustive form tries them all, for over an hour.
"""

import contextlib
import io
import itertools
import json
import math
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import coterie as ct
from coterie.cli.app import app
from coterie.core.errors import UserError
from coterie.core.files import digest
from helpers_cli import Cli

pytestmark = pytest.mark.hostile

TRIED = 40  # damages per folder in the small sample
TINY = ("--data", "synthetic:size=60,classes=3", "--model", "logreg", "--clients", "3", "--rounds", "2", "--quiet")
RUN = ("dfedalt", *TINY[:-2], "3", "--quiet", "--topology", "ring", "--set", "steps=1")
COMPARE = ("compare", "local", "dfedalt", *TINY, "--set", "steps=1")
RECIPE = ("recipe", "run", "dfedalt-f1", "--case", "1", "--methods", "fedavg", "--seeds", "1", *TINY)
DEEP = "[" * 100_000 + "]" * 100_000
HASH = "its hash is another than the sha256 of digests.json"
DELETED, DEEPER = object(), object()
VALUES = (DELETED, DEEPER, None, True, 3, -1, 0.5, 10**400, math.nan, math.inf, "", "x", "x" * 100_000, [], {}, [[]])
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "run": (
        ("report", "a", "--out", "page.html"),
        ("watch", "a", "--once", "--out", "page.html"),
        ("export", "a", "--client", "1", "--out", "model.safetensors"),
        ("pack", "a", "--out", "a.tar"),
        ("run", "a", "--resume", "--quiet"),
        ("run", "a/config.json", "--out", "again", "--quiet"),
        ("load", "a"),  # in Python
    ),
    "half": (("report", "a", "--out", "page.html"), ("watch", "a", "--once"), ("run", "a", "--resume", "--quiet")),
    "comparison": (
        ("report", "a", "--out", "page.html"),
        ("watch", "a", "--once", "--out", "page.html"),
        (*COMPARE, "--out", "a", "--resume"),
    ),
    "recipe": (
        ("report", "a", "--out", "page.html"),
        ("watch", "a", "--once", "--out", "page.html"),
        (*RECIPE, "--out", "a", "--resume"),
    ),
}


class Damage(NamedTuple):
    """One field of one file, and what becomes of it."""

    file: str
    line: int | None
    at: tuple[str | int, ...]
    value: Any
    inside: tuple[str, ...] = ()  # the fields that it has itself

    def do(self, folder: Path) -> None:
        """Damages the file."""
        path = folder / self.file
        lines = path.read_text().splitlines() if self.line is not None else [path.read_text()]
        content = json.loads(lines[self.line or 0])
        text = _changed(content, self.at, self.value)
        lines[self.line or 0] = text
        path.write_text("\n".join(lines) + "\n")

    @property
    def changes(self) -> bool:
        """Whether the file of a finished run in the folder a is another one than the run wrote."""
        path = Path("a", self.file)
        record = path.parent / "digests.json"
        known = json.loads(record.read_text())["sha256"] if record != path and record.exists() else {}
        return known.get(path.name, "") not in ("", digest(path))

    @property
    def names(self) -> tuple[str, ...]:
        """The texts one of which its sentence has: the field, one that it is in or that is in it; of a file none.

        A value that a run could have written is told by the hash of the file.
        """
        return (HASH, *(key for key in self.at if isinstance(key, str)), *self.inside) if self.at else ()


def _changed(content: Any, at: tuple[str | int, ...], value: Any) -> str:
    """JSON with another value in one place."""
    mark = "MARK OF A DAMAGE"
    holder = content
    for key in at[:-1]:
        holder = holder[key]
    if not at:
        content = mark
    elif value is DELETED:
        del holder[at[-1]]
    else:
        holder[at[-1]] = mark
    written = DEEP if value is DEEPER else "{}" if value is DELETED else json.dumps(value)
    return json.dumps(content).replace(json.dumps(mark), written)


def _fields(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...]]]:
    """Every place in a JSON value, the whole included, and the fields in it."""
    yield at, tuple(value) if isinstance(value, dict) else ()
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from _fields(each, (*at, key))


def damages(folder: Path) -> list[Damage]:
    """All of them."""
    found = []
    for path in sorted(folder.rglob("*.json*")):
        name = str(path.relative_to(folder))
        lines = enumerate(path.read_text().splitlines()) if path.suffix == ".jsonl" else [(None, path.read_text())]
        for line, text in lines:
            for (at, inside), value in itertools.product(_fields(json.loads(text)), VALUES):
                found.append(Damage(name, line, at, value, inside))
    return found


@pytest.fixture(scope="module")
def folders(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, one that was interrupted, a comparison and a recipe's runs."""
    home = tmp_path_factory.mktemp("folders")
    cli.succeed("run", *RUN, "--out", "run", cwd=home)
    cli.run("run", *RUN, "--out", "half", cwd=home, at="rename half/checkpoint/round-000002.json")
    cli.succeed(*COMPARE, "--out", "comparison", cwd=home)
    cli.succeed(*RECIPE, "--out", "recipe", cwd=home)
    return {name: home / name for name in COMMANDS}


def ended(arguments: tuple[str, ...]) -> tuple[int, str]:
    """The status of a command in this process, and its sentence."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            ct.load(arguments[1]) if arguments[0] == "load" else app(arguments, standalone_mode=False)
        except UserError as error:
            return 2, str(error)
        except SystemExit as error:
            return int(error.code or 0), said.getvalue()
    return 0, ""


def problem(damage: Damage, arguments: tuple[str, ...]) -> str:
    """What is wrong with the end of a command; nothing where it is as it should be."""
    try:
        status, sentence = ended(arguments)
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = "" if where is None else f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
        return f"{type(error).__name__}: {str(error)[:100]} {at}"
    if status == 0:
        return "it was not noticed" if arguments[0] in ("report", "load") and damage.changes else ""
    named = Path(damage.file).name in sentence and (not damage.names or any(n in sentence for n in damage.names))
    if status != 2 or not named or "\n" in sentence or len(sentence) > 800:
        return f"status {status}: {sentence[:300]}"
    return ""


@pytest.mark.parametrize("kind", COMMANDS)
def test_commands_survive_some_damages(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A part of all damages, always the same. The commands take turns."""
    monkeypatch.chdir(tmp_path)
    every, commands = damages(folders[kind]), itertools.cycle(COMMANDS[kind])
    some = random.Random(0).sample(every, min(TRIED, len(every)))
    check_survived(folders[kind], tmp_path, zip(some, commands, strict=False))


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_survives_every_damage(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    check_survived(folders[kind], tmp_path, itertools.product(damages(folders[kind]), COMMANDS[kind]))


def check_survived(folder: Path, home: Path, tries: Iterable[tuple[Damage, tuple[str, ...]]]) -> None:
    """Each command ends well on a copy of the folder with one damage."""
    wrong = []
    for damage, arguments in tries:
        fresh(folder, home)
        damage.do(home / "a")
        if found := problem(damage, arguments):
            wrong.append((*damage[:3], str(damage.value)[:20], arguments[0], found))
    assert wrong == []


def fresh(folder: Path, home: Path) -> None:
    """Makes a copy to damage, and nothing else."""
    for left in home.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    shutil.copytree(folder, home / "a")


@pytest.mark.parametrize("kind", COMMANDS)
def test_without_damage_every_command_ends_well(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Or the test above could not tell anything."""
    monkeypatch.chdir(tmp_path)
    for arguments in COMMANDS[kind]:
        fresh(folders[kind], tmp_path)
        assert ended(arguments) == (0, "")


RAW = {
    "command.txt": (b"\xb0\x00", "command.txt is damaged, because it is not text in UTF-8"),
    "plan.json": (b"", "plan.json is damaged, because it is not valid JSON"),
    "compare.json": (b"[{}]", "compare.json is damaged, because [0].method is missing"),
}


@pytest.mark.parametrize("name", RAW)
def test_a_file_about_all_runs(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content, names = RAW[name]
    for arguments in COMMANDS["comparison"][:2]:
        fresh(folders["comparison"], tmp_path)
        (tmp_path / "a" / name).write_bytes(content)
        status, sentence = ended(arguments)
        assert (status, names in sentence) == (2, True), sentence


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_run_that_is_whole_is_shown_beside_one_that_is_not(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fresh(folders["comparison"], tmp_path)
    Damage("local-seed0/metrics.jsonl", 1, ("train_loss",), math.inf).do(tmp_path / "a")
    damaged = "a/local-seed0/metrics.jsonl, line 2, is damaged, because train_loss is inf and should be a finite number"
    status, sentence = ended(next(each for each in COMMANDS["comparison"] if each[0] == command))
    assert (status, damaged in sentence) == (2, True), sentence
    page = (tmp_path / "page.html").read_text()
    assert damaged in page
    assert '<th scope="row">dfedalt</th>' in page
    assert '<th scope="row">local</th>' not in page
