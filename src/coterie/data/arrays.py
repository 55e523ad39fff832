"""Arrays that people have at hand, as tensors: of NumPy, pandas or PyTorch, or lists of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError

_WIDE = {torch.uint16, torch.uint32, torch.uint64}  # torch computes nothing with these
_NUMBERS = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def as_tensor(what: str, array: Any) -> Tensor:
    """Return an array as a dense tensor of its values, without gradients; ``what``: its name in a sentence.

    >>> as_tensor("the samples", np.array([1, 2], dtype=">i2"))
    tensor([1, 2], dtype=torch.int16)
    >>> as_tensor("the samples", np.array(["a"]))
    Traceback (most recent call last):
    coterie.core.errors.UserError: the samples are an array of <U1: give numbers, such as float32 or int64
    """
    tensor = array if isinstance(array, Tensor) else _from_values(what, array)
    dense = tensor.layout is torch.strided and not tensor.is_nested
    if tensor.dtype not in _NUMBERS or not dense or tensor.is_meta:
        layout = "dense" if dense else "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise UserError(
            f"{what} are {name_of(tensor)}, {layout}, on {tensor.device}: give a dense tensor with values that torch "
            "computes with, such as float32 or int64"
        )
    return tensor.detach().as_subclass(Tensor)


def as_labels(what: str, array: Any) -> Tensor:
    """Return targets: floating ones as they are, class labels of any integer type as int64."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise UserError(f"{what} hold the label {array.max()}: number the classes from 0")
        array = array.astype(np.int64)
    elif isinstance(array, Tensor) and array.dtype in _WIDE:
        return as_labels(what, array.cpu().numpy()).to(array.device)
    targets = as_tensor(what, array)
    return targets if targets.is_floating_point() else targets.long()


class ColumnOrder:
    """The columns of the first DataFrame, into whose order all others are brought; arrays have no names and stay."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, list[Any]]] = {}  # of samples and of targets: whose they are, and their names

    def aligned(self, what: str, whose: str, array: Any) -> Any:
        """Return an array with its columns in that order; ``what``: samples or targets, ``whose``: for sentences."""
        if not hasattr(array, "columns"):
            return array
        own = list(array.columns)
        origin, names = self.first.setdefault(what, (whose, own))
        if own == names:
            return array
        if len(set(own)) < len(own) or set(own) != set(names):
            here, there = (", ".join(map(str, each)) for each in (own, names))
            raise UserError(
                f"the {what} of {whose} have the columns {here}, and those of {origin} have {there}: give all of them "
                "the same columns"
            )
        return array[names]


def name_of(tensor: Tensor) -> str:
    """Return the name of a tensor's type, as NumPy and PyTorch have it."""
    return str(tensor.dtype).removeprefix("torch.")


def _from_values(what: str, values: Any) -> Tensor:
    if isinstance(values, list | tuple):  # floats are single precision, as torch.tensor has them
        try:
            return torch.stack(list(values)) if values and isinstance(values[0], Tensor) else torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            if ragged := _lengths(values):
                raise UserError(
                    f"{what} are no rows of numbers of one length, but of {ragged}: pad them to one length"
                ) from error
            said = str(error).splitlines()[0]
            raise UserError(f"{what} are no rows of numbers ({said}): give an array of numbers") from error
    if not isinstance(values, np.ndarray) and not hasattr(values, "__array__"):
        raise UserError(f"{what} are a {type(values).__name__}: give a tensor or an array")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UserError(f"{what} have masked values: fill them, as .filled() does")
    array = np.asarray(values)
    try:  # read-only, reversed and byte-swapped arrays cannot share their memory with a tensor; this copies just those
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except TypeError as error:
        raise UserError(f"{what} are an array of {array.dtype}: give numbers, such as float32 or int64") from error


def _lengths(rows: Sequence[Any]) -> str:
    """Say how long rows are, where they are of unequal lengths; nothing where they are not."""
    lengths = {len(row) if hasattr(row, "__len__") else 0 for row in rows}
    return f"{min(lengths)} to {max(lengths)}" if len(lengths) > 1 else ""
