"""A client's model asked: from samples as the data set gives them to the answers."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.schema import Config, SavedColumns, TargetKind
from ..core.tensors import count, rows, tree_map
from ..data import Transform
from ..data.arrays import as_tensor, name_of
from ..data.encoding import Columns
from ..data.inputs import Inputs, Shape, as_inputs, names_of, sample_shape, shape_in_words, shape_of_json
from ..data.new_files import ArrowRows
from ..data.new_rows import DictRows, FrameRows, NewRows, encoded_rows
from ..models.model import answer

BATCH = 1000  # samples that are answered at a time
CLASSES = ("classes", "tokens", "pixels", "probabilities")  # targets that are answered by the largest of the outputs
LABELS = ("labels", "masks")  # by outputs above 0
Say = Callable[[str], object]


@dataclass(frozen=True)
class Answering:
    """What a run's samples are, and what the outputs of its models mean."""

    transform: Transform | None  # of images that are stored as bytes
    input_shape: Shape | None  # of one sample; not known in folders of old with a module of one's own
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
        return cls(transform, None if shape is None else shape_of_json(shape), built is not None, targets, table)

    def predict(self, module: nn.Module, x: Any) -> Tensor:
        """Return the answers of a module in evaluation mode to a batch of samples, or to one, or to rows of a table."""
        table = self._rows(x)
        if table is None:
            return self._predict(module, x)
        return self._answers(self._table_outputs(module, table, warn))

    def scored(self, module: nn.Module, x: Any, say: Say) -> dict[str, NDArray[Any]]:
        """Return the answers to a batch of samples and what they rest on, as columns by name."""
        table = self._rows(x)
        if table is not None:
            outputs = self._table_outputs(module, table, say)
        else:
            outputs = self._all_outputs(module, self._samples(x))
        found = {"prediction": self._answers(outputs)}
        if self.targets in CLASSES + LABELS:
            found["probability"] = outputs.softmax(1) if self.targets in CLASSES else outputs.sigmoid()
        values = {name: tensor.numpy() for name, tensor in found.items()}
        return values if self.columns is None else _columns(values, self.columns)

    def _rows(self, x: Any) -> NewRows | None:
        """Return rows of the table that the run has learned from; None: the samples are an array."""
        if self.columns is None or isinstance(x, ArrowRows):
            return x if isinstance(x, ArrowRows) else None
        if isinstance(x, list) and x and isinstance(x[0], Mapping):
            return DictRows(x)
        return FrameRows(x) if hasattr(x, "columns") or hasattr(x, "iloc") else None

    def _table_outputs(self, module: nn.Module, table: NewRows, say: Say) -> Tensor:
        """Return the outputs for rows of a table, in its units."""
        assert self.columns is not None
        x = torch.from_numpy(encoded_rows(table, Columns.of(self.columns), say))
        return self._in_units(self._all_outputs(module, x), self.columns)

    def _all_outputs(self, module: nn.Module, samples: Inputs) -> Tensor:
        """Return the outputs for samples, some at a time."""
        parts = (rows(samples, slice(i, i + BATCH)) for i in range(0, max(1, count(samples)), BATCH))
        return torch.cat([self._outputs(module, batch) for batch in parts])

    def _samples(self, x: Any) -> Inputs:
        """Return samples as tensors; refuse other inputs than those that the run has learned from."""
        names = names_of(self.input_shape)
        if not names:
            return as_tensor("the samples", x)
        samples = as_inputs("the samples", x)
        if isinstance(samples, dict) != isinstance(self.input_shape, dict) or {*names_of(samples)} != {*names}:
            form = "a dictionary" if isinstance(self.input_shape, dict) else "a tuple"
            raise UserError(f"the run has learned from the inputs {', '.join(names)}: give {form} of these")
        return samples

    def _alone(self, samples: Inputs) -> bool:
        """Return whether this is one sample, by its dimensions."""
        shape: Any = self.input_shape
        if not names_of(shape):
            return shape is not None and samples.dim() == len(shape)
        keys = shape if isinstance(shape, dict) else range(len(shape))
        return all(samples[key].dim() == len(shape[key]) for key in keys)

    def _predict(self, module: nn.Module, x: Any) -> Tensor:
        """Return the answers to samples as the federation holds them."""
        samples = self._samples(x)
        alone = self._alone(samples)
        batch = tree_map(lambda v: v[None], samples) if alone else samples
        answers = self._answers(self._outputs(module, batch, samples))
        return answers[0] if alone else answers

    def _outputs(self, module: nn.Module, batch: Inputs, given: Inputs | None = None) -> Tensor:
        """Return the outputs for a batch; ``given``: the samples as they came, for sentences."""
        fits = self.input_shape is None or sample_shape(batch) == self.input_shape
        samples = batch if given is None else given
        if self.fixed and not fits:
            raise self._misfit(samples)
        inputs = self._inputs(module, batch)
        try:
            with torch.no_grad():
                outputs: Tensor = answer(module, inputs)
        except Exception as error:  # a module of one's own fails in its own way
            if fits:
                raise
            raise self._misfit(samples) from error
        return outputs

    def _misfit(self, samples: Inputs) -> UserError:
        """Return what is to be said of samples that the module does not take."""
        if names_of(samples):
            have, wanted = (shape_in_words(shape) for shape in (sample_shape(samples), self.input_shape))
            return UserError(f"each of the samples has the inputs {have}: give a batch of {wanted}, or one sample")
        shape = ", ".join(map(str, ("B", *(self.input_shape or ()))))
        return UserError(f"the samples have the shape {tuple(samples.shape)}: give a batch [{shape}], or one sample")

    def _inputs(self, module: nn.Module, batch: Inputs) -> Inputs:
        """Return samples as the module takes them; floating numbers have the type of its parameters."""
        if self.transform is not None and batch.dtype != torch.uint8:
            raise UserError(
                f"the samples are {name_of(batch)}, and the run was trained on images of bytes: give uint8, 0 to 255, "
                "as the data set has them, or call module() on inputs that are normalized already"
            )
        if self.transform is not None:
            return self.transform.plain(batch)
        own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        return tree_map(lambda v: v.to(own) if v.is_floating_point() else v, batch)

    def _answers(self, outputs: Tensor) -> Tensor:
        """Return the class of the largest score, 1 for a label that is there, or the outputs, as metrics read them."""
        if self.targets in CLASSES:
            return outputs.argmax(1)
        return (outputs > 0).long() if self.targets in LABELS else outputs

    def _in_units(self, outputs: Tensor, columns: SavedColumns) -> Tensor:
        """Return numbers as the table holds them; scores of classes and labels stay."""
        if columns["classes"] is not None or self.targets in LABELS:
            return outputs
        return outputs * outputs.new_tensor(columns["target_std"]) + outputs.new_tensor(columns["target_mean"])


