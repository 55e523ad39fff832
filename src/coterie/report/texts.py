"""Results as text: a table of one comparison, or of methods by data sets, in Markdown, LaTeX, JSON or CSV."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..algorithms import BUILDERS
from ..algorithms.about import about
from ..core.errors import UserError, unknown
from ..core.schema import FINETUNED, Config
from ..measure.compare import POINTS, Cell, Column, Comparison
from .titles import data_name, data_title, setup_title

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    "*": "$*$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


LATEX = "latex"
PAPER = (POINTS["after_mix"], POINTS[FINETUNED], "worst client", "sent")  # columns that fit into one of a paper
MORE = "`coterie list columns` names all columns, `--columns` chooses some, `--format markdown` says what numbers are"


@dataclass(frozen=True)
class ResultTable:
    """Numbers of methods, as every format writes them."""

    name: str  # of what, in a few words
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]  # a method's label and its numbers
    caption: str
    answer: Sequence[str]  # what they come to, and what is unequal
    sentences: Sequence[str]  # all else that is to be said of them
    remarks: Sequence[str]  # what a comment in a paper says of them


def comparison_table(comparison: Comparison, wanted: Sequence[str] = (), format: str = "") -> ResultTable:
    """Return the table of one comparison; ``wanted``: the titles of its columns, by default those of the format."""
    usual = [c for c in comparison.columns if format != LATEX or c.title in PAPER]
    shown = [find_column(comparison, name) for name in wanted] or usual
    above = [*comparison.answer, *comparison.unequal]
    config = _config(comparison)
    return ResultTable(
        data_title(config["data"]),
        [_heading(column) for column in shown],
        [(m.label, [column.cells[i] for column in shown]) for i, m in enumerate(comparison.methods)],
        f"{setup_title(config)}{_round(comparison)}. {_spread([comparison])}",
        above,
        [*comparison.details, *comparison.protocol(shown, "Bold:")],
        [*above, *comparison.notes],
    )


def data_table(comparisons: Sequence[Comparison], wanted: Sequence[str] = ()) -> ResultTable:
    """Return one number of all methods, one column per comparison: that of each method's own models unless asked."""
    if len(wanted) > 1:
        raise UserError(f"a table of {len(comparisons)} data sets has one number: name one of {', '.join(wanted)}")
    shown = [find_column(c, wanted[0]) if wanted else c.columns[0] for c in comparisons]
    labels = dict.fromkeys(m.label for c in comparisons for m in c.methods)
    known = [
        {m.label: cell for m, cell in zip(c.methods, column.cells, strict=True)}
        for c, column in zip(comparisons, shown, strict=True)
    ]
    of = ", ".join(filter(None, (shown[0].title, shown[0].of, shown[0].unit)))
    about_each = [f"{setup_title(_config(c))}{_round(c)}." for c in comparisons]
    names = _data_names([_config(c) for c in comparisons])
    unequal = _unequal(names, comparisons)
    return ResultTable(
        f"{shown[0].title} by data set",
        names,
        [(label, [each.get(label, Cell(None, "-")) for each in known]) for label in labels],
        f"{of[0].upper()}{of[1:]}, by data set. {_spread(comparisons)}",
        unequal,
        about_each,
        [*unequal, *about_each],
    )


def _unequal(names: Sequence[str], comparisons: Sequence[Comparison]) -> list[str]:
    """Say what differs between methods in work and in tuning: one line for all data sets where the same does."""
    where: dict[str, list[str]] = {}
    for name, comparison in zip(names, comparisons, strict=True):
        for said in comparison.unequal:
            where.setdefault(said, []).append(name)
    return [f"{', '.join(some)}: {said}" for said, some in where.items()]


def find_column(comparison: Comparison, name: str) -> Column:
    """Return the column of this title, or the only one that begins with it; hyphens count as spaces."""
    key = name.strip().lower().replace("-", " ")
    titles = {c.title.lower(): c for c in comparison.columns}
    near = [c for title, c in titles.items() if title.startswith(key)] if key else []
    if key not in titles and len(near) != 1:
        raise unknown("column", name, [c.title for c in comparison.columns])
    return titles.get(key) or near[0]


def _config(comparison: Comparison) -> Config:
    return comparison.methods[0].runs[0].config


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _round(comparison: Comparison) -> str:
    rounds = sorted({run.evaluated for m in comparison.methods for run in m.runs})
    return f", round {rounds[0]}" if len(rounds) == 1 else f", rounds {rounds[0]} to {rounds[-1]}"


def _spread(comparisons: Sequence[Comparison]) -> str:
    """Say what the numbers are means of; of one seed the spread is that of the clients."""
    counts = sorted({len(m.runs) for c in comparisons for m in c.methods})
    if counts == [1]:
        return "One seed, ± standard deviation over clients. Bold: best."
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    alone = " (over clients where there is one seed)" if counts[0] == 1 else ""
    return f"Mean ± standard deviation over {seeds} seeds{alone}. Bold: best."


