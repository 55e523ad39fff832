"""Samples as tensors, from arrays of NumPy, pandas or PyTorch or lists: one, or several with one row per sample.

Several inputs are a dictionary, which a model takes by the names of its arguments, or a tuple, which it takes in order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tree, tree_map

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


Inputs = Any
"""Tensor | dict[str, Tensor] | tuple[Tensor, ...], with the same number of rows in each."""
Shape = Any
"""Of one sample: tuple[int, ...], or a dictionary or a tuple of these, as the inputs are."""


def several(values: Any) -> bool:
    """Return whether values are several inputs: a dictionary, or a tuple of arrays.

    >>> import numpy as np
    >>> several({"a": [1]}), several((np.zeros(2), np.zeros(2))), several(np.zeros(2)), several((1.0, 2.0))
    (True, True, False, False)
    """
    arrays = isinstance(values, tuple) and bool(values) and all(hasattr(v, "__array__") for v in values)
    return isinstance(values, Mapping) or arrays


def as_inputs(what: str, values: Any, order: ColumnOrder | None = None, whose: str = "") -> Inputs:
    """Return arrays as inputs, refused in a sentence about ``what``; ``order``: that of DataFrames' columns."""

    def one(name: str, array: Any) -> Tensor:
        named = f"{name} of {what}" if name else what
        return as_tensor(named, array if order is None else order.aligned(name or "samples", whose, array))

    if not several(values):
        return one("", values)
    if not values:
        raise UserError(f"{what} are an empty dictionary: give one input or more, by the names of a model's arguments")
    if not isinstance(values, Mapping):
        return tuple(one(f"input {i}", v) for i, v in enumerate(values))
    return {name: one(name, v) for name, v in values.items()}


def by_name(what: str, x: Tree) -> dict[str, Tensor]:
    """Return every tensor with what it is called in a sentence about ``what``.

    >>> list(by_name("the samples", {"mask": 0})), list(by_name("the samples", (0, 0))), list(by_name("the samples", 0))
    (['mask of the samples'], ['input 0 of the samples', 'input 1 of the samples'], ['the samples'])
    """
    if isinstance(x, dict):
        return {f"{name} of {what}": v for name, v in x.items()}
    return {f"input {i} of {what}": v for i, v in enumerate(x)} if isinstance(x, tuple) else {what: x}


def names_of(x: Inputs | Shape) -> list[str]:
    """Return the names of several inputs, or their numbers; one input has none.

    >>> names_of({"mask": (24,)}), names_of(((24,), (24,))), names_of((24,)), names_of(())
    (['mask'], ['0', '1'], [], [])
    """
    if isinstance(x, dict):
        return list(x)
    return [str(i) for i, v in enumerate(x) if not isinstance(v, int)] if isinstance(x, tuple) else []


def array_names(shape: Shape) -> list[str]:
    """Return what the arrays of an .npz file with such samples are called; those in order as numpy.savez names them.

    >>> array_names({"ids": (24,), "mask": (24,)}), array_names(((3,), (4,))), array_names((1, 28)), array_names(None)
    (['ids', 'mask'], ['arr_0', 'arr_1'], ['x'], ['x'])
    """
    names = names_of(shape)
    if not names:
        return ["x"]
    return names if isinstance(shape, dict) else [f"arr_{i}" for i in names]


def sample_shape(x: Inputs) -> Shape:
    """Return the shape of one sample."""
    shape: Any = tree_map(lambda v: v.shape[1:], x)
    return shape


def type_names(x: Inputs) -> Any:
    """Return the names of the inputs' types, such as float32, as JSON has them."""
    if isinstance(x, dict):
        return {name: name_of(v) for name, v in x.items()}
    return list(map(name_of, x)) if isinstance(x, tuple) else name_of(x)


def shape_as_json(shape: Shape) -> Any:
    """Return a shape as JSON has it: tuples are lists."""
    if isinstance(shape, dict):
        return {name: list(each) for name, each in shape.items()}
    return [each if isinstance(each, int) else list(each) for each in shape]


def shape_of_json(saved: Any) -> Shape:
    """Return the shape that ``shape_as_json`` has written.

    >>> shape_of_json({"a": [3]}), shape_of_json([[3], []]), shape_of_json([1, 28])
    ({'a': (3,)}, ((3,), ()), (1, 28))
    """
    if isinstance(saved, dict):
        return {name: tuple(each) for name, each in saved.items()}
    return tuple(each if isinstance(each, int) else tuple(each) for each in saved)


def shape_in_words(shape: Shape) -> str:
    """Return a shape as a sentence has it.

    >>> shape_in_words({"ids": (24,), "mask": (24,)}), shape_in_words(((3,), (4,))), shape_in_words((3,))
    ('ids (24,), mask (24,)', '(3,), (4,)', '(3,)')
    """
    if isinstance(shape, dict):
        return ", ".join(f"{name} {tuple(each)}" for name, each in shape.items())
    return ", ".join(str(tuple(each)) for each in shape) if names_of(shape) else str(tuple(shape))


def check_inputs(what: str, x: Any) -> None:
    """Refuse what are no inputs."""
    if names_of(x) if isinstance(x, dict | tuple) else isinstance(x, Tensor):
        wrong = [name for name, v in by_name(what, x).items() if not isinstance(v, Tensor)]
        if not wrong:
            return
        what, x = wrong[0], by_name(what, x)[wrong[0]]
    raise UserError(
        f"{what} are a {type(x).__name__}: give a tensor, or several by name in a dictionary or in order in a tuple"
    )


def check_alike(what: str, these: Inputs, others: str, those: Inputs) -> None:
    """Refuse samples or targets of another form, shape or type than others have."""
    if type(these) is not type(those) or set(names_of(these)) != set(names_of(those)):
        forms = [", ".join(names_of(x)) or "one tensor" for x in (these, those)]
        raise UserError(f"{what} have the inputs {forms[0]} but {others} have {forms[1]}: give all the same inputs")
    ours, theirs = by_name(what, these), by_name(what, those)
    for name, v in ours.items():
        one = v, theirs[name]
        if v.shape[1:] != one[1].shape[1:] or v.dtype != one[1].dtype:
            looks = [f"{name_of(values)} of shape {tuple(values.shape[1:])}" for values in one]
            ragged = v.dtype == one[1].dtype and v.dim() == one[1].dim() == 2
            fix = ", as padding does for sequences" if ragged else ""
            raise UserError(f"{name} are {looks[0]} but {others} are {looks[1]}: make them alike{fix}")
