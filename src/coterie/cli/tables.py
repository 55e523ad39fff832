"""The table of results for a terminal, and what its numbers are. No accuracy stands in it without its protocol."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .results import Column, Result

BEST = "*"  # beside bold type, which does not survive a pipe
FEWEST = 2  # columns of numbers that stay, however little room there is


def protocol(results: Sequence[Result], clients: int, rounds: int, shown: Sequence[Column], mark: str) -> list[str]:
    """What the numbers of the columns are; ``mark``: how the best is told from the others."""
    seeds = len(results[0].outcomes)
    spread = f"mean ± std over {seeds} seeds" if seeds > 1 else "one seed"
    over = f"the mean over {clients} clients" + ("" if seeds > 1 else " ± std over them")
    best = f" {mark} the best of a column." if len(results) > 1 else ""
    personal = (
        "after mixing, after training: personal accuracy, each client's own model on its own test samples, "
        f"after the exchange and after local work before it; {over}"
    )
    first = f"After round {rounds}, {spread}. Accuracies in %.{best}"
    return [first, personal, *(f"{c.title}: {c.means}" for c in shown if c.means)]


def results_table(results: Sequence[Result], shown: Sequence[Column]) -> Table:
    """One row a method; the best of every column in bold and with a mark."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("method", no_wrap=True, vertical="bottom")
    for column in shown:
        table.add_column("\n".join(column.heading), justify="right", no_wrap=True, vertical="bottom")
    winners = [c.winners(results) for c in shown]
    marked = [any(column) for column in winners]
    for i, result in enumerate(results):
        cells = [_cell(c, result, won[i], m) for c, won, m in zip(shown, winners, marked, strict=True)]
        table.add_row(Text(result.method, "bold"), *cells)
    return table


def _cell(column: Column, result: Result, won: bool, marked: bool) -> Text:
    """A number and its spread; where a column has a mark, the others leave room for it."""
    cell = column.cell(result)
    text = cell.text if cell.spread is None else f"{cell.text} ±{cell.spread}"
    return Text(text + (BEST if won else " " if marked else ""), "bold green" if won else "")


def fitting(results: Sequence[Result], every: Sequence[Column], width: int) -> list[Column]:
    """The columns that have room, without those that matter least; no cell is ever cut."""
    shown = list(every)
    while len(shown) > FEWEST and needed(results_table(results, shown)) > width:
        shown.remove(min(shown, key=lambda c: c.keep))
    return shown


def needed(table: Table) -> int:
    """How many characters a table is wide if nothing is cut."""
    console = Console(width=10_000)
    return console.measure(table).maximum
