"""Datasets of PyTorch as arrays: every item is read once, in its order."""

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from ..core.errors import UserError
from ..core.tensors import leaves, stack
from .arrays import as_tensor
from .inputs import Inputs, as_inputs, names_of


def dataset_pair(what: str, dataset: Dataset[Any]) -> tuple[Any, Any]:
    """Return all samples and all targets of a Dataset; ``what``: whose they are, for sentences.

    Its transforms are applied once, now: what they draw stays as it was drawn.

    >>> x, y = dataset_pair("train", TensorDataset(torch.zeros(3, 2), torch.arange(3)))
    >>> tuple(x.shape), y.tolist()
    ((3, 2), [0, 1, 2])
    """
    if not isinstance(dataset, Sized):
        raise UserError(f"{what} is a {type(dataset).__name__} without a length: give a Dataset that knows its items")
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    items = [_item(what, dataset[i], i) for i in range(len(dataset))]
    if not items:
        raise UserError(f"{what} is a Dataset of no items: give one item or more, or tensors of no rows")
    shapes = {str(tuple(tuple(v.shape) for v in leaves(item))) for item in items}
    if len(shapes) > 1:
        one, two, *_ = sorted(shapes)
        raise UserError(
            f"{what} has items of unequal shapes, as {one} and {two}: make them alike, as padding does for sequences"
        )
    forms = {", ".join(sorted(names_of(sample))) for sample, _ in items}
    if len(forms) > 1:
        raise UserError(f"{what} has items of unequal inputs, {' and '.join(sorted(forms))}: make them alike")
    x, y = stack(items)
    return x, y


def _item(what: str, item: Any, place: int) -> tuple[Inputs, Tensor]:
    """Return a sample and its target."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise UserError(f"item {place} of {what} is a {type(item).__name__}: a Dataset gives pairs (sample, target)")
    sample, target = (torch.tensor(part) if isinstance(part, bool | int | float) else part for part in item)
    return as_inputs(f"sample {place} of {what}", sample), as_tensor(f"target {place} of {what}", target)
