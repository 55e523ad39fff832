"""Printing results: a table for people, or Markdown or LaTeX alone on the standard output, to be redirected."""

import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import unknown
from ..measure.compare import TARGET, Comparison, check_target
from .formats import latex, markdown
from .recipe_show import wide_console
from .tables import BEST, fitting, needed, results_table

WRITERS = {"markdown": markdown, "latex": latex}
TABLE = "table"


@dataclass(frozen=True)
class TableStyle:
    """How results are to be shown."""

    format: str = TABLE
    target: float = TARGET

    def __post_init__(self) -> None:
        if self.format not in (TABLE, *WRITERS):
            raise unknown("format", self.format, (TABLE, *WRITERS))
        check_target(self.target)


def show(comparison: Comparison, folder: Path, format: str = TABLE) -> None:
    """The results in the chosen format, and where the files lie."""
    if format == TABLE:
        _print_table(comparison)
        wide_console().print(f"results: {folder}", markup=False, soft_wrap=True)
        return
    print(WRITERS[format](comparison))
    print(f"results: {folder}", file=sys.stderr)


def _print_table(comparison: Comparison) -> None:
    """As many columns as have room, the verdict, and what the numbers are."""
    console = wide_console()
    shown = fitting(comparison, console.width)
    table = results_table(comparison, shown)
    console.print(table, width=needed(table), crop=False)
    for sentence in comparison.verdict:
        console.print(sentence, markup=False, soft_wrap=True)
    notes = comparison.protocol(shown, BEST)
    left_out = [c.title for c in comparison.columns if c not in shown]
    if left_out:
        notes.append(f"no room in {console.width} characters for: {', '.join(left_out)} (a wider terminal shows them)")
    for note in notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)
