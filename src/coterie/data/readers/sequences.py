"""Columns of Arrow that hold lists of numbers, such as tokens and their masks: sequences of one length."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.memory import check_fits
from ..columns import TableColumn, doubles


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
