"""Engines beside each other: the graphed one without a GPU, and numbers that must be the same."""

import os

import torch
from torch import Tensor

from coterie.engines import Graphed
from toys import in_place

# By hand: every case with every kind of model in both precisions, on every engine. Otherwise the first case of every
# method meets every kind once, and elsewhere the kinds take turns: others in single precision than in double.
ALL = "COTERIE_ALL_KINDS" in os.environ


def graphed_for(chunk: int, exact: bool = False) -> Graphed:
    """Without a GPU: over the same memory, but neither compiled nor recorded."""
    return Graphed(chunk, exact, torch.device("cpu"), in_place, lanes=2)


def assert_same(fast: dict[str, Tensor], slow: dict[str, Tensor], tolerance: float) -> None:
    for name in slow:
        assert slow[name].dtype == fast[name].dtype
        torch.testing.assert_close(
            fast[name], slow[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
