"""The results of runs: a table for a terminal, or Markdown or LaTeX alone on the standard output, to be redirected."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..core.errors import unknown
from ..measure.compare import Cell, Column, Comparison
from .console import plain_console, table, wide_console

TABLE = "table"
BEST = "*"  # beside bold type, which does not survive a pipe
FEWEST = 2  # columns of numbers that stay, however little room there is
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    "*": "$*$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


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
        _print_table(comparison)
        wide_console().print(f"results: {folder}", soft_wrap=True)
        return
    print(WRITERS[format](comparison))
    print(f"results: {folder}", file=sys.stderr)


def _print_table(comparison: Comparison) -> None:
    """Print as many columns as have room, the verdict, and what the numbers are."""
    console = wide_console()
    shown = columns_with_room(comparison, console.width)
    made = results_table(comparison, shown)
    console.print(made, width=width_of(made), crop=False)
    for sentence in comparison.verdict:
        console.print(sentence, soft_wrap=True)
    notes = comparison.protocol(shown, BEST)
    left_out = [c.title for c in comparison.columns if c not in shown]
    if left_out:
        notes.append(f"no room in {console.width} characters for: {', '.join(left_out)} (a wider terminal shows them)")
    for note in notes:
        console.print(note, style="dim", soft_wrap=True)


def results_table(comparison: Comparison, shown: Sequence[Column]) -> Table:
    """Return one row per method; the best of every column is bold and has a mark."""
    made = table("method", *(f">{column.title.replace(' ', chr(10), 1)}" for column in shown), no_wrap=True)
    for column in made.columns:
        column.vertical = "bottom"
    marked = [any(cell.best for cell in column.cells) for column in shown]
    for i, method in enumerate(comparison.methods):
        cells = [_cell(column.cells[i], mark) for column, mark in zip(shown, marked, strict=True)]
        made.add_row(Text(method.label, "bold"), *cells)
    return made


def _cell(cell: Cell, marked: bool) -> Text:
    """Return a number and its spread; where a column has a mark, the others leave room for it."""
    text = cell.text if cell.spread is None else f"{cell.text} ±{cell.spread}"
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


def markdown(comparison: Comparison) -> str:
    """Return a table in GitHub's Markdown; the best of every column is bold, then come verdict and protocol."""

    def write(cell: Cell) -> str:
        text = cell.text if cell.spread is None else f"{cell.text} ± {cell.spread}"
        return f"**{text}**" if cell.best else text

    def escaped(text: str) -> str:
        return re.sub(r"([\\`*_|<\[\]])", r"\\\1", text)

    headings = _headings(comparison)
    lines = [["method", *headings], ["---", *["---:"] * len(headings)]]
    lines += [[escaped(name), *map(write, cells)] for name, cells in comparison.rows]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([rows, "", *(f"* {escaped(s)}" for s in _sentences(comparison))])


def latex(comparison: Comparison) -> str:
    """Return a table for booktabs; the best of every column is bold, verdict and protocol are in its caption."""

    def write(cell: Cell) -> str:
        text = tex(cell.text) if cell.spread is None else rf"{tex(cell.text)} $\pm$ {tex(cell.spread)}"
        return rf"\textbf{{{text}}}" if cell.best else text

    headings = _headings(comparison)
    caption = " ".join(tex(s if s.endswith(".") else f"{s}.") for s in _sentences(comparison))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{l{'r' * len(headings)}}}",
            r"\toprule",
            " & ".join(("method", *map(tex, headings))) + r" \\",
            r"\midrule",
            *(" & ".join((tex(name), *map(write, cells))) + r" \\" for name, cells in comparison.rows),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{caption}}}",
            r"\end{table}",
        ]
    )


WRITERS = {"markdown": markdown, "latex": latex}


def tex(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    >>> print(tex("a_b: 5 %, p < 0.1"))
    a\_b: 5 \%, p $<$ 0.1
    """
    return "".join(_LATEX.get(c, c) for c in text)


def _headings(comparison: Comparison) -> list[str]:
    return [f"{c.title} ({c.unit})" if c.unit else c.title for c in comparison.columns]


def _sentences(comparison: Comparison) -> list[str]:
    return [*comparison.verdict, *comparison.protocol(comparison.columns, "Bold:")]
