"""The table of results as Markdown and as LaTeX, with all its columns."""

import re
from collections.abc import Callable, Sequence

from .results import Cell, Column, Result

Write = Callable[[Cell, bool], str]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    "*": "$*$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def markdown(results: Sequence[Result], shown: Sequence[Column], sentences: Sequence[str], notes: Sequence[str]) -> str:
    """A table in GitHub's Markdown; the best of every column in bold, then the sentences and notes."""

    def write(cell: Cell, won: bool) -> str:
        text = cell.text if cell.spread is None else f"{cell.text} ± {cell.spread}"
        return f"**{text}**" if won else text

    lines = [["method", *_headings(shown)], ["---", *["---:"] * len(shown)]]
    lines += [[_escaped(name), *cells] for name, cells in _rows(results, shown, write)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", *(f"* {_escaped(s)}" for s in (*sentences, *notes))])


def latex(results: Sequence[Result], shown: Sequence[Column], sentences: Sequence[str], notes: Sequence[str]) -> str:
    """A table for booktabs; the best of every column in bold, sentences and notes in its caption."""

    def write(cell: Cell, won: bool) -> str:
        text = tex(cell.text) if cell.spread is None else rf"{tex(cell.text)} $\pm$ {tex(cell.spread)}"
        return rf"\textbf{{{text}}}" if won else text

    lines = [" & ".join((tex(name), *cells)) + r" \\" for name, cells in _rows(results, shown, write)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{l{'r' * len(shown)}}}",
            r"\toprule",
            " & ".join(("method", *map(tex, _headings(shown)))) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{' '.join(tex(_closed(s)) for s in (*sentences, *notes))}}}",
            r"\end{table}",
        ]
    )


def tex(text: str) -> str:
    r"""A text as LaTeX prints it.

    >>> print(tex("a_b: 5 %, p < 0.1"))
    a\_b: 5 \%, p $<$ 0.1
    """
    return "".join(_LATEX.get(c, c) for c in text)


def _escaped(text: str) -> str:
    """A text as Markdown shows it."""
    return re.sub(r"([\\`*_|<\[\]])", r"\\\1", text)


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith(".") else sentence + "."


def _headings(shown: Sequence[Column]) -> list[str]:
    return [f"{c.title} ({c.unit})" if c.unit else c.title for c in shown]


def _rows(results: Sequence[Result], shown: Sequence[Column], write: Write) -> list[tuple[str, list[str]]]:
    winners = [c.winners(results) for c in shown]
    return [
        (r.method, [write(c.cell(r), won[i]) for c, won in zip(shown, winners, strict=True)])
        for i, r in enumerate(results)
    ]
