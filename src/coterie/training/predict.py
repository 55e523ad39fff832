"""A client's model asked: from samples as the data set gives them to the answers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.schema import Config, TargetKind
from ..core.schema_parts import SavedColumns
from ..data import Transform
from ..data.arrays import as_tensor, name_of
from ..data.encoding import Columns
from ..data.frames import encoded_rows
from ..models.model import answer


@dataclass(frozen=True)
class Answering:
    """What a run's samples are, and what the outputs of its models mean."""

    transform: Transform | None  # of images that are stored as bytes
    input_shape: tuple[int, ...] | None  # of one sample; not known in folders of old with a module of one's own
    fixed: bool  # whether the model is known to take no other shape; a module of one's own may
    targets: TargetKind | None  # what they were trained to answer
    columns: SavedColumns | None  # of a table whose rows are the samples

    @classmethod
    def of(cls, config: Config) -> "Answering":
        """Read it off a configuration."""
        made, built = config["transform"], config["model"].get("input_shape")
        shape = config.get("sample_shape") if built is None else built
        transform = None if made is None else Transform(made["mean"], made["std"])
        targets, columns = config.get("targets", "classes"), config.get("columns")
        table = columns if columns is not None and columns["features"] else None  # the images of a table have none
        return cls(transform, None if shape is None else tuple(shape), built is not None, targets, table)

    def predict(self, module: nn.Module, x: Any) -> Tensor:
        """Return the answers of a module in evaluation mode to a batch of samples, or to one, or to rows of a table."""
        if self.columns is not None and (hasattr(x, "columns") or hasattr(x, "iloc")):
            rows = encoded_rows(x, Columns.of(self.columns))
            return self._in_units(self._predict(module, torch.from_numpy(rows)), self.columns)
        return self._predict(module, x)

    def _predict(self, module: nn.Module, x: Any) -> Tensor:
        """Return the answers to samples as the federation holds them."""
        samples = as_tensor("the samples", x)
        alone = self.input_shape is not None and samples.dim() == len(self.input_shape)
        batch = samples[None] if alone else samples
        fits = self.input_shape is None or tuple(batch.shape[1:]) == self.input_shape
        if self.fixed and not fits:
            raise self._misfit(samples)
        inputs = self._inputs(module, batch)
        try:
            with torch.no_grad():
                found = self._answers(answer(module, inputs))
        except Exception as error:  # a module of one's own fails in its own way
            if fits:
                raise
            raise self._misfit(samples) from error
        return found[0] if alone else found

    def _misfit(self, samples: Tensor) -> UserError:
        """Return what is to be said of samples that the module does not take."""
        shape = ", ".join(map(str, ("B", *(self.input_shape or ()))))
        return UserError(f"the samples have the shape {tuple(samples.shape)}: give a batch [{shape}], or one sample")

    def _inputs(self, module: nn.Module, batch: Tensor) -> Tensor:
        """Return samples as the module takes them; floating numbers have the type of its parameters."""
        if self.transform is not None and batch.dtype != torch.uint8:
            raise UserError(
                f"the samples are {name_of(batch)}, and the run was trained on images of bytes: give uint8, 0 to 255, "
                "as the data set has them, or call module() on inputs that are normalized already"
            )
        if self.transform is not None:
            return self.transform.plain(batch)
        own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        return batch.to(own) if batch.is_floating_point() else batch

    def _answers(self, outputs: Tensor) -> Tensor:
        """Return the class of the largest score, 1 for a label that is there, or the outputs, as metrics read them."""
        if self.targets in ("classes", "tokens", "pixels", "probabilities"):
            return outputs.argmax(1)
        return (outputs > 0).long() if self.targets in ("labels", "masks") else outputs

    def _in_units(self, answers: Tensor, columns: SavedColumns) -> Tensor:
        """Return numbers as the table holds them; classes and labels stay."""
        if not answers.is_floating_point():
            return answers
        return answers * answers.new_tensor(columns["target_std"]) + answers.new_tensor(columns["target_mean"])
