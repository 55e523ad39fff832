"""What a partition must keep."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def balanced_labels(samples: int, classes: int) -> Ints:
    return np.arange(samples) % classes


def fractions(labels: Ints, parts: list[Ints], classes: int) -> NDArray[np.float64]:
    return np.stack([np.bincount(labels[part], minlength=classes) / len(part) for part in parts])


def assert_cover(parts: list[Ints], samples: int) -> None:
    """Disjoint, and every sample is there."""
    assert all(part.dtype == np.int64 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
