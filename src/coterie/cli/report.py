"""``coterie report``, and the page that ``compare`` and ``recipe run`` leave behind."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..core.errors import UserError
from ..report import write
from ..report.library import compressed_library
from .options import Output

PAGE = "report.html"


def show_report(runs: Sequence[Path], out: Path | None, landscape: bool, target: float | None) -> None:
    """Write the page into the folder it is about, or into this one where there are several, and say where it is."""
    alone = runs[0].parent if runs[0].is_file() else runs[0]
    path = out or (alone / PAGE if len(runs) == 1 else Path(PAGE))
    print(f"report: {write(list(runs), path, Output().say, landscape, target)}")


def leave_report(folder: Path, where: TextIO, output: Output, data_dir: Path | None) -> None:
    """Write the page at the end of several runs and print its path to ``where``; without plotly say so instead."""
    try:
        compressed_library()
    except UserError as error:
        output.say(f"no report: {error}, then coterie report {shlex.quote(str(folder))}")
        return
    print(f"report: {write([folder], folder / PAGE, output.say, data_dir=data_dir)}", file=where)
