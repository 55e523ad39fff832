"""``coterie report``, and the page that ``compare`` and ``recipe run`` leave behind."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ...core.errors import UserError, unknown
from ...measure.compare import Comparison, check_target
from ...report import write
from ...report.collect import collect
from ...report.groups import setups
from ...report.library import compressed_library
from ...report.texts import WRITERS, comparison_table, data_table
from ..common.options import Output
from ..common.results import TABLE, print_data_table, print_table

PAGE, HTML = "report.html", "html"


def show_report(
    runs: Sequence[Path],
    out: Path | None,
    landscape: bool,
    target: float | None,
    format: str = HTML,
    columns: str | None = None,
) -> None:
    """Write the page into the folder it is about, or into this one where there are several, and say where it is.

    Any other format is printed; ``columns``: the titles of its columns, with commas.
    """
    if format != HTML:
        if format not in (TABLE, *WRITERS):
            raise unknown("format", format, (HTML, TABLE, *WRITERS))
        if out is not None or landscape:
            raise UserError(
                f"--{'landscape' if landscape else 'out'} is for the page: a {format} is printed, > FILE keeps it"
            )
        _print_results(runs, target, format, [] if columns is None else columns.split(","))
        return
    if columns is not None:
        raise UserError("the page has all columns: choose --format table, markdown or latex to choose among them")
    alone = runs[0].parent if runs[0].is_file() else runs[0]
    path = out or (alone / PAGE if len(runs) == 1 else Path(PAGE))
    print(f"report: {write(list(runs), path, Output().say, landscape, target)}")


def _print_results(runs: Sequence[Path], target: float | None, format: str, columns: Sequence[str]) -> None:
    """Print the table of some runs; of several set-ups one number of all methods."""
    collected = collect(list(runs))
    goal = collected.target if target is None else target
    compared = [Comparison(s.methods, goal, collected.notes) for s in setups(collected.records)]
    for comparison in compared:
        check_target(target, comparison.methods[0].metric)
    if len(compared) == 1 and format == TABLE:
        print_table(compared[0], columns)
    elif format == TABLE:
        print_data_table(data_table(compared, columns))
    else:
        print(
            WRITERS[format](
                data_table(compared, columns) if len(compared) > 1 else comparison_table(compared[0], columns, format)
            )
        )
    if collected.left_out:
        raise UserError(f"the table is without a run: {collected.left_out[0]}")


def leave_report(folder: Path, where: TextIO, output: Output, data_dir: Path | None) -> None:
    """Write the page at the end of several runs and print its path to ``where``; without plotly say so instead."""
    try:
        compressed_library()
    except UserError as error:
        output.say(f"no report: {error}, then coterie report {shlex.quote(str(folder))}")
        return
    print(f"report: {write([folder], folder / PAGE, output.say, data_dir=data_dir)}", file=where)
