"""Who can carry how much, and when: texts such as ``b4-b3-b2``, ``b4x15-b2x5`` or ``b1@0.25-b2@0.25-b4``."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError
from ..data.batches import Integers

WIDTHS = {"b1": 0.25, "b2": 0.5, "b3": 0.75, "b4": 1.0}  # shares of every hidden width
COMMON_RANKS = {"b1": (1, 0.03), "b2": (3, 0.15), "b3": (5, 0.4)}  # layers that stay whole, one rank ratio for all
RANKS = {"b1": 0.01, "b2": 0.15, "b3": 0.6, "b4": 1.4}  # rank ratios behind the ninth layer
FRACTIONS = {"b1": 0.25, "b2": 0.75, "b3": 1.25, "b4": 1.75}  # of the widths of a neural basis
DEPTHS = {"b1": 1.0, "b2": 2.0, "b3": 3.0, "b4": 4.0}  # stages


class Share(NamedTuple):
    """Clients of one capacity, and the rounds in which they have it."""

    capacity: float
    clients: Integers
    first: int = 0
    end: float = math.inf  # the first round in which they do not have it any more

    def lasts(self, t: int) -> bool:
        """Whether they have it in round ``t``."""
        return self.first <= t < self.end


def shares(text: str, known: Mapping[str, float], clients: int, rounds: int) -> list[Share]:
    """The clients in contiguous groups, one a capacity: of equal size, or of the sizes that are given.

    With ``@`` everybody has one capacity after the other, for so many rounds each or for such shares of all rounds,
    which are rounded down; the last one may go without a number and takes what is left.

    >>> [(s.capacity, s.clients.tolist()) for s in shares("b4-b2", WIDTHS, 4, rounds=9)]
    [(1.0, [0, 1]), (0.5, [2, 3])]
    >>> [(s.capacity, s.clients.tolist()) for s in shares("0.3x1-b4x2", WIDTHS, 3, rounds=9)]
    [(0.3, [0]), (1.0, [1, 2])]
    >>> [(s.capacity, s.first, s.end) for s in shares("b1@1/8-b2@1/8-b4", WIDTHS, 3, rounds=17)]
    [(0.25, 0, 2), (0.5, 2, 4), (1.0, 4, inf)]
    """
    values = levels(text, known)
    return _one_by_one(text, values, clients, rounds) if staged(text) else _side_by_side(text, values, clients)


def levels(text: str, known: Mapping[str, float]) -> list[float]:
    """The capacities themselves.

    >>> levels("b4-b3x2-0.1", WIDTHS), levels("b1@5-b2", WIDTHS)
    ([1.0, 0.75, 0.1], [0.25, 0.5])
    """
    if staged(text) and "x" in text:
        raise UserError(
            f"capacities={text} have both clients (x) and rounds (@): with rounds everybody has the same, as in b1@5-b4"
        )
    return [_value(part.strip().partition("x")[0].partition("@")[0], known, text) for part in text.split("-")]


def staged(text: str) -> bool:
    """Whether capacities change over the rounds."""
    return "@" in text


def refuse_staged(name: str, text: str | None, why: str) -> None:
    """Refuses capacities that change over the rounds where a method could do nothing with them."""
    if text is not None and staged(text):
        raise UserError(f"capacities={text} change over the rounds, but {name} {why}: leave the rounds (@) out")


def _one_by_one(text: str, values: Sequence[float], clients: int, rounds: int) -> list[Share]:
    first = _starts(text, rounds)
    spans = zip(values, first, [*first[1:], math.inf], strict=True)
    return [Share(value, np.arange(clients), start, end) for value, start, end in spans]


def _side_by_side(text: str, values: Sequence[float], clients: int) -> list[Share]:
    parts = [part.strip().partition("x") for part in text.split("-")]
    ends = np.cumsum([_count(size, text) for _, _, size in parts]) if any(x for _, x, _ in parts) else None
    if ends is None:
        ends = np.arange(1, len(parts) + 1) * clients // len(parts)
    elif ends[-1] != clients:
        raise UserError(f"capacities={text} are for {ends[-1]} clients, but there are {clients}: make them add up")
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Share(value, np.arange(a, b))
        for value, a, b in zip(values, starts.tolist(), ends.tolist(), strict=True)
        if b > a
    ]


def _starts(text: str, rounds: int) -> list[int]:
    """The first round of each capacity."""
    given = [_length(part.partition("@")[2].strip(), text) for part in text.split("-")]
    if any(length is None for length in given[:-1]):
        raise UserError(f"capacities={text} do not say how long each lasts: only the last may go without a number")
    numbers = [length for length in given if length is not None]
    if len({isinstance(length, int) for length in numbers}) > 1:
        raise UserError(f"capacities={text} mix rounds with shares of all rounds: give one kind, as in b1@0.25-b4")
    fixed = [length if isinstance(length, int) else int(length * rounds) for length in numbers[: len(given) - 1]]
    _check_sum(text, given, rounds)
    if min([*fixed, rounds - sum(fixed)]) < 1:
        raise UserError(f"capacities={text} leave some no round of {rounds}: ask for more rounds or other shares")
    return [0, *np.cumsum(fixed).tolist()]


def _check_sum(text: str, given: Sequence[int | Fraction | None], rounds: int) -> None:
    """All numbers together are all rounds, where the last one has a number too."""
    if given[-1] is None:
        return
    total = sum(length for length in given if length is not None)
    whole = rounds if isinstance(given[-1], int) else 1
    if total != whole:
        what = (
            f"{total} rounds, but there are {rounds}"
            if isinstance(given[-1], int)
            else f"{float(total):g} of all rounds"
        )
        raise UserError(f"capacities={text} are for {what}: leave the last number out, or make them add up")


def _length(text: str, whole: str) -> int | Fraction | None:
    """A number of rounds, a share of them as in 0.25 or 1/8, or None where nothing is said."""
    if not text:
        return None
    try:
        length = int(text) if text.isdigit() else Fraction(text)
    except (ValueError, ZeroDivisionError):
        length = 0
    if length <= 0 or (isinstance(length, Fraction) and length > 1):
        raise UserError(
            f"capacities={whole} have no meaning at @{text}: write rounds or a share of them, as in b1@250 or b1@0.125"
        )
    return length


def _value(name: str, known: Mapping[str, float], text: str) -> float:
    if name in known:
        return known[name]
    try:
        return float(name)
    except ValueError:
        raise UserError(
            f"capacities={text} has no meaning at {name!r}: write {'-'.join(known)} or numbers, as in b4-b2 or 1-0.5"
        ) from None


def _count(size: str, text: str) -> int:
    if not size.isdigit():
        raise UserError(f"capacities={text} gives sizes to some only: give one to each, as in b4x15-b2x5, or to none")
    return int(size)
