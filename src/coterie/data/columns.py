"""Columns of a table as numbers, and the table that gives them away one by one, so that it is in memory once."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, did_you_mean
from ..core.tensors import Integers


class TableColumn(NamedTuple):
    """The values of one column."""

    values: NDArray[Any]  # numbers, NaN where one is missing; of texts, their places in names, -1 where one is missing;
    # of images, their files; of sequences, their numbers [n, length]
    names: tuple[str, ...] | None = None  # the different texts in their order; None: the column holds numbers

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each value is missing."""
        if self.names is not None:
            return self.values < 0
        return np.isnan(self.values) if self.values.dtype.kind == "f" else np.zeros(len(self.values), bool)


class Lazy(NamedTuple):
    """A column that is read when it is asked for."""

    kind: Literal["numbers", "texts", "images", "sequences"]
    read: Callable[[], TableColumn]


class Table:
    """Named columns, of one file or of two; the rows of the second one are for testing.

    >>> table = Table(["a.csv"], [{"age": Lazy("numbers", lambda: TableColumn(np.array([3, 4])))}], [2])
    >>> table.pop("age").values.tolist(), list(table.names)
    ([3, 4], [])
    """

    def __init__(
        self,
        files: Sequence[str],
        parts: Sequence[dict[str, Lazy]],
        sizes: Sequence[int],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.files, self.parts, self.sizes = files, parts, sizes
        self.close = close  # gives the memory of columns back that nobody holds any more
        for file, part in zip(files[1:], parts[1:], strict=True):
            for name in parts[0]:
                if name not in part:
                    raise UserError(f"{file} has no column {name!r}, which {files[0]} has: make their columns alike")

    @property
    def where(self) -> str:
        """The file, for sentences."""
        return self.files[0]

    @property
    def rows(self) -> int:
        """The number of rows, test rows included."""
        return sum(self.sizes)

    @property
    def names(self) -> Iterable[str]:
        """The columns that are left."""
        return self.parts[0].keys()

    def check(self, option: str, wanted: Iterable[str]) -> None:
        """Refuse names of columns that there are not."""
        for name in wanted:
            if name not in self.parts[0]:
                near = did_you_mean(name, self.names) or f"its columns are {', '.join(self.names)}"
                raise UserError(f"{self.where} has no column {name!r} for {option}: {near}")

    def drop(self, names: Iterable[str]) -> None:
        """Leave columns out."""
        for part in self.parts:
            for name in names:
                part.pop(name, None)

    def of_kind(self, kind: str) -> list[str]:
        """Return the columns that hold numbers, texts, images or sequences."""
        return [name for name, column in self.parts[0].items() if column.kind == kind]

    def pop(self, name: str) -> TableColumn:
        """Return a column of all rows, and forget it: whoever asks decides in which form it stays in memory."""
        columns = [part.pop(name).read() for part in self.parts]
        kinds = [_kind(column) for column in columns]
        if len(set(kinds)) > 1:
            unequal = all(column.values.ndim > 1 for column in columns) and len({c.values.dtype for c in columns}) == 1
            fix = ", as padding does for sequences" if unequal else ""
            raise UserError(
                f"column {name} holds {kinds[0]} in {self.files[0]} and {kinds[1]} in {self.files[1]}: make them "
                f"alike{fix}"
            )
        return columns[0] if len(columns) == 1 else joined(columns)


def _kind(column: TableColumn) -> str:
    """Return in words what a column holds, which is alike in both files."""
    if column.values.ndim > 1:
        return f"sequences of {column.values.shape[1]} numbers ({column.values.dtype})"
    return "numbers" if column.names is None else "texts"


def joined(columns: Sequence[TableColumn]) -> TableColumn:
    """Return columns of one kind end to end.

    >>> joined([TableColumn(np.array([0, 1]), ("a", "c")), TableColumn(np.array([0, -1]), ("b",))])
    TableColumn(values=array([ 0,  2,  1, -1]), names=('a', 'b', 'c'))
    """
    if len({column.names for column in columns}) == 1:
        return TableColumn(np.concatenate([column.values for column in columns]), columns[0].names)
    names = tuple(sorted({name for column in columns for name in column.names or ()}))
    return TableColumn(np.concatenate([numbered(column, names) for column in columns]), names)


def numbered(column: TableColumn, names: Sequence[str]) -> Integers:
    """Return the place of every text among other names; -1 where it is not among them, or is missing."""
    place = {name: i for i, name in enumerate(names)}
    places = np.array([*(place.get(name, -1) for name in column.names or ()), -1], np.int64)
    found: Integers = places[column.values]
    return found


def text_column(codes: NDArray[Any], names: Sequence[str]) -> TableColumn:
    """Return a column of texts, of places in names of any order, which may hold some twice."""
    return TableColumn(numbered(TableColumn(codes, tuple(names)), kinds := tuple(sorted(set(names)))), kinds)


def one_kind(column: TableColumn) -> TableColumn:
    """Return a column whose numbers are names as well, in their order, for clients and classes.

    >>> one_kind(TableColumn(np.array([10.0, 2.0, 10.0])))
    TableColumn(values=array([1, 0, 1]), names=('2', '10'))
    """
    if column.names is not None:
        return column
    kinds, codes = np.unique(column.values, return_inverse=True)
    return TableColumn(codes.astype(np.int64), tuple(f"{kind:.17g}" for kind in kinds.tolist()))


def doubles(where: str, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the numbers of a column in double precision; refuse those that single precision does not hold."""
    found = values.astype(np.float64, copy=False)
    if (np.isfinite(found) & (np.abs(found) > np.finfo(np.float32).max)).any():
        raise UserError(f"column {name} of {where} holds numbers beyond 3.4e38: scale it")
    return found


def check_columns(where: str, names: Sequence[str]) -> None:
    """Refuse names that no option can mean."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where} has two columns {name!r}: rename one of them")
        seen.add(name)
    if "" in seen:
        raise UserError(f"{where} has a column without a name, as pandas writes its index: save it with index=False")
