"""A method's docstring taken apart: what it is, its recurrence, its settings, its example, where it comes from."""

import html
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

REFERENCE, DIFFERS = "Reference:", "Differs from the paper in:"


class About(NamedTuple):
    """The parts of a docstring."""

    title: str  # the name as its authors write it
    what: str  # the rest of the first line
    recurrence: str
    notes: tuple[str, ...]  # what is said of the settings
    example: str
    reference: str
    differs: str


def about(builder: Callable[..., Any]) -> About:
    """The parts of a builder's docstring; a missing one is an error that names the method."""
    text = inspect.getdoc(builder) or ""
    head, found, tail = text.partition(REFERENCE)
    reference, differing, differs = tail.partition(DIFFERS)
    if not found or not differing:
        raise ValueError(f"the docstring of {builder.__name__} lacks {REFERENCE!r} or {DIFFERS!r}")
    line, recurrence, *rest = head.strip().split("\n\n")
    if "<-" not in recurrence and "=" not in recurrence:
        raise ValueError(f"the second paragraph of the docstring of {builder.__name__} is no recurrence")
    title, _, what = line.partition(": ")
    example = "\n".join(p for p in rest if p.startswith(">>>"))
    notes = tuple(one_line(p) for p in rest if not p.startswith(">>>"))
    return About(title, what, recurrence, notes, example, one_line(reference), one_line(differs))


def one_line(paragraph: str) -> str:
    """A paragraph without its line breaks, reStructuredText's code marks as Markdown's."""
    return " ".join(paragraph.split()).replace("``", "`")


_WORDS = {"<-": "←", "sum": "Σ", "grad": "∇", "rho": "ρ", "mu": "μ", "lam": "λ", "gamma": "γ", "tau": "τ"}  # noqa: RUF001
_LETTER = r"(?<!\w)([A-Za-z]|sum|grad|mean|mu|rate|ratio|head|SVD|body)"


def formula(recurrence: str) -> str:
    """The recurrence as HTML, one statement a line: Greek letters, arrows, indices below the line.

    Names of settings stay as they are typed. It needs no script and no font: formulas of one line are all there is.
    """
    statements = [s for line in recurrence.splitlines() for s in re.split(r"[;,]\s{2,}|;\s*$", line) if s.strip()]
    return "".join(f'<div class="statement">{_pretty(s.strip())}</div>' for s in statements)


def _pretty(statement: str) -> str:
    text = html.escape(statement, quote=False).replace("&lt;-", "<-")
    text = re.sub(rf"{_LETTER}_(k\+1|[A-Za-z0-9]+)", r"\1<sub>\2</sub>", text)
    text = re.sub(r"\bW\[i, j\]", "W<sub>ij</sub>", text)
    text = re.sub(r"\bP\[i, ([ij])\]", r"P<sub>i\1</sub>", text)
    text = re.sub(r"\^([A-Za-z0-9])", r"<sup>\1</sup>", text)
    for word, sign in _WORDS.items():
        text = re.sub(rf"(?<![\w-]){word}(?![\w=])", sign, text)
    return re.sub(r"``(.*?)``", r"<code>\1</code>", text)
