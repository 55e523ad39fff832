"""Tables that Apache Arrow reads in parallel: CSV and Parquet files, with columns of numbers, texts or sequences."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.extras import import_extra
from ...core.files import user_path
from ...core.memory import check_fits
from ..columns import Lazy, Table, TableColumn, check_columns, doubles, joined, text_column
from .packed import check_ordinary


def is_sequence(types: Any, kind: Any) -> bool:
    """Return whether a type of Arrow is a list of numbers."""
    if not any(is_a(kind) for is_a in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return False
    return any(is_a(kind.value_type) for is_a in (types.is_integer, types.is_floating, types.is_boolean))


def sequences(library: Any, file: str, name: str, column: Any) -> TableColumn:
    """Return a column of lists [n, length]: integers as int64, floating numbers as float32, bool as it is."""
    compute = library.compute
    if column.null_count:
        raise UserError(f"{_row(name, _first(column.is_null()), file)} is missing: fill it, or remove the row")
    lengths = compute.list_value_length(column).to_numpy()
    length = int(lengths[0])
    unequal = np.flatnonzero(lengths != length)
    if len(unequal):
        raise UserError(
            f"{_row(name, unequal[0], file)} has {lengths[unequal[0]]} numbers, and row 0 has {length}: pad the "
            "sequences to one length"
        )
    check_fits(8 * length * len(column), f"the sequences {name} of {file}", "take fewer rows, or shorter sequences")
    flat = compute.list_flatten(column)
    if flat.null_count:
        row = _first(flat.is_null()) // length
        raise UserError(f"{_row(name, row, file)} has a missing value: fill it, or remove the row")
    return TableColumn(_numbers(library, file, name, flat).reshape(len(column), length))


def _numbers(library: Any, file: str, name: str, flat: Any) -> NDArray[Any]:
    """Return the numbers of all lists end to end."""
    if library.types.is_floating(flat.type):
        return doubles(file, name, np.asarray(flat.to_numpy())).astype(np.float32)
    if library.types.is_boolean(flat.type):
        return np.asarray(flat.to_numpy())
    try:
        return np.asarray(flat.cast("int64").to_numpy())
    except library.ArrowInvalid as error:
        raise UserError(f"column {name} of {file} holds integers beyond int64: make them smaller") from error


def _first(marked: Any) -> int:
    return int(np.flatnonzero(marked.to_numpy())[0])


def _row(name: str, row: int, file: str) -> str:
    return f"{name} in row {row} of {file}"


Delimiter = Literal["comma", "semicolon", "tab"]
Decimal = Literal["point", "comma"]
DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}
_COPIES = 2  # as it is read, and as a federation has it
_BLOCK = 2**24  # bytes of a CSV file that are read at once, of which a row takes no more: 100,000 numbers are 2 MB


def pyarrow(what: str) -> Any:
    """Return pyarrow, which is an extra."""
    for part in ("compute", "csv", "parquet"):  # the library has them as attributes then
        import_extra(f"pyarrow.{part}", "tables", f"reading {what}")
    return import_extra("pyarrow", "tables", f"reading {what}")


def csv(path: str, test_file: str = "", delimiter: Delimiter = "comma", decimal: Decimal = "point") -> Table:
    """Read a CSV file whose first line names the columns. test_file: a second one, with the rows for testing.

    delimiter: comma, semicolon or tab; decimal: the sign in numbers, point or comma.
    """
    files = [file for file in (path, test_file) if file]
    return arrow_table(files, [read_csv(file, delimiter, decimal) for file in files])


def read_csv(
    path: str, delimiter: Delimiter, decimal: Decimal, texts: Collection[str] = (), missing: bool = True
) -> Any:
    """Return a CSV file as Arrow has it.

    texts: columns that are texts whatever they look like; missing: whether an empty text is a missing value.
    """
    library = pyarrow("CSV files")
    convert = library.csv.ConvertOptions(
        strings_can_be_null=missing,
        decimal_point="," if decimal == "comma" else ".",
        column_types=dict.fromkeys(texts, library.string()),
    )
    blocks = library.csv.ReadOptions(block_size=_BLOCK)
    parse = library.csv.ParseOptions(delimiter=DELIMITERS[delimiter], newlines_in_values=False)

    def read(file: Path) -> Any:
        check_fits(_COPIES * file.stat().st_size, f"the rows of {file}", "take fewer rows or columns")
        _check_delimiter(file, delimiter)
        return library.csv.read_csv(file, blocks, parse, convert_options=convert)

    return _read("CSV", path, read, library)


def _check_delimiter(file: Path, delimiter: Delimiter) -> None:
    """Refuse a file whose first line has another delimiter."""
    with open(file, "rb") as opened:
        names = opened.readline(100_000).decode("utf-8", "replace").strip()
    other = next((kind for kind, sign in DELIMITERS.items() if sign in names), None)
    if DELIMITERS[delimiter] not in names and other is not None:
        raise UserError(f"the columns of {file} are not divided by a {delimiter}: add delimiter={other}")


def parquet(path: str, test_file: str = "") -> Table:
    """Read a Parquet file. test_file: a second one, with the rows for testing."""
    files = [file for file in (path, test_file) if file]
    return arrow_table(files, [read_parquet(file) for file in files])


def read_parquet(path: str) -> Any:
    """Return a Parquet file as Arrow has it."""
    library = pyarrow("Parquet files")

    def read(file: Path) -> Any:
        with library.parquet.ParquetFile(file) as opened:
            known = opened.metadata
            need = _COPIES * sum(known.row_group(i).total_byte_size for i in range(known.num_row_groups))
            check_fits(need, f"the rows of {file}", "take fewer rows or columns")
            return opened.read()

    return _read("Parquet", path, read, library)


def _read(kind: str, path: str, read: Callable[[Path], Any], library: Any) -> Any:
    """Return what a file holds; refuse one that cannot be read."""
    try:
        check_ordinary(user_path(path))
        return read(user_path(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): name a {kind} file") from error
    except library.ArrowException as error:
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is no {kind} file that can be read ({said}): mend it, or name another") from error


def arrow_table(files: list[str], tables: list[Any]) -> Table:
    """Return the columns of Arrow's tables, each of which is converted when it is asked for."""
    library = pyarrow("tables")
    parts = []
    for file, table in zip(files, tables, strict=True):
        check_columns(file, table.column_names)
        if not table.num_rows:
            raise UserError(f"{file} has no rows: name a file that has some")
        columns = zip(table.column_names, table.columns, strict=True)
        parts.append({name: _lazy(library, file, name, column) for name, column in columns})
    close = library.default_memory_pool().release_unused  # which else keeps as much as was ever taken
    return Table(files, parts, [table.num_rows for table in tables], close)


