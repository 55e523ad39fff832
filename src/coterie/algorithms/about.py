"""A method's docstring taken apart: what it is, its recurrence, its settings, its example, where it comes from."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .options import Options

ARGS, REFERENCE, DIFFERS = "Args:", "Reference:", "Differs from the paper in:"


class About(NamedTuple):
    """The parts of a docstring, each empty where it is missing."""

    title: str  # the name as its authors write it
    what: str  # the rest of the first line
    recurrence: str
    notes: tuple[str, ...]  # further paragraphs
    args: Mapping[str, str]  # what each setting is, those that all methods have included
    example: str
    reference: str
    differs: str


def about(builder: Callable[..., Any]) -> About:
    """The parts of a builder's docstring.

    >>> from coterie.algorithms import dfedalt
    >>> about(dfedalt).title
    'DFedAlt'
    """
    text = inspect.getdoc(builder) or ""
    head, _, tail = text.partition(REFERENCE)
    reference, _, differs = tail.partition(DIFFERS)
    line, *rest = head.strip().split("\n\n")
    title, colon, what = line.partition(": ")
    recurrence = next(iter(p for p in rest[:1] if is_recurrence(p)), "")
    notes = [p for p in rest if p != recurrence and not p.startswith((">>>", ARGS))]
    return About(
        title if colon else "",
        one_line(what if colon else line),
        recurrence,
        tuple(map(one_line, notes)),
        {**args_of(inspect.getdoc(Options) or ""), **args_of(text)},
        "\n".join(p for p in rest if p.startswith(">>>")),
        one_line(reference),
        one_line(differs),
    )


def is_recurrence(paragraph: str) -> bool:
    """Whether a paragraph is formulas."""
    return not paragraph.startswith((">>>", ARGS)) and ("<-" in paragraph or "=" in paragraph)


def args_of(docstring: str) -> dict[str, str]:
    """The list of arguments, Google's way, by name.

    >>> args_of("Adds.\\n\\nArgs:\\n    a: The first\\n        number.\\n    b: The second.")
    {'a': 'The first number.', 'b': 'The second.'}
    """
    listed = next((p for p in docstring.split("\n\n") if p.startswith(ARGS)), "")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, flags=re.MULTILINE)
    return {name: one_line(text) for name, text in entries}


def one_line(paragraph: str) -> str:
    """A paragraph without its line breaks, reStructuredText's code marks as Markdown's."""
    return " ".join(paragraph.split()).replace("``", "`")


def default(value: Any) -> str:
    """A default as one types it.

    >>> default(None), default(True), default(1e-4), default("II")
    ('none', 'true', '0.0001', 'II')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
