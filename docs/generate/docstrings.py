"""A method's docstring on the site: its parts, all of which must be there, and formulas as HTML."""

import html
import re
from collections.abc import Callable
from typing import Any

from coterie.algorithms.about import DIFFERS, REFERENCE, About
from coterie.algorithms.about import about as parts


def about(builder: Callable[..., Any]) -> About:
    """Return the parts of a builder's docstring; a missing one is an error that names the method."""
    text = parts(builder)
    if not text.reference or not text.differs:
        raise ValueError(f"the docstring of {builder.__name__} lacks {REFERENCE!r} or {DIFFERS!r}")
    if not text.recurrence:
        raise ValueError(f"the second paragraph of the docstring of {builder.__name__} is no update rule")
    return text


_WORDS = {"<-": "←", "sum": "Σ", "grad": "∇", "rho": "ρ", "mu": "μ", "lam": "λ", "gamma": "γ", "tau": "τ"}  # noqa: RUF001
_LETTER = r"(?<!\w)([A-Za-z]|sum|grad|mean|mu|rate|ratio|head|SVD|body)"


def formula(recurrence: str) -> str:
    """Return the update rule as HTML, one statement per line: Greek letters, arrows, indices below the line.

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