def _data_names(configs: Sequence[Config]) -> list[str]:
    """Return the shortest names that tell the data sets apart."""
    partitions = [str(c["data"].get("partition", "")) for c in configs]
    short = [data_name(c["data"]) for c in configs]
    ways = (
        short,
        [f"{name}, {partition}" for name, partition in zip(short, partitions, strict=True)],
        [data_title(c["data"]) for c in configs],
        [setup_title(c) for c in configs],
    )
    numbered = [f"{title} ({i})" for i, title in enumerate(ways[-1], 1)]
    return next((names for names in ways if len(set(names)) == len(configs)), numbered)


def markdown(table: ResultTable) -> str:
    """Return a table in GitHub's Markdown, the answer above it; the best of every column is bold."""

    def write(cell: Cell) -> str:
        text = cell.text if cell.spread is None else f"{cell.text} ± {cell.spread.text}"
        return f"**{text}**" if cell.best else text

    def escaped(text: str) -> str:
        return re.sub(r"([\\`*_|<\[\]])", r"\\\1", text)

    lines = [["method", *map(escaped, table.headings)], ["---", *["---:"] * len(table.headings)]]
    lines += [[escaped(label), *map(write, cells)] for label, cells in table.rows]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    above = [f"{escaped(sentence)}\n" for sentence in table.answer]
    return "\n".join([*above, rows, "", *(f"* {escaped(s)}" for s in table.sentences)])


def latex(table: ResultTable) -> str:
    """Return a table for booktabs with the methods' names as papers write them, a short caption and a label.

    A few comments say what the numbers come to.
    """

    def write(cell: Cell) -> str:
        text = tex(cell.text) if cell.spread is None else rf"{tex(cell.text)} $\pm$ {tex(cell.spread.text)}"
        return rf"\textbf{{{text}}}" if cell.best else text

    label = re.sub(r"[^a-z0-9]+", "-", table.name.lower()).strip("-")
    return "\n".join(
        [
            rf"% needs \usepackage{{booktabs}}; {MORE}",
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{l{'r' * len(table.headings)}}}",
            r"\toprule",
            " & ".join(("Method", *map(stacked, table.headings))) + r" \\",
            r"\midrule",
            *(" & ".join((tex(printed_name(name)), *map(write, cells))) + r" \\" for name, cells in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{tex(table.caption)}}}",
            rf"\label{{tab:{label}}}",
            r"\end{table}",
            *(f"% {sentence}" for sentence in table.remarks),
        ]
    )


def json_text(table: ResultTable) -> str:
    """Return the numbers as JSON: one object per method, in it one per column with the number and how it is written."""

    def write(cell: Cell) -> dict[str, float | str | None]:
        over, far = (None, None) if cell.spread is None else (cell.spread.over, cell.spread.value)
        return {"value": cell.value, "text": cell.text, "spread": far, "spread_over": over}

    rows = [
        {"method": label, **{h: write(cell) for h, cell in zip(table.headings, cells, strict=True)}}
        for label, cells in table.rows
    ]
    whole = {"name": table.name, "caption": table.caption, "rows": rows, "sentences": [*table.answer, *table.sentences]}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def csv_text(table: ResultTable) -> str:
    """Return the numbers as CSV: one line per method, every number followed by its spread, over seeds or clients."""
    lines: list[list[object]] = [[first] for first in ("method", *(label for label, _ in table.rows))]
    for i, heading in enumerate(table.headings):
        cells = [cells[i] for _, cells in table.rows]
        columns = [[heading, *(cell.value for cell in cells)]]
        for over in sorted({cell.spread.over for cell in cells if cell.spread is not None}, reverse=True):
            far = [
                cell.spread.value if cell.spread is not None and cell.spread.over == over else None for cell in cells
            ]
            columns.append([f"{heading} ± over {over}", *far])
        for line, *more in zip(lines, *columns, strict=True):
            line += more
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(lines)
    return made.getvalue().rstrip("\n")


WRITERS = {"markdown": markdown, LATEX: latex, "json": json_text, "csv": csv_text}


def printed_name(label: str) -> str:
    """Return a method's label with its name as its authors write it.

    >>> printed_name("dfedalt@lr=0.05"), printed_name("fedper"), printed_name("mine:fedfoo")
    ('DFedAlt@lr=0.05', 'FedPer', 'mine:fedfoo')
    """
    name = re.split("[@ ]", label, maxsplit=1)[0]
    title = about(BUILDERS[name]).title.partition(" (")[0] if name in BUILDERS else name
    return title + label[len(name) :]


def in_two_lines(title: str) -> str:
    """Break a title where its longer line is shortest.

    >>> in_two_lines("rounds to 80 %")
    'rounds\\nto 80 %'
    """
    breaks = [i for i, c in enumerate(title) if c == " "]
    at = min(breaks, key=lambda i: max(i, len(title) - i), default=None)
    return title if at is None else f"{title[:at]}\n{title[at + 1 :]}"


def stacked(title: str) -> str:
    r"""Return a heading in two lines, as LaTeX prints it.

    >>> print(stacked("worst client (%)"), stacked("sent"))
    \shortstack[r]{worst\\client (\%)} sent
    """
    upper, _, lower = tex(in_two_lines(title)).partition("\n")
    return rf"\shortstack[r]{{{upper}\\{lower}}}" if lower else upper


def tex(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    >>> print(tex("a_b: 5 %, p < 0.1"))
    a\_b: 5 \%, p $<$ 0.1
    """
    return "".join(_LATEX.get(c, c) for c in text)
