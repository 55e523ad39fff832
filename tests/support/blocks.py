"""The code in the documents, as a person would run it: block after block, in one folder and one session."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from helpers_cli import Cli

ROOT = Path(__file__).parents[2]
SMALL = ("--clients", "6", "--rounds", "1")  # put behind what trains: the last one counts
SHORT = ("--set", "steps=1")
GROWING = ("--rounds", "6")  # progfed takes two rounds a stage
STAGED = {"flanc", "depthfl", "progfed"}  # which train residual networks by themselves
NARROW = ("--model", "resnet8-bn:width=4")
# Not run but parsed by the command line itself, each for a reason.
PARSED_ONLY = {
    "data fetch": "it needs a network; tests/data/test_fetch.py has a server of its own",
    "data dir": "it changes what the person has chosen; tests/data/test_sources.py calls it in a home of its own",
    "recipe run": "it needs the published data and days; tests/papers/test_recipes_cli.py runs one on small data",
    "export .onnx": "it takes ten seconds; tests/export/test_export.py does it",
    "peer --config": "it needs data, and others who answer; tests/net/test_peer_faults.py runs it",
    "run --tensorboard": "it needs a package of its own; tests/track/test_track.py does it",
}


FENCE = r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```"


class Block(NamedTuple):
    """A piece of code between two fences."""

    language: str
    file: str  # where a person saves it; empty: nowhere
    code: str


def pages() -> list[str]:
    """The documents with code in them."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(p.relative_to(ROOT)) for p in found if blocks(p.read_text(encoding="utf-8"))]


def blocks(text: str) -> list[Block]:
    """The blocks of a document that a person can run."""
    fenced = [Block(*parts) for parts in re.findall(FENCE, text, flags=re.DOTALL | re.MULTILINE)]
    return [block for block in fenced if block.language in ("python", "sh")]


def files() -> dict[str, str]:
    """The files that documents tell a person to write; who reads two of them writes both into one."""
    found: dict[str, str] = {}
    for page in pages():
        for block in blocks((ROOT / page).read_text(encoding="utf-8")):
            if block.file:
                found[block.file] = found.get(block.file, "") + block.code
    return found


def languages(text: str) -> set[str]:
    """What the fences of a document say is inside."""
    return set(re.findall(r"^```(\w*)[^\n]*\n.*?^```", text, flags=re.DOTALL | re.MULTILINE))


def run(text: str, cli: Cli, folder: Path) -> None:
    """All blocks of a document, in order; Python's share their names."""
    for name, code in files().items():
        (folder / name).write_text(code)
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks(text):
        if block.language == "python":
            exec(compile(block.code, "a document", "exec"), names)
        else:
            for words in lines(block.code):
                command(words, cli, folder)


def lines(code: str) -> Iterator[list[str]]:
    """The commands of a block; what they print may go into a file."""
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words[: words.index(">")] if ">" in words else words


def command(words: list[str], cli: Cli, folder: Path) -> None:
    """Runs one, small where it trains; or looks at it."""
    if words[0] == "coterie":
        coterie(words[1:], cli, folder)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"\[(\w+)\]", " ".join(words))
        known = (ROOT / "pyproject.toml").read_text()
        assert all(re.search(rf"^{extra} = \[", known, flags=re.MULTILINE) for extra in extras), words
    else:
        raise AssertionError(f"nobody knows how to try {' '.join(words)}")


def coterie(words: list[str], cli: Cli, folder: Path) -> None:
    """A command of ours."""
    if parsed_only(words):
        parse(words)
    elif words[0] in ("run", "compare", "tune") and not (folder / words[1]).exists():
        short = () if any(word.startswith("epochs=") for word in words) else SHORT
        few = ("--workers", "1") if "--workers" in words else ()  # each takes seconds to start
        few += ("--seeds", "2") if "--seeds" in words else ()  # as many as a spread needs
        staged = (*NARROW, *(GROWING if "progfed" in words else ())) if STAGED & set(words) else ()
        cli.succeed(*words, *SMALL, *short, *few, *staged, cwd=folder)
    else:
        cli.succeed(*words, cwd=folder)


def parsed_only(words: list[str]) -> bool:
    """Whether a command is on the list."""
    keys = [key.split() for key in PARSED_ONLY]
    return any(words[0] == key[0] and all(part in " ".join(words) for part in key) for key in keys)


def parse(words: list[str]) -> None:
    """Lets the command line read its arguments, without doing what they say."""
    from coterie.cli.app import app

    at, rest = typer.main.get_command(app), words
    while hasattr(at, "commands") and not rest[0].startswith("-"):  # a group may have options of its own
        at, rest = at.commands[rest[0]], rest[1:]
    at.make_context(words[0], list(rest)).close()
