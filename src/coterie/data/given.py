"""Federations of what people have at hand: pairs of samples and targets, one per client."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..core.annotations import PositiveInt
from ..core.arguments import checked
from ..core.clients import client_name
from ..core.errors import UserError
from ..core.tensors import tree_map
from .arrays import ColumnOrder, as_labels
from .datasets import dataset_pair
from .federation import MOST_CLASSES, Federation, check_names
from .inputs import Inputs, as_inputs, by_name, check_alike
from .transform import Transform

Array = Tensor | NDArray[Any] | dict[str, Any] | tuple[Any, ...]
Pair = tuple[Array, Array] | Dataset[Any]


@checked("function", own=("train", "test"))
def from_tensors(
    train: Sequence[Pair],
    test: Sequence[Pair],
    classes: PositiveInt | None = None,
    transform: Transform | None = None,
    names: Sequence[str] = (),
) -> Federation:
    """Make a federation of one pair (samples, targets) per client: tensors, arrays, DataFrames, lists of numbers.

    A client may be a ``torch.utils.data.Dataset`` instead, whose items are pairs (sample, target). DataFrames have the
    same columns, which are brought into the order of the first one. Samples of several inputs are a dictionary of such
    arrays, which a model takes as keyword arguments, or a tuple, which it takes in order.

    Samples and floating targets keep their dtype; integer targets are class labels and become int64. ``classes``
    is one more than the largest label unless given. Images of type uint8 are stored as they are; ``transform`` says
    how a batch of them becomes what the model sees. ``names``: what the clients are called in tables and sentences.

    >>> x, y = torch.rand(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    >>> fed = from_tensors(train=[(x, y), (x[:1], y[:1])], test=[(x, y), (x, y)])
    >>> fed.sizes.tolist(), fed.classes, fed.x.dtype
    ([4, 1], 3, torch.float64)
    """
    order = ColumnOrder()
    x, y, parts = _concatenated("train", train, names, order)
    test_x, test_y, test_parts = _concatenated("test", test, names, order)
    if classes is None and not y.is_floating_point():
        largest = [int(labels.max()) for labels in (y, test_y) if labels.numel()]
        classes = max(largest, default=0) + 1
        if classes > max(MOST_CLASSES, len(y) + len(test_y)):
            raise UserError(f"the largest label is {classes - 1}: number the classes from 0, or say how many there are")
    return Federation(x, y, test_x, test_y, parts, test_parts, classes, transform=transform, names=tuple(names))


def _concatenated(
    kind: str, pairs: Sequence[Pair], names: Sequence[str], order: ColumnOrder
) -> tuple[Inputs, Tensor, tuple[Tensor, ...]]:
    """Return all pairs end to end, and the rows of each client."""
    if not isinstance(pairs, Sequence) or isinstance(pairs, str | bytes):
        raise UserError(f"{kind} is a {type(pairs).__name__}: give a list of pairs (samples, targets), one per client")
    if not pairs:
        raise UserError(f"{kind} is empty: give one pair (samples, targets) per client")
    check_names(names, len(pairs))
    called = [client_name(names, client) for client in range(len(pairs))]
    tensors = [_pair(kind, who, pair, order) for who, pair in zip(called, pairs, strict=True)]
    for who, pair in zip(called, tensors, strict=True):
        for what, mine, first in zip(("samples", "targets"), pair, tensors[0], strict=True):
            check_alike(f"{kind} {what} of {who}", mine, f"those of {called[0]}", first)
    xs, ys = zip(*tensors, strict=True)
    rows = torch.arange(sum(map(len, ys)), device=ys[0].device)
    x: Inputs = tree_map(lambda *parts: torch.cat(parts), *xs)
    return x, torch.cat(ys), torch.split(rows, [len(y) for y in ys])


def _pair(kind: str, who: str, pair: Pair, order: ColumnOrder) -> tuple[Inputs, Tensor]:
    if isinstance(pair, Dataset):
        pair = dataset_pair(f"{kind} of {who}", pair)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(
            f"{kind} of {who} must be a pair (samples, targets) or a torch Dataset, not a {type(pair).__name__}"
        )
    whose = f"{kind} of {who}"
    x = as_inputs(f"the {kind} samples of {who}", pair[0], order, whose)
    y = as_labels(f"the {kind} targets of {who}", order.aligned("targets", whose, pair[1]))
    for name, v in by_name(whose, x).items():
        if not v.ndim or not y.ndim or len(v) != len(y):
            shapes = f"{tuple(v.shape)} and {tuple(y.shape)}"
            raise UserError(f"{name} needs as many samples as targets, not shapes {shapes}")
    return x, y
