"""The results of runs: a table for a terminal, or a text in another format alone on the standard output."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...core.errors import unknown
from ...measure.compare import POINTS, Cell, Column, Comparison
from ...report.texts import WRITERS, ResultTable, comparison_table, find_column, in_two_lines
from .console import plain_console, table, wide_console

TABLE = "table"
BEST = "*"  # beside bold type, which does not survive a pipe
LEGEND = f"{POINTS['after_mix']}: right after the exchange; {POINTS['after_train']}: before it"
SURELY = "helps, harms: by the client's own test samples ({})"
INTERVAL, EXACT = "95 % interval, not corrected for the number of clients", "exact test, corrected for all comparisons"
FEWEST = 2  # columns of numbers that stay, however little room there is


@dataclass(frozen=True)
class TableStyle:
    """How results are shown."""

    format: str = TABLE
    target: float | None = None

    def __post_init__(self) -> None:
        if self.format not in (TABLE, *WRITERS):
            raise unknown("format", self.format, (TABLE, *WRITERS))


def show_comparison(comparison: Comparison, folder: Path, format: str = TABLE) -> None:
    """Print the results in the chosen format, and where the files are."""
    if format == TABLE:
        print_table(comparison)
        wide_console().print(f"results: {folder}", soft_wrap=True)
        return
    print(WRITERS[format](comparison_table(comparison, format=format)))
    print(f"results: {folder}", file=sys.stderr)


def print_table(comparison: Comparison, wanted: Sequence[str] = ()) -> None:
    """Print the wanted columns, or as many as have room, the verdict, and what the numbers are."""
    console = wide_console()
    chosen = [find_column(comparison, name) for name in wanted]
    shown = chosen or columns_with_room(comparison, console.width)
    made = results_table(comparison, shown)
    for sentence in (*comparison.answer, *comparison.unequal):
        console.print(sentence, soft_wrap=True)
    console.print(made, width=width_of(made), crop=False)
    for sentence in comparison.details:
        console.print(sentence, soft_wrap=True)
    how = {SURELY.format(EXACT if one.exact else INTERVAL) for one in comparison.gains}
    words = [LEGEND, *how, "more: coterie list columns"]
    notes = [*comparison.legend(BEST), "; ".join(words)]
    left_out = [] if chosen else [c.title for c in comparison.columns if c not in shown]
    if left_out:
        notes.append(f"no room in {console.width} characters for: {', '.join(left_out)} (a wider terminal shows them)")
    for note in notes:
        console.print(note, style="dim", soft_wrap=True)


def print_data_table(found: ResultTable) -> None:
    """Print one number of all methods, one column per data set."""
    console = wide_console()
    made = table("method", *(f">{heading}" for heading in found.headings), no_wrap=True)
    for label, cells in found.rows:
        made.add_row(Text(label, "bold"), *(_cell(cell, marked=True) for cell in cells))
    for sentence in found.answer:
        console.print(sentence, soft_wrap=True)
    console.print(made, width=width_of(made), crop=False)
    for note in (found.caption.replace("Bold:", f"{BEST}:"), *found.sentences):
        console.print(note, style="dim", soft_wrap=True)


def results_table(comparison: Comparison, shown: Sequence[Column]) -> Table:
    """Return one row per method; the best of every column is bold and has a mark."""
    made = table("method", *(f">{in_two_lines(column.title)}" for column in shown), no_wrap=True)
    for column in made.columns:
        column.vertical = "bottom"
    marked = [any(cell.best for cell in column.cells) for column in shown]
    for i, method in enumerate(comparison.methods):
        cells = [_cell(column.cells[i], mark) for column, mark in zip(shown, marked, strict=True)]
        made.add_row(Text(method.label, "bold"), *cells)
    return made


def _cell(cell: Cell, marked: bool) -> Text:
    """Return a number and its spread; where a column has a mark, the others leave room for it."""
    text = cell.text if cell.spread is None else f"{cell.text} ±{cell.spread.text}"
    return Text(text + (BEST if cell.best else " " if marked else ""), "bold green" if cell.best else "")


def columns_with_room(comparison: Comparison, width: int) -> list[Column]:
    """Return the columns without those that matter least, so that no cell is ever cut."""
    shown = list(comparison.columns)
    while len(shown) > FEWEST and width_of(results_table(comparison, shown)) > width:
        shown.remove(min(shown, key=lambda c: c.keep))
    return shown


def width_of(made: Table) -> int:
    """Return how many characters a table is wide if nothing is cut."""
    return plain_console(width=10_000).measure(made).maximum
