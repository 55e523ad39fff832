"""The table of a comparison for a terminal, with as many columns as have room."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..measure.compare import Cell, Column, Comparison

BEST = "*"  # beside bold type, which does not survive a pipe
FEWEST = 2  # columns of numbers that stay, however little room there is


def results_table(comparison: Comparison, shown: Sequence[Column]) -> Table:
    """One row per method; the best of every column in bold and with a mark."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("method", no_wrap=True, vertical="bottom")
    for column in shown:
        table.add_column(column.title.replace(" ", "\n", 1), justify="right", no_wrap=True, vertical="bottom")
    marked = [any(cell.best for cell in column.cells) for column in shown]
    for i, method in enumerate(comparison.methods):
        cells = [_cell(column.cells[i], mark) for column, mark in zip(shown, marked, strict=True)]
        table.add_row(Text(method.label, "bold"), *cells)
    return table


def _cell(cell: Cell, marked: bool) -> Text:
    """A number and its spread; where a column has a mark, the others leave room for it."""
    text = cell.text if cell.spread is None else f"{cell.text} ±{cell.spread}"
    return Text(text + (BEST if cell.best else " " if marked else ""), "bold green" if cell.best else "")


def fitting(comparison: Comparison, width: int) -> list[Column]:
    """The columns that have room, without those that matter least; no cell is ever cut."""
    shown = list(comparison.columns)
    while len(shown) > FEWEST and needed(results_table(comparison, shown)) > width:
        shown.remove(min(shown, key=lambda c: c.keep))
    return shown


def needed(table: Table) -> int:
    """How many characters a table is wide if nothing is cut."""
    console = Console(width=10_000)
    return console.measure(table).maximum
