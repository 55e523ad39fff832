"""Modules around a client's own, as files hold them: from samples of the data set to scores."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..core.schema import SavedColumns
from ..data import Transform
from ..models.model import answer


class Scored(nn.Module):
    """A module that takes its inputs in order, whatever they are called, and returns its scores and nothing else."""

    def __init__(self, module: nn.Module, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the scores of a batch."""
        named = dict(zip(self.names, inputs, strict=True)) if self.names else inputs
        return cast(Tensor, answer(self.module, named))


class PreparedImages(nn.Module):
    """A module for images as they are stored (uint8): it normalizes them first."""

    def __init__(self, module: nn.Module, transform: Transform) -> None:
        super().__init__()
        self.module, self.transform = module, transform

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of uint8 [B, C, H, W]."""
        return cast(Tensor, answer(self.module, self.transform.plain(x)))


class Standardized(nn.Module):
    """A module for numbers as a table holds them: it fills and standardizes them, and answers in their units."""

    fill: Tensor
    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, module: nn.Module, columns: SavedColumns) -> None:
        super().__init__()
        self.module, self.answers_numbers = module, columns["classes"] is None
        values = {"mean": columns["mean"], "std": columns["std"]}
        values |= {"target_mean": columns["target_mean"], "target_std": columns["target_std"]}
        values["fill"] = columns.get("fill", [math.nan] * len(columns["mean"]))  # NaN stays where training had none
        for name, numbers in values.items():
            self.register_buffer(name, torch.tensor(numbers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes, or the numbers that are predicted, of [B, inputs]."""
        known = torch.where(x.isnan(), self.fill, x)
        found: Tensor = answer(self.module, (known - self.mean) / self.std)
        return found * self.target_std + self.target_mean if self.answers_numbers else found
