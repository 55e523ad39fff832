"""Who can carry how much: texts such as ``b4-b3-b2``, ``1-0.5-0.25`` or ``b4x15-b2x5``."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..batches import Integers
from ..errors import RequestError

WIDTHS = {"b1": 0.25, "b2": 0.5, "b3": 0.75, "b4": 1.0}  # shares of every hidden width
RANKS = {"b1": 0.01, "b2": 0.15, "b3": 0.6, "b4": 1.4}  # rank ratios behind the ninth layer
FRACTIONS = {"b1": 0.25, "b2": 0.75, "b3": 1.25, "b4": 1.75}  # of the widths of a neural basis
DEPTHS = {"b1": 1.0, "b2": 2.0, "b3": 3.0, "b4": 4.0}  # stages


class Share(NamedTuple):
    """Clients of one capacity."""

    capacity: float
    clients: Integers


def shares(text: str, known: Mapping[str, float], clients: int) -> list[Share]:
    """The clients in contiguous groups, one a capacity: of equal size, or of the sizes that are given.

    >>> [(s.capacity, s.clients.tolist()) for s in shares("b4-b2", WIDTHS, 4)]
    [(1.0, [0, 1]), (0.5, [2, 3])]
    >>> [(s.capacity, s.clients.tolist()) for s in shares("0.3x1-b4x2", WIDTHS, 3)]
    [(0.3, [0]), (1.0, [1, 2])]
    """
    parts = [part.strip().partition("x") for part in text.split("-")]
    values = levels(text, known)
    ends = np.cumsum([_count(size, text) for _, _, size in parts]) if any(x for _, x, _ in parts) else None
    if ends is None:
        ends = np.arange(1, len(parts) + 1) * clients // len(parts)
    elif ends[-1] != clients:
        raise RequestError(f"capacities={text} are for {ends[-1]} clients, but there are {clients}: make them add up")
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Share(value, np.arange(a, b))
        for value, a, b in zip(values, starts.tolist(), ends.tolist(), strict=True)
        if b > a
    ]


def levels(text: str, known: Mapping[str, float]) -> list[float]:
    """The capacities themselves.

    >>> levels("b4-b3x2-0.1", WIDTHS)
    [1.0, 0.75, 0.1]
    """
    return [_value(part.strip().partition("x")[0], known, text) for part in text.split("-")]


def _value(name: str, known: Mapping[str, float], text: str) -> float:
    if name in known:
        return known[name]
    try:
        return float(name)
    except ValueError:
        raise RequestError(
            f"capacities={text} has no meaning at {name!r}: write {'-'.join(known)} or numbers, as in b4-b2 or 1-0.5"
        ) from None


def _count(size: str, text: str) -> int:
    if not size.isdigit():
        raise RequestError(
            f"capacities={text} gives sizes to some only: give one to each, as in b4x15-b2x5, or to none"
        )
    return int(size)
