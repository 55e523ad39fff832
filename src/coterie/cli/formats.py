"""The table of a comparison as Markdown and as LaTeX, with all its columns."""

import re

from ..measure.compare import Cell, Comparison

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    "*": "$*$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def markdown(comparison: Comparison) -> str:
    """A table in GitHub's Markdown; the best of every column in bold, then verdict and protocol."""

    def write(cell: Cell) -> str:
        text = cell.text if cell.spread is None else f"{cell.text} ± {cell.spread}"
        return f"**{text}**" if cell.best else text

    headings = _headings(comparison)
    lines = [["method", *headings], ["---", *["---:"] * len(headings)]]
    lines += [[_escaped(name), *map(write, cells)] for name, cells in comparison.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", *(f"* {_escaped(s)}" for s in _sentences(comparison))])


def latex(comparison: Comparison) -> str:
    """A table for booktabs; the best of every column in bold, verdict and protocol in its caption."""

    def write(cell: Cell) -> str:
        text = tex(cell.text) if cell.spread is None else rf"{tex(cell.text)} $\pm$ {tex(cell.spread)}"
        return rf"\textbf{{{text}}}" if cell.best else text

    lines = [" & ".join((tex(name), *map(write, cells))) + r" \\" for name, cells in comparison.rows]
    headings = _headings(comparison)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{l{'r' * len(headings)}}}",
            r"\toprule",
            " & ".join(("method", *map(tex, headings))) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{' '.join(tex(_closed(s)) for s in _sentences(comparison))}}}",
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


def _headings(comparison: Comparison) -> list[str]:
    return [f"{c.title} ({c.unit})" if c.unit else c.title for c in comparison.columns]


def _sentences(comparison: Comparison) -> list[str]:
    return [*comparison.verdict, *comparison.protocol(comparison.columns, "Bold:")]
