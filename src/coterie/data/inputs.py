"""What goes into a model: one tensor, or several, each with one row per sample.

Several inputs are a dictionary, which a model takes by the names of its arguments, or a tuple, which it takes in order.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tree, tree_map
from .arrays import ColumnOrder, as_tensor, name_of

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
    if strange := next((name for name in values if not isinstance(name, str)), None):
        raise UserError(f"{what} have an input called {strange!r}: name inputs as a model's arguments are named")
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
