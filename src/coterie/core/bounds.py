"""What a type cannot say of a value in a run's files, said behind it, as in ``Annotated[list[str], FolderName()]``."""

import re
from typing import Any


class EqualRows:
    """A table: some rows, all of one length."""

    def holds(self, rows: list[list[Any]]) -> bool:
        """Return whether there are rows, and all have as many entries."""
        return len({len(row) for row in rows}) == 1 and bool(rows[0])

    def __str__(self) -> str:
        return "rows of equal length"


class Edges:
    """The edges of a graph: [sender, receiver, weight]."""

    def holds(self, edges: list[list[Any]]) -> bool:
        """Return whether each has two clients and a weight."""
        return all(len(e) == 3 and type(e[0]) is type(e[1]) is int and type(e[2]) in (int, float) for e in edges)

    def __str__(self) -> str:
        return "a list of [sender, receiver, weight]"


class FolderName:
    """The name of a folder inside another."""

    def holds(self, name: str) -> bool:
        """Return whether it stays inside."""
        return 0 < len(name) < 256 and name not in (".", "..") and not {"/", "\\"} & set(name)

    def __str__(self) -> str:
        return "the name of a folder in this one"


class RightAnswers:
    """The answers of a model to some samples, without what they were: 1 for a right one, 0 for a wrong one."""

    def holds(self, text: str) -> bool:
        """Return whether it says so of every sample."""
        return set(text) <= {"0", "1"}

    def __str__(self) -> str:
        return "a text of 0 and 1"


class EngineName:
    """The full name of an engine: with its clients side by side, and on a cluster that of its workers."""

    def holds(self, name: str) -> bool:
        """Return whether an engine has such a name."""
        return re.fullmatch(r"(ray:)?(serial|(vectorized|graphed)(:[1-9]\d{0,9})?)", name, re.ASCII) is not None

    def __str__(self) -> str:
        return "the name of an engine"