def _lazy(library: Any, file: str, name: str, column: Any) -> Lazy:
    types = library.types
    if is_sequence(types, column.type):
        return Lazy("sequences", partial(sequences, library, file, name, column))
    return Lazy("texts" if _is_text(types, column.type) else "numbers", partial(_column, types, file, name, column))


def plain_column(types: Any, column: Any) -> TableColumn | None:
    """Return a column of Arrow as numbers or texts; None where it holds anything else, such as dates."""
    kind = column.type
    if _is_text(types, kind):
        return _texts(types, column)
    if types.is_null(kind):
        return TableColumn(np.full(len(column), np.nan))
    if types.is_boolean(kind):
        column = column.cast("uint8")
    elif types.is_decimal(kind):
        column = column.cast("float64")
    elif not types.is_integer(kind) and not types.is_floating(kind):
        return None
    return TableColumn(np.asarray(column.to_numpy()))


def _is_text(types: Any, kind: Any) -> bool:
    inside = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_a(inside) for is_a in (types.is_string, types.is_large_string, types.is_string_view))


def _column(types: Any, file: str, name: str, column: Any) -> TableColumn:
    """Return a column of Arrow as numbers."""
    found = plain_column(types, column)
    if found is None:
        raise UserError(
            f"column {name} of {file} holds {column.type}, neither numbers nor texts: save it as a number, or leave it "
            f"out with drop={name}"
        )
    return found


def _texts(types: Any, column: Any) -> TableColumn:
    """Return texts as places among the different ones."""
    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    parts = [(part.indices.fill_null(-1), part.dictionary.to_pylist()) for part in encoded.chunks]
    found = [text_column(codes.to_numpy(zero_copy_only=False), names) for codes, names in parts]
    return joined(found)