@dataclass(frozen=True)
class Predictor:
    """A model that answers rows of the table that it has learned from, or samples as its federation holds them."""

    module: nn.Module
    answering: Answering

    def predict(self, x: Any) -> Tensor:
        """Return the answers, as ``Client.predict`` does."""
        return self.answering.predict(self.module, x)

    def scored(self, x: Any, say: Say | None = None) -> dict[str, NDArray[Any]]:
        """Return answers and probabilities, as ``Client.scored`` does; ``say``: told of texts that are new."""
        return self.answering.scored(self.module, x, say or warn)


def warn(said: str) -> None:
    """Warn of something in the samples."""
    warnings.warn(said, UserWarning, stacklevel=2)


def _columns(found: Mapping[str, NDArray[Any]], columns: SavedColumns) -> dict[str, NDArray[Any]]:
    """Return answers to rows of a table as columns of a table, with the names of its classes or targets."""
    classes, targets = columns["classes"], columns["target"]
    if classes is not None and "probability" in found:
        answers, likely = found["prediction"].reshape(-1), found["probability"].reshape(len(found["probability"]), -1)
        scored = classes[-likely.shape[1] :]  # one output is for the second of two classes
        scores = {f"probability_{name}": likely[:, i] for i, name in enumerate(scored)}
        return {"prediction": np.array(classes, object)[answers], **scores}
    if len(targets) == 1:
        return {kind: values.reshape(len(values)) for kind, values in found.items()}
    return {f"{kind}_{name}": values[:, i] for kind, values in found.items() for i, name in enumerate(targets)}
