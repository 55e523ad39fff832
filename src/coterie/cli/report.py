"""``coterie report``, and the page that ``compare`` and ``recipe run`` leave behind."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..core.errors import UserError
from ..core.files import write_json, write_text
from ..measure.compare import TARGET
from ..report import write
from ..report.collect import COMMAND, PLAN
from ..report.library import compressed_library
from .options import Output

PAGE = "report.html"
NOT_REPEATED = ("--out", "--format", "--for")  # the folder exists by then; the others change no result
NOT_REPEATED_FLAGS = ("--resume", "--quiet", "-q")


def show_report(runs: Sequence[Path], out: Path | None, landscape: bool, target: float | None) -> None:
    """Write the page into the folder it is about, or into this one where there are several, and say where it is."""
    alone = runs[0].parent if runs[0].is_file() else runs[0]
    path = out or (alone / PAGE if len(runs) == 1 else Path(PAGE))
    print(f"report: {write(list(runs), path, Output().say, landscape, target)}")


def begin_several(folder: Path, runs: Sequence[str], target: float = TARGET) -> None:
    """Write, before the first of several runs, the typed command, the folders there will be, and the target accuracy.

    Whoever watches or makes a page of the folder reads it.
    """
    command = shlex.join(["coterie", *repeating(sys.argv[1:])])
    write_text(folder / COMMAND, command + "\n")
    write_json(folder / PLAN, {"runs": list(runs), "target": target})


def leave_report(folder: Path, where: TextIO, output: Output, data_dir: Path | None) -> None:
    """Write the page at the end of several runs and print its path to ``where``; without plotly say so instead."""
    try:
        compressed_library()
    except UserError as error:
        output.say(f"no report: {error}, then coterie report {shlex.quote(str(folder))}")
        return
    print(f"report: {write([folder], folder / PAGE, output.say, data_dir=data_dir)}", file=where)


def repeating(typed: Sequence[str]) -> list[str]:
    """Return the words that do the same once more, in a folder of its own.

    >>> repeating(["compare", "local", "fedavg", "--out", "a", "--resume", "--seeds", "2"])
    ['compare', 'local', 'fedavg', '--seeds', '2']
    """
    words, given = [], iter(typed)
    for word in given:
        if word in NOT_REPEATED:
            next(given, None)
        elif word not in NOT_REPEATED_FLAGS and not word.startswith(tuple(f"{option}=" for option in NOT_REPEATED)):
            words.append(word)
    return words
