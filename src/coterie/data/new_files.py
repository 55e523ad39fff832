"""Files of samples that a trained model is asked about, and the same files with its answers."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.files import replace, user_path
from ..core.spec import Spec, bind, parameters, parse, spelled
from .custom import new_samples
from .encoding import Columns
from .inputs import Shape, array_names, names_of
from .new_rows import Values
from .readers.arrow import DELIMITERS, Decimal, Delimiter, plain_column, pyarrow, read_csv, read_parquet

LINES = 10_000  # of a CSV file that are written at a time
Answers = Mapping[str, NDArray[Any]]
"""What is added to every row, by the name of its column."""


@dataclass(frozen=True)
class NewFile:
    """Samples of a file: rows of a table, or an array."""

    where: str
    suffix: str  # of the file with the answers, which is of the same kind
    samples: Any  # what a client predicts: rows, or an array
    names: Sequence[str]  # of the columns that the file has already
    write: Callable[[Path, Answers], None]

    def save(self, path: Path, answers: Answers) -> None:
        """Write the rows in their order, with the answers behind them; an array has the answers alone."""
        twice = next((name for name in answers if name in self.names), None)
        if twice is not None:
            raise UserError(f"{self.where} has a column {twice!r} already: rename it, or leave it out")
        replace(path, lambda file: self.write(file, answers))


class ArrowRows:
    """A table of Arrow whose rows a model is asked about."""

    first = 1

    def __init__(self, where: str, table: Any) -> None:
        self.where, self.table, self.names, self.count = where, table, table.column_names, table.num_rows

    def column(self, name: str) -> Values:
        """Return the values of a column."""
        column = self.table.column(self.names.index(name))
        found = plain_column(pyarrow("tables").types, column)
        return column.to_pylist() if found is None else found


def new_file(text: str, known: Columns | None, origin: Mapping[str, Any], shape: Shape = None) -> NewFile:
    """Read a file of new samples, as it is typed: FILE, or its kind and options, as in csv:FILE,delimiter=semicolon.

    ``known``: the columns that the run has learned from, if it has; ``origin``: what its own samples were read with;
    ``shape``: that of one sample, where they are arrays.
    """
    spec = parse(spelled(text, READERS))
    if spec.name not in READERS:
        name = user_path(text).suffix.removeprefix(".").lower()
        if name not in READERS:
            raise UserError(f"{text} is no file that can be answered: name one that ends with {_endings()}")
        spec = Spec(name, (), {"path": text})
    takes = {k: p for k, p in parameters(READERS[spec.name]).items() if k not in ("known", "shape")}
    if (known is None) != (spec.name == "npz"):
        learned = _learned(shape) if known is None else "a table: name a CSV or Parquet file"
        raise UserError(f"{text} cannot be answered, because the run has learned from {learned}")
    like = {k: origin[k] for k in takes if origin.get("source") == spec.name and k in origin and k != "path"}
    return READERS[spec.name](known=known, shape=shape, **{**like, **bind("source", spec, takes)})


def _learned(shape: Shape) -> str:
    """Say what a run without columns has learned from, and what file has such samples."""
    if not names_of(shape):
        return "arrays, not from rows of numbers and texts: name an .npz file"
    return f"several arrays, not from rows of numbers and texts: name an .npz file with {', '.join(array_names(shape))}"


def _endings() -> str:
    return ", ".join(f".{name}" for name in READERS)


def _csv(
    path: str, known: Columns | None, shape: Shape, delimiter: Delimiter = "comma", decimal: Decimal = "point"
) -> NewFile:
    """Read a CSV file with the kinds of columns that a run has learned from, and once more as it is written."""
    texts = [name for name, found in known.features.items() if found is not None] if known else []
    rows = ArrowRows(path, read_csv(path, delimiter, decimal, texts))
    sign, point = DELIMITERS[delimiter], "," if decimal == "comma" else "."

    def write(file: Path, answers: Answers) -> None:
        plain = read_csv(path, delimiter, decimal, rows.names, missing=False)
        if plain.num_rows != rows.count:
            raise UserError(f"{path} has changed meanwhile: answer it again")
        with open(file, "w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened, delimiter=sign, lineterminator="\n")
            writer.writerow([*rows.names, *answers])
            writer.writerows(_lines(plain, answers, point))

    return NewFile(path, ".csv", rows, rows.names, write)


def _lines(table: Any, answers: Answers, point: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of texts, each with its answers."""
    start = 0
    for batch in table.to_batches(max_chunksize=LINES):
        end = start + batch.num_rows
        added = (_texts(column[start:end], point) for column in answers.values())
        yield from zip(*(column.to_pylist() for column in batch.columns), *added, strict=True)
        start = end


def _texts(values: NDArray[Any], point: str) -> list[str]:
    """Return values as texts, with the digits that tell a number of its type from all others."""
    return [str(v).replace(".", point) for v in values] if values.dtype.kind == "f" else [str(v) for v in values]


def _parquet(path: str, known: Columns | None, shape: Shape) -> NewFile:
    """Read a Parquet file."""
    table = read_parquet(path)
    rows = ArrowRows(path, table)

    def write(file: Path, answers: Answers) -> None:
        library, whole = pyarrow("Parquet files"), table
        for name, values in answers.items():
            whole = whole.append_column(name, library.array(values.tolist() if values.dtype == object else values))
        library.parquet.write_table(whole, file)

    return NewFile(path, ".parquet", rows, rows.names, write)


def _npz(path: str, known: Columns | None, shape: Shape) -> NewFile:
    """Read the samples of an .npz file."""

    def write(file: Path, answers: Answers) -> None:
        with open(file, "wb") as opened:  # numpy would give a path another ending
            np.savez(opened, allow_pickle=False, **answers)

    return NewFile(path, ".npz", new_samples(path, shape), (), write)


READERS: dict[str, Callable[..., NewFile]] = {"csv": _csv, "parquet": _parquet, "npz": _npz}
