"""The samples of a source, before they are divided among clients."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .encoding import Columns
from .federation import Federation
from .inputs import Inputs
from .transform import Masking, Transform

Rows = tuple[NDArray[np.int64], ...]


class Natural(NamedTuple):
    """The division that the data come with."""

    names: tuple[str, ...]  # of the clients
    train: Rows  # per client: rows of x
    test: Rows | None  # per client: rows of test_x; None: nobody knows whose they are


class Pool(NamedTuple):
    """Training and test samples of a source with their targets, before they are divided among clients."""

    x: Inputs  # [N, ...]
    y: Tensor  # [N] int64 labels, or [N, ...] anything else that is learned
    test_x: Inputs  # [M, ...]
    test_y: Tensor  # [M, ...]
    classes: int | None  # None: the targets are numbers
    per_client: Callable[[Federation], Federation] | None = None  # applied once the samples are divided
    transform: Transform | Masking | None = None  # makes inputs of uint8 images or of stored tokens
    natural: Natural | None = None  # where the source knows its clients
    columns: Columns | None = None  # where it is a table

    @property
    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The classes of the training and of the test samples; None where a sample has no single class."""
        return (self.y.numpy(), self.test_y.numpy()) if self.classes is not None and self.y.dim() == 1 else None


def quarter(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark every fourth sample of each class: a test set that keeps the proportions of the classes.

    >>> quarter(np.array([7, 7, 7, 7, 8, 7, 8, 8, 8])).astype(int)
    array([0, 0, 0, 1, 0, 0, 0, 0, 1])
    """
    chosen = np.zeros(len(labels), bool)
    for rows in rows_by_label(labels).values():
        chosen[rows[3::4]] = True
    return chosen


def rows_by_label(labels: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Return the rows of every label in their order, by label; one that does not occur has none.

    >>> found = rows_by_label(np.array([7, 2, 7]))
    >>> found[2].tolist(), found[7].tolist(), found[5].tolist()
    ([1], [0, 2], [])
    """
    order = np.argsort(labels, kind="stable")
    kinds, starts = np.unique(labels[order], return_index=True)
    found = zip(kinds.tolist(), np.split(order, starts[1:]), strict=True) if len(kinds) else ()
    return defaultdict(lambda: np.empty(0, np.int64), found)
