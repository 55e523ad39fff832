"""Exported models as other programs open them."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor


def scripted(file: Path) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has successors
        loaded: Callable[[Tensor], Tensor] = torch.jit.load(file)
        return loaded
