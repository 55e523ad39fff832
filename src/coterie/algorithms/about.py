"""The docstring of a method, taken apart, and completed with the words for keywords that several methods have."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from textwrap import fill
from typing import Any, NamedTuple

from .options import Options

ARGS, REFERENCE, DIFFERS = "Args:", "Reference:", "Differs from the paper in:"
# What a keyword means that several methods have, unless the docstring of a method explains it itself.
COMMON = {
    "capacities": 'Rates by client, "b4-b3-b2" (1, 3/4, 1/2 in equal shares), "1-0.5" or "b4x15-b2x5", or for '
    'everybody one after the other, "b1@250-b2@250-b4" (rounds) or "b1@0.25-b4" (shares of all rounds).',
    "gossip_steps": "Exchanges in one round.",
    "keep_layers": "How many layers stay whole.",
    "mask_ce": "Whether the logits of classes that a client does not have are 0 in training, and their rows of the "
    "last layer are averaged without it.",
    "outer_lr": "The server's learning rate.",
    "participation": "Who takes part in a round: a fraction of the clients, or a count.",
    "personal": 'The parameters that stay with their client: "head" or name patterns.',
    "personal_epochs": "Passes through the data in the personal phase; several: for as many equal groups of clients.",
    "personal_lr": "The learning rate of the personal phase.",
    "personal_optimizer": "The optimizer of the personal phase; none: optimizer.",
    "personal_outer_lr": "The step size of the personal parts between rounds.",
    "personal_steps": "Batches in the personal phase, instead of epochs.",
    "rank_mode": '"channels", or "definition", where ratios are of min(k c_out, k c_in) and at most 1.',
    "regularizer": 'Terms of the loss: "none", "frobenius=1e-4", "l2=1e-4", "kronecker=1e-4", or several with commas.',
    "rho": "How far a step climbs before it looks: the radius of SAM.",
    "sam": 'The form of SAM: "plain" climbs by rho g/|g|, "adaptive" by rho T T g/|T g| with T = |weight| + sam_eta.',
    "sam_eta": "What adaptive SAM adds to the absolute value of every weight.",
    "scaler": "Whether inputs are divided by the rate before every norm, in training only.",
    "topology": 'The communication graph: a string such as "ring" or "random:10", or a Topology.',
    "weighting": 'How much a client counts: "size", by its samples, or "uniform".',
}


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
    """Take the docstring of a builder apart.

    >>> from coterie.algorithms import pfedlmt
    >>> about(pfedlmt).title, about(pfedlmt).notes
    ('pFedLMT', ("q_i starts as the nearest product of the common model's layers.",))
    """
    text = inspect.getdoc(builder) or ""
    head, _, tail = text.partition(REFERENCE)
    reference, _, differs = tail.partition(DIFFERS)
    line, *rest = head.strip().split("\n\n")
    title, colon, what = line.partition(": ")
    recurrence = rest[0] if rest and is_recurrence(rest[0]) else ""
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


def complete(docstring: str, keywords: Iterable[str]) -> str:
    """Return a docstring whose list of arguments has all ``keywords`` that it or ``COMMON`` explains, in their order.

    >>> print(complete("Lazy.\\n\\nArgs:\\n    mu: How lazy.", ["rho", "mu"]))
    Lazy.
    <BLANKLINE>
    Args:
        rho: How far a step climbs before it looks: the radius of SAM.
        mu: How lazy.
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    words = COMMON | args_of(inspect.cleandoc(docstring))
    entries = [
        fill(f"{k}: {words[k]}", 120, initial_indent=" " * 4, subsequent_indent=" " * 8) for k in keywords if k in words
    ]
    rest = [p for p in paragraphs if not p.startswith(ARGS)]
    place = next((i for i, p in enumerate(rest) if p.startswith((">>>", REFERENCE))), len(rest))
    listed = ["\n".join([ARGS, *entries])] if entries else []
    return "\n\n".join([*rest[:place], *listed, *rest[place:]])


def is_recurrence(paragraph: str) -> bool:
    """Tell whether a paragraph is formulas."""
    return not paragraph.startswith((">>>", ARGS)) and ("<-" in paragraph or "=" in paragraph)


def args_of(docstring: str) -> dict[str, str]:
    """Return the list of arguments, in Google's style, by name.

    >>> args_of("Adds.\\n\\nArgs:\\n    a: The first\\n        number.\\n    b: The second.")
    {'a': 'The first number.', 'b': 'The second.'}
    """
    listed = next((p for p in docstring.split("\n\n") if p.startswith(ARGS)), "")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, flags=re.MULTILINE)
    return {name: one_line(text) for name, text in entries}


def one_line(paragraph: str) -> str:
    """Return a paragraph without its line breaks, with Markdown's code marks in place of reStructuredText's."""
    return " ".join(paragraph.split()).replace("``", "`")


def default(value: Any) -> str:
    """Return a default as one types it.

    >>> default(None), default(True), default(1e-4), default("II")
    ('none', 'true', '0.0001', 'II')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
