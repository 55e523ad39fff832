"""Engines beside each other: the graphed one without a GPU, and numbers that must be the same."""

import torch
from torch import Tensor

from coterie.engines import Graphed
from toys import in_place


def graphed_for(chunk: int, exact: bool = False) -> Graphed:
    """Without a GPU: over the same memory, but neither compiled nor recorded."""
    return Graphed(chunk, exact, torch.device("cpu"), in_place, lanes=2)


def assert_same(fast: dict[str, Tensor], slow: dict[str, Tensor], tolerance: float) -> None:
    for name in slow:
        assert slow[name].dtype == fast[name].dtype
        torch.testing.assert_close(
            fast[name], slow[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
