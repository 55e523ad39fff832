"""What a source of data gives: samples for everybody, not yet divided."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .federation import Federation
from .masking import Masking
from .transform import Transform

Rows = tuple[NDArray[np.int64], ...]


class Natural(NamedTuple):
    """The division that the data come with: whose sample each one is."""

    names: tuple[str, ...]
    train: Rows  # per client: rows of x
    test: Rows | None = None  # per client: rows of test_x; None: they follow the client's classes


class Pool(NamedTuple):
    """Training and test samples with their int64 labels, and what sets clients apart beyond the labels."""

    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    test_x: Tensor  # [M, ...]
    test_y: Tensor  # [M]
    classes: int
    per_client: Callable[[Federation], Federation] | None = None  # applied once the samples are divided
    transform: Transform | Masking | None = None  # what makes inputs of uint8 images or of stored tokens
    natural: Natural | None = None  # where the source knows its clients


def quarter(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks every fourth sample of each class: a test set that keeps the proportions of the classes.

    >>> quarter(np.array([7, 7, 7, 7, 8, 7, 8, 8, 8])).astype(int)
    array([0, 0, 0, 1, 0, 0, 0, 0, 1])
    """
    chosen = np.zeros(len(labels), bool)
    for k in np.unique(labels):
        chosen[np.flatnonzero(labels == k)[3::4]] = True
    return chosen
