"""Which client has which capacity, and when: texts such as ``b4-b3-b2``, ``b4x15-b2x5`` or ``b1@0.25-b2@0.25-b4``."""

import math
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError, unknown
from ..core.spec import parse_shares, whole_number
from ..core.tensors import Integers

WIDTHS = {"b1": 0.25, "b2": 0.5, "b3": 0.75, "b4": 1.0}  # shares of every hidden width
COMMON_RANKS = {"b1": (1, 0.03), "b2": (3, 0.15), "b3": (5, 0.4)}  # layers that stay whole, rank ratio of all clients
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
        """Tell whether they have it in round ``t``."""
        return self.first <= t < self.end


def shares(text: str, table: Mapping[str, float], clients: int, rounds: int) -> list[Share]:
    """Split the clients into contiguous groups, one per capacity: of equal size, or of the sizes in the text.

    With ``@`` all clients have one capacity after the other, each for a number of rounds or a share of all rounds,
    which is rounded down; the last one may go without a number and takes the rounds that are left.

    >>> [(s.capacity, s.clients.tolist()) for s in shares("b4-b2", WIDTHS, 4, rounds=9)]
    [(1.0, [0, 1]), (0.5, [2, 3])]
    >>> [(s.capacity, s.clients.tolist()) for s in shares("0.3x1-b4x2", WIDTHS, 3, rounds=9)]
    [(0.3, [0]), (1.0, [1, 2])]
    >>> [(s.capacity, s.first, s.end) for s in shares("b1@1/8-b2@1/8-b4", WIDTHS, 3, rounds=17)]
    [(0.25, 0, 2), (0.5, 2, 4), (1.0, 4, inf)]
    """
    values = levels(text, table)
    if changing(text):
        starts: list[float] = [*_first_rounds(text, rounds), math.inf]
        return [Share(v, np.arange(clients), int(a), b) for v, (a, b) in zip(values, pairwise(starts), strict=True)]
    ends = pairwise([0, *_last_clients(text, clients)])
    return [Share(v, np.arange(a, b)) for v, (a, b) in zip(values, ends, strict=True) if b > a]


def levels(text: str, table: Mapping[str, float]) -> list[float]:
    """Return the capacities themselves.

    >>> levels("b4-b3x2-0.1", WIDTHS), levels("b1@5-b2", WIDTHS)
    ([1.0, 0.75, 0.1], [0.25, 0.5])
    """
    parts = parse_shares(text)
    if changing(text) and any(part.sign == "x" or "x" in part.amount for part in parts):
        raise UserError(
            f"capacities={text} have both clients (x) and rounds (@): with rounds everybody has the same, as in b1@5-b4"
        )
    return [_value(part.name, table) for part in parts]


def changing(text: str) -> bool:
    """Tell whether capacities change over the rounds."""
    return "@" in text


def refuse_changing(name: str, text: str | None, why: str) -> None:
    """Refuse capacities that change over the rounds where a method has no use for them."""
    if text is not None and changing(text):
        raise UserError(f"capacities={text} change over the rounds, but {name} {why}: leave the rounds (@) out")


def _value(name: str, table: Mapping[str, float]) -> float:
    if name in table:
        return table[name]
    with suppress(ValueError):
        if math.isfinite(value := float(name)):
            return value
    raise unknown("capacity", name, table)


def _last_clients(text: str, clients: int) -> list[int]:
    """Return the end of every group of clients."""
    parts = parse_shares(text)
    if not any(part.sign for part in parts):
        return [k * clients // len(parts) for k in range(1, len(parts) + 1)]
    amounts = [whole_number(part.amount) for part in parts]
    if None in amounts:
        raise UserError(f"capacities={text} gives sizes to some only: give one to each, as in b4x15-b2x5, or to none")
    ends = list(accumulate(amount or 0 for amount in amounts))
    if ends[-1] != clients:
        raise UserError(f"capacities={text} are for {ends[-1]} clients, but there are {clients}: make them add up")
    return ends


def _first_rounds(text: str, rounds: int) -> list[int]:
    """Return the first round of each capacity."""
    *lengths, last = (_length(part.amount, text) for part in parse_shares(text))
    numbers = [length for length in (*lengths, last) if length is not None]
    if None in lengths:
        raise UserError(f"capacities={text} do not say how long each lasts: only the last may go without a number")
    if len({isinstance(length, int) for length in numbers}) > 1:
        raise UserError(f"capacities={text} mix rounds with shares of all rounds: give one kind, as in b1@0.25-b4")
    in_rounds = all(isinstance(length, int) for length in numbers)
    if last is not None and sum(numbers) != (rounds if in_rounds else 1):
        total = sum(numbers)
        what = f"{total} rounds, but there are {rounds}" if in_rounds else f"{float(total):g} of all rounds"
        raise UserError(f"capacities={text} are for {what}: leave the last number out, or make them add up")
    fixed = [int(length if in_rounds else length * rounds) for length in numbers[: len(lengths)]]
    if min([*fixed, rounds - sum(fixed)]) < 1:
        raise UserError(f"capacities={text} leave some no round of {rounds}: ask for more rounds or other shares")
    return [0, *accumulate(fixed)]


def _length(text: str, whole: str) -> int | Fraction | None:
    """Read a number of rounds or a share of them, as in 0.25 or 1/8; an empty text is None."""
    if not text:
        return None
    try:
        number = whole_number(text)
        length = Fraction(text) if number is None else number
    except (ValueError, ZeroDivisionError):
        length = 0
    if length <= 0 or (isinstance(length, Fraction) and length > 1):
        raise UserError(
            f"capacities={whole} have no meaning at @{text}: write rounds or a share of them, as in b1@250 or b1@0.125"
        )
    return length
