"""One client's own model: what it answers, and how files and messages hold it."""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.clients import OnDemand
from ..core.errors import UserError
from ..core.schema import Config, SavedColumns, TargetKind
from ..core.tensors import Tensors, count, rows, tree_map
from ..data import Transform
from ..data.encoding import Columns
from ..data.inputs import (
    Inputs,
    Shape,
    as_inputs,
    as_tensor,
    name_of,
    names_of,
    sample_shape,
    shape_in_words,
    shape_of_json,
)
from ..data.new_samples import ArrowRows, DictRows, FrameRows, NewRows, encoded_rows
from ..models.model import Model, answer

BATCH = 1000  # samples that are answered at a time
CLASSES = ("classes", "tokens", "pixels", "probabilities")  # targets that are answered by the largest of the outputs
LABELS = ("labels", "masks")  # by outputs above 0
Say = Callable[[str], object]


@dataclass(frozen=True)
class PredictionFormat:
    """What a run's samples are, and what the outputs of its models mean."""

    transform: Transform | None  # of images that are stored as bytes
    input_shape: Shape | None  # of one sample; not known in folders of old with a module of one's own
    fixed: bool  # whether the model is known to take no other shape; a module of one's own may
    targets: TargetKind | None  # what they were trained to answer
    columns: SavedColumns | None  # of a table whose rows are the samples

    @classmethod
    def of(cls, config: Config) -> "PredictionFormat":
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
    format: PredictionFormat

    def predict(self, x: Any) -> Tensor:
        """Return the answers, as ``Client.predict`` does."""
        return self.format.predict(self.module, x)

    def scored(self, x: Any, say: Say | None = None) -> dict[str, NDArray[Any]]:
        """Return answers and probabilities, as ``Client.scored`` does; ``say``: told of texts that are new."""
        return self.format.scored(self.module, x, say or warn)


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


@dataclass(frozen=True, repr=False)
class Client:
    """One client's own model."""

    shared: Tensors  # what it exchanged
    personal: Tensors  # what never left it
    model: Model | None  # the model that these tensors are of; None where it must be given to coterie.load
    format: PredictionFormat | None = None  # what its samples are and its outputs mean; of the clients of a run
    same: Hashable = None  # equal for clients that have one ``shared``, in one memory; None: nobody has this one

    def __repr__(self) -> str:
        return f"Client(shared={len(self.shared)} tensors, personal={len(self.personal)} tensors)"

    def module(self) -> nn.Module:
        """Return the client's own module, in evaluation mode, ready to use."""
        if self.model is None:
            raise UserError(
                "this run has a module of its own, or a method that makes one: give coterie.load the module that was "
                "trained, as model=..., or trust the code that the run names, as trust=['mine:net']"
            )
        return self.model.to_module(self.shared | self.personal)

    def predict(self, x: Any) -> Tensor:
        """Return the client's answers to samples as its federation holds them: a batch [B, ...], or one sample.

        Images of bytes are normalized, floating numbers take the type of the model, tokens stay. NumPy arrays and
        tensors are taken alike. A DataFrame, or a list of dictionaries, has rows of the table that the run has learned
        from, if it has: they are encoded as its rows were, missing values are filled or refused as there, and numbers
        are answered in its units. Answers are classes, 0 and 1 of labels, or numbers, by the loss that was minimized;
        ``scored()`` has probabilities, ``module()`` the outputs.
        """
        return self._predictor.predict(x)

    def scored(self, x: Any) -> dict[str, NDArray[Any]]:
        """Return the client's answers to a batch, and the probability of every class or label, as columns by name.

        Rows of a table have the columns ``prediction``, with the class's own name or a number in the target's unit,
        and ``probability_CLASS``; with several targets each has columns with its name. Other samples have
        ``prediction`` and ``probability``. A frame with them is ``frame.assign(**client.scored(frame))``.
        """
        return self._predictor.scored(x)

    @property
    def _predictor(self) -> Predictor:
        if self.format is None:
            raise UserError("only a client of a run knows what its samples are: call module() on inputs of the model")
        return Predictor(self.module(), self.format)


def with_format(config: Config, clients: Sequence[Client]) -> Sequence[Client]:
    """Return clients who know what samples of the run are; one that somebody has is not made, or read, once more."""
    known, made = PredictionFormat.of(config), WeakValueDictionary[int, Client]()

    def make(i: int) -> Client:
        client = made.get(i)
        if client is None:
            client = made[i] = replace(clients[i], format=known)
        return client

    return OnDemand(len(clients), make)


CONSTANT, SHARED, PERSONAL = "constant/", "shared/", "personal/"  # before the names of tensors
PART = "part"  # stands beside a client's own tensors: the number of the common part that it has, 0 unless it is there


class Folded(NamedTuple):
    """Clients without what they have the same."""

    common: Tensors  # ``shared/name`` of the first common part, ``1/shared/name`` of the next one
    own: Sequence[Tensors]  # of each client: ``personal/name``, and ``shared/name`` where no other has the same


def folded(clients: Sequence[Client]) -> Folded:
    """Take out what at least two clients have the same; ``unfolded`` puts a client together again."""
    parts = [client.same for client in clients]
    several = [part for part, times in Counter(parts).items() if part is not None and times > 1]
    number: dict[Hashable, int] = {part: k for k, part in enumerate(several)}
    first = {part: clients[parts.index(part)].shared for part in several}
    common = {_at(k) + name: v for part, k in number.items() for name, v in first[part].items()}

    def own(i: int) -> Tensors:
        client, part = clients[i], number.get(parts[i])
        tensors = {PERSONAL + k: v for k, v in client.personal.items()}
        if part is None:
            return tensors | {SHARED + k: v for k, v in client.shared.items()}
        return tensors | ({PART: torch.tensor(part)} if part else {})

    return Folded(common, OnDemand(len(clients), own))


def unfolded(own: Tensors, parts: Mapping[int, Tensors], model: Model | None) -> Client:
    """Return the client that ``folded`` took apart; ``parts``: what ``common_parts`` returns."""
    shared, personal = _under(SHARED, own), _under(PERSONAL, own)
    number = int(own.get(PART, 0))
    if shared or number not in parts:
        return Client(shared, personal, model)
    return Client(parts[number], personal, model, same=number)


def common_parts(common: Tensors) -> dict[int, Tensors]:
    """Return the common parts by their numbers."""
    parts: dict[int, Tensors] = {}
    for name in common:
        number, _, rest = name.partition("/") if name[:1].isdigit() else ("0", "", name)
        if rest.startswith(SHARED):
            parts.setdefault(int(number), {})[rest.removeprefix(SHARED)] = common[name]
    return parts


def with_constants(common: Tensors, constants: Tensors) -> Tensors:
    """Return what the common file of a run holds."""
    return common | {CONSTANT + k: v for k, v in constants.items()}


def constants_of(common: Tensors) -> Tensors:
    """Return the constants in the common file of a run."""
    return _under(CONSTANT, common)


def _at(number: int) -> str:
    return f"{number}/{SHARED}" if number else SHARED


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
