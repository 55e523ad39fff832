"""Samples for a trained model, from a table or a file, made into inputs as its training samples were."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.errors import LONGEST, UserError, did_you_mean, in_one_line
from ..core.files import replace, user_path
from ..core.memory import check_fits
from ..core.spec import Spec, bind, parameters, parse, spelled
from .columns import TableColumn, numbered, text_column
from .custom import new_samples
from .encoding import Columns, Floats32, Mask, Scale, Texts, one_hot
from .inputs import Shape, array_names, names_of
from .readers.arrow import DELIMITERS, Decimal, Delimiter, plain_column, pyarrow, read_csv, read_parquet

_NUMBER = (Real, np.bool_)
Values = TableColumn | Sequence[object]
"""A column of numbers or of texts, or the values of one that may hold anything, None where one is missing."""


class NewRows(Protocol):
    """Rows of a file, of a frame or of dictionaries."""

    @property
    def where(self) -> str:
        """What they are in a sentence."""

    @property
    def first(self) -> int:
        """The number of the first row: 1 in a file, 0 in Python."""

    @property
    def names(self) -> Sequence[str]:
        """The columns."""

    @property
    def count(self) -> int:
        """How many rows there are."""

    def column(self, name: str) -> Values:
        """Return the values of a column."""


class DictRows:
    """A list of dictionaries, one per row; a key that a row lacks is a missing value."""

    where, first = "the list", 0

    def __init__(self, rows: Sequence[Mapping[str, object]]) -> None:
        self.rows, self.count = rows, len(rows)
        strange = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping)), None)
        if strange is not None:
            raise UserError(f"row {strange} of the list is a {type(rows[strange]).__name__}: give a dictionary per row")
        self.names = list(dict.fromkeys(name for row in rows for name in row))

    def column(self, name: str) -> Values:
        """Return the values of a column."""
        return [_known(row.get(name)) for row in self.rows]


class FrameRows:
    """A DataFrame of pandas."""

    where, first = "the frame", 0

    def __init__(self, frame: Any) -> None:
        if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
            raise UserError(f"{self.where} is a {type(frame).__name__}: give a DataFrame of pandas")
        self.frame, self.count, self.names = frame, len(frame), list(map(str, frame.columns))

    def column(self, name: str) -> Values:
        """Return the values of a column."""
        series = self.frame.iloc[:, self.names.index(name)]
        if getattr(series.dtype, "kind", "O") in "biuf":
            return TableColumn(series.to_numpy(np.float64, na_value=np.nan))
        absent = series.isna().tolist()
        return [None if missing else value for value, missing in zip(series.tolist(), absent, strict=True)]


def encoded_rows(rows: NewRows, known: Columns, say: Callable[[str], object]) -> Floats32:
    """Return rows as a run encodes them; columns that it has not learned from are passed over.

    ``say``: told of texts that no training row held, which are 0 in all inputs of their column, as in testing.
    """
    if not rows.count:
        raise UserError(f"{rows.where} has no rows: give one that has some")
    _check_names(rows, known)
    width = len(known.inputs)
    check_fits(4 * width * rows.count, f"{rows.count:,} rows of {width:,} inputs", "take fewer rows")
    x, at = np.zeros((rows.count, width), np.float32), 0
    for name, texts in known.features.items():
        column, inputs = _as_learned(rows, name, rows.column(name), texts is not None), x[:, at:]
        _check_complete(rows, name, column, known.filled)
        if texts is None:
            inputs[:, 0] = _filled(rows, name, column, known.scales[at], known.fill[at])
            at += 1
        else:
            places = numbered(column, texts)
            _tell_new_texts(rows, name, column, places < 0, say)
            one_hot(places, inputs)
            at += len(texts)
    return x


def _check_names(rows: NewRows, known: Columns) -> None:
    """Refuse rows that lack a column, or have two of its name."""
    counts = Counter(rows.names)
    for name in known.features:
        if not counts[name]:
            near = did_you_mean(name, rows.names) or "add it"
            raise UserError(f"{rows.where} has no column {name!r}, which the run has learned from: {near}")
        if counts[name] > 1:
            raise UserError(f"{rows.where} has two columns {name!r}: rename one of them")


def _as_learned(rows: NewRows, name: str, found: Values, texts: bool) -> TableColumn:
    """Return a column of the kind that the run has learned from; refuse a value of another kind with its row."""
    if isinstance(found, TableColumn) and (found.names is not None) == texts:
        return found
    values = _objects(found) if isinstance(found, TableColumn) else found
    strange = [i for i, v in enumerate(values) if v is not None and not isinstance(v, str if texts else _NUMBER)]
    if strange:
        row = strange[0] if texts else _odd_one(strange, values)
        kind = "text" if texts else "number"
        raise UserError(
            f"{_row(rows, row)} holds {_shown(values[row])} in {name}, where the run has learned from {kind}s: "
            f"give a {kind}"
        )
    if not texts:
        return TableColumn(np.array([np.nan if v is None else v for v in values], np.float64))
    kinds = list(dict.fromkeys(str(v) for v in values if v is not None))
    place = {kind: i for i, kind in enumerate(kinds)}
    return text_column(np.array([-1 if v is None else place[str(v)] for v in values], np.int64), kinds)


def _objects(column: TableColumn) -> list[object]:
    """Return the values of a column one by one, None where one is missing."""
    if column.names is not None:
        return [None if i < 0 else column.names[i] for i in column.values.tolist()]
    values = zip(column.values.tolist(), column.missing.tolist(), strict=True)
    return [None if missing else value for value, missing in values]


def _known(value: object) -> object:
    """Return a value, None in the place of NaN."""
    return None if isinstance(value, float) and value != value else value


def _odd_one(strange: Sequence[int], values: Sequence[object]) -> int:
    """Return the first row because of which a column of numbers was read as texts: the others spell numbers alike."""
    spelled = [row for row in strange if _spells_number(values[row])]
    if len(spelled) < len(strange):
        return next(row for row in strange if not _spells_number(values[row]))
    commas = [row for row in spelled if "," in str(values[row])]
    points = [row for row in spelled if "," not in str(values[row])]
    return min(filter(None, (commas, points)), key=len)[0]


def _spells_number(value: object) -> bool:
    try:
        float(str(value).replace(",", "."))
    except ValueError:
        return False
    return isinstance(value, str)


def _check_complete(rows: NewRows, name: str, column: TableColumn, filled: bool) -> None:
    """Refuse missing values where training had none."""
    absent = np.flatnonzero(column.missing)
    if len(absent) and not filled:
        raise UserError(
            f"{_row(rows, int(absent[0]))} has no value in {name}{_others(absent)}, and the run was trained without "
            "missing values: fill it there, or train with missing=mean, which fills new rows as well"
        )


def _filled(rows: NewRows, name: str, column: TableColumn, scale: Scale, fill: float) -> NDArray[Any]:
    """Return standardized numbers, with what training put in the place of missing ones."""
    values, absent = column.values.astype(np.float64, copy=False), column.missing
    endless = np.flatnonzero(np.isinf(values))
    if len(endless):
        raise UserError(f"{_row(rows, int(endless[0]))} holds infinity in {name}{_others(endless)}: mend it")
    return scale.of_values(np.where(absent, fill, values) if absent.any() else values)


def _tell_new_texts(rows: NewRows, name: str, column: TableColumn, unknown: Mask, say: Callable[[str], object]) -> None:
    """Say which texts no training row held; a missing value is none."""
    names: Texts = column.names or ()
    new = np.flatnonzero(unknown & (column.values >= 0))
    if len(new):
        text = names[int(column.values[new[0]])]
        say(
            f"{_row(rows, int(new[0]))} holds {_shown(text)} in {name}{_others(new)}, which no training row did: "
            f"all inputs of {name} are 0 there, as for new texts of test rows"
        )


def _row(rows: NewRows, row: int) -> str:
    """Name a row; that of a file's first line of values is 1, and that of a Python list 0."""
    return f"row {row + rows.first} of {rows.where}"


def _others(found: NDArray[Any]) -> str:
    return f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""


def _shown(value: object) -> str:
    """Return a value as a sentence repeats it."""
    text = repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    return in_one_line(text if len(text) <= LONGEST else f"{text[:20]}...")


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
