"""The data of all clients: a federation says who holds what; ``from_tensors`` makes one of pairs or Datasets."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from ..core.annotations import PositiveInt
from ..core.arguments import checked, checked_class
from ..core.clients import client_name
from ..core.errors import UserError, noted
from ..core.memory import check_fits
from ..core.tensors import as_bytes, count, rows, stack, tree_map
from .encoding import Columns
from .inputs import (
    ColumnOrder,
    Inputs,
    Shape,
    as_inputs,
    as_labels,
    as_tensor,
    by_name,
    check_alike,
    check_inputs,
    name_of,
    names_of,
    sample_shape,
    shape_in_words,
)
from .transform import Masking, Transform

MOST_CLASSES = 1_000_000  # of fewer samples than that


@checked_class("class")
@dataclass(frozen=True, eq=False)
class Federation:
    """The data of n clients: client i trains on the rows ``train[i]`` and is tested on the rows ``test[i]``.

    >>> x, y, rows = torch.zeros(3, 4), torch.tensor([0, 1, 1]), torch.arange(3)
    >>> fed = Federation(x, y, x, y, train=(rows[:1], rows[1:]), test=(rows, rows), classes=2)
    >>> fed
    Federation(clients=2, samples=3, test_samples=3, input_shape=(4,), classes=2)
    >>> fed.class_counts().tolist()
    [[1, 0], [0, 2]]
    """

    x: Inputs  # [N, ...] every training sample; several inputs are a dictionary or a tuple of such tensors
    y: Tensor  # [N, ...] class labels, or floating targets
    test_x: Inputs  # [M, ...]
    test_y: Tensor  # [M, ...]
    train: tuple[Tensor, ...]  # per client: int64 rows of x
    test: tuple[Tensor, ...]  # per client: int64 rows of test_x; clients may share rows
    classes: PositiveInt | None  # None for floating targets
    origin: dict[str, object] = field(default_factory=dict)  # federate(**origin) builds the same federation
    transform: Transform | Masking | None = None  # makes inputs of stored samples; None: they are inputs
    validation: tuple[Tensor, ...] = ()  # per client: rows of x kept out of train, to choose by; empty: nobody has any
    names: tuple[str, ...] = ()  # of the clients, where the data name them
    columns: Columns | None = None  # how the samples were made of a table's columns

    def __post_init__(self) -> None:
        if not self.train or len(self.train) != len(self.test):
            n, m = len(self.train), len(self.test)
            raise UserError(f"give every client a train and a test part, not {n} train and {m} test parts")
        check_names(self.names, len(self.train))
        for kind, x, y, own in (("train", self.x, self.y, self.train), ("test", self.test_x, self.test_y, self.test)):
            parts = OwnedRows(own, self.names)
            check_inputs(f"the {kind} samples, {'x' if kind == 'train' else 'test_x'},", x)
            parts.check(kind, count(x))
            _check_samples(kind, x, y, parts)
            _check_targets(kind, y, self.classes, parts)
        OwnedRows(self.validation, self.names).check("validation", len(self.y))
        check_alike("test samples", self.test_x, "train samples", self.x)
        check_alike("test targets", self.test_y, "train targets", self.y)
        _check_transform(self.x, self.y, self.transform)
        if not any(map(len, self.train)):
            raise UserError("no client has a training sample: give at least one client some data")
        counts = 8 * len(self.train) * (self.classes or 0)
        check_fits(counts, f"counting {self.classes} classes", "number the classes from 0 without gaps")
        # A view of images with their channels last would bring that layout into every convolution.
        for name in ("x", "test_x"):
            object.__setattr__(self, name, tree_map(lambda v: v.contiguous(), getattr(self, name)))

    def __repr__(self) -> str:
        return (
            f"Federation(clients={self.clients}, samples={len(self.y)}, test_samples={len(self.test_y)}, "
            f"input_shape={shape_in_words(self.input_shape)}, classes={self.classes})"
        )

    @property
    def clients(self) -> int:
        """The number n of clients."""
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """The number of training samples of each client, [n]."""
        return torch.tensor([len(part) for part in self.train], device=self.y.device)

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample; of several inputs a dictionary or a tuple of shapes."""
        return sample_shape(self.x)

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: a score per class, or a number for every number of a target."""
        return self.y.shape[1:].numel() if self.classes is None else self.classes

    def sample(self, which: int | Tensor) -> Inputs:
        """Return copies of training samples as a model sees them in evaluation: the first ones, or some rows."""
        x = tree_map(lambda v: v[:which].clone(), self.x) if isinstance(which, int) else rows(self.x, which)
        return x if self.transform is None else self.transform.plain(x)

    def class_counts(self) -> Tensor:
        """Return [n, classes] the number of training samples of each class that each client holds."""
        return torch.stack([self.y[part].flatten().bincount(minlength=self.outputs) for part in self.train])

    def of_clients(self, which: NDArray[np.int64]) -> "Federation":
        """Return the federation of some clients, with their samples alone; nobody can make it again from a source."""
        train, test = ([parts[i] for i in which] for parts in (self.train, self.test))
        validation = [self.validation[i] for i in which] if self.validation else []
        kept, tested = (torch.unique(torch.cat(parts)) for parts in ([*train, *validation], test))

        def renumbered(parts: Sequence[Tensor], places: Tensor) -> tuple[Tensor, ...]:
            return tuple(torch.searchsorted(places, part) for part in parts)

        return replace(
            self,
            x=rows(self.x, kept),
            y=self.y[kept],
            test_x=rows(self.test_x, tested),
            test_y=self.test_y[tested],
            train=renumbered(train, kept),
            test=renumbered(test, tested),
            validation=renumbered(validation, kept),
            names=tuple(self.names[i] for i in which) if self.names else (),
        )

    @checked("function")
    def to(self, device: torch.device | str) -> "Federation":
        """Return the same federation with every tensor on ``device``."""
        samples = {
            name: tree_map(lambda v: v.to(device), getattr(self, name)) for name in ("x", "y", "test_x", "test_y")
        }
        parts = (self.train, self.test, self.validation)
        train, test, validation = (tuple(own.to(device) for own in each) for each in parts)
        return replace(self, **samples, train=train, test=test, validation=validation)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change with any value, type, shape, division or transform of the data."""
        digest = blake2b(f"{self.clients} {self.classes}".encode(), digest_size=8)
        if self.transform is not None:
            digest.update(repr(self.transform).encode())
        for part in (self.x, self.y, self.test_x, self.test_y, *self.train, *self.test, *self.validation):
            for name, tensor in by_name("", part).items():
                digest.update(f"{name}{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(as_bytes(tensor))
        return digest.hexdigest()


def check_names(names: Sequence[str], clients: int) -> None:
    """Refuse names that do not tell every client from the others."""
    if names and len(names) != clients:
        raise UserError(f"there are {clients} clients and {len(names)} names: give one name per client")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"two clients are called {twice}: give every client a name of its own")


class OwnedRows(NamedTuple):
    """The rows of every client, and what the clients are called."""

    rows: Sequence[Tensor]
    names: Sequence[str]

    def owner(self, wrong: Tensor) -> str:
        """Name the first client that holds a wrong sample, if somebody does; ``wrong``: whether each number is."""
        marked = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
        held = (client for client, part in enumerate(self.rows) if marked[part].any())
        return next((f" ({client_name(self.names, client)})" for client in held), "")

    def check(self, kind: str, samples: int) -> None:
        """Refuse what are no rows of so many samples."""
        for client, part in enumerate(self.rows):
            if part.dtype != torch.int64 or part.ndim != 1:
                who = client_name(self.names, client)
                raise UserError(f"the {kind} rows of {who} must be one list of int64 row numbers")
        rows = torch.cat(list(self.rows)) if self.rows else torch.empty(0)
        if len(rows) and (rows.min() < 0 or rows.max() >= samples):
            client = next(i for i, part in enumerate(self.rows) if ((part < 0) | (part >= samples)).any())
            raise UserError(f"{client_name(self.names, client)} points outside the {samples} {kind} samples")


def _check_samples(kind: str, x: Inputs, y: Tensor, parts: "OwnedRows") -> None:
    for what, values in (by_name("samples", x) | {"targets": y}).items():
        as_tensor(f"the {kind} {what}", values)  # refuses what has no numbers in memory
        if len(values) != len(y):
            raise UserError(f"there are {len(values)} {kind} {what} but {len(y)} targets: give one target a sample")
        # The extremes show any NaN or infinity without a mask as large as the data.
        if values.numel() and not torch.stack(values.aminmax()).isfinite().all():
            whose = parts.owner(~values.isfinite())
            raise UserError(f"the {kind} {what}{whose} contain NaN or infinity: clean them first")


def _check_targets(kind: str, y: Tensor, classes: int | None, parts: "OwnedRows") -> None:
    if y.is_floating_point() != (classes is None):
        fix = "leave classes out or give integer labels" if classes else "say how many classes"
        raise UserError(f"the {kind} targets are {name_of(y)}: {fix}")
    if classes is not None and y.numel() and (y.min() < 0 or y.max() >= classes):
        low, high = map(int, y.aminmax())
        whose = parts.owner((y < 0) | (y >= classes))
        raise UserError(f"{kind} labels run from {low} to {high}{whose}: {classes} classes are 0 to {classes - 1}")


def _check_transform(x: Inputs, y: Tensor, transform: Transform | Masking | None) -> None:
    if isinstance(transform, Masking):  # the source of a text has made it fit
        return
    if names_of(x):
        _check_several(x, transform)
        return
    raw = x.dtype == torch.uint8
    if raw and transform is None:
        raise UserError("the samples are uint8: say how to normalize them, as transform=Transform(mean, std)")
    if transform is None:
        return
    if not raw or x.ndim != 4:
        looks = f"{name_of(x)} of shape {tuple(x.shape[1:])}"
        raise UserError(f"a transform is for uint8 images of shape (C, H, W), not for {looks}: leave it out")
    if transform.random and y.shape[-2:] == x.shape[-2:]:
        raise UserError("crops and flips would move the images and not their masks: leave augment, pad and flip out")
    if len(transform.mean) != x.shape[1]:
        given = len(transform.mean)
        raise UserError(f"the images have {x.shape[1]} channels, mean and std {given}: give one number a channel")


def _check_several(x: Inputs, transform: Transform | None) -> None:
    """Refuse what is for one tensor of images."""
    if transform is not None:
        raise UserError("a transform is for samples of one tensor, and these have several inputs: leave it out")
    for name, v in by_name("samples", x).items():
        if v.dtype == torch.uint8:
            raise UserError(f"{name} are uint8, and several inputs are given as a model takes them: make them numbers")


def dataset_pair(what: str, dataset: Dataset[Any]) -> tuple[Any, Any]:
    """Return all samples and all targets of a Dataset; ``what``: whose they are, for sentences.

    Its transforms are applied once, now: what they draw stays as it was drawn.

    >>> x, y = dataset_pair("train", TensorDataset(torch.zeros(3, 2), torch.arange(3)))
    >>> tuple(x.shape), y.tolist()
    ((3, 2), [0, 1, 2])
    """
    if not isinstance(dataset, Sized):
        raise UserError(f"{what} is a {type(dataset).__name__} without a length: give a Dataset that knows its items")
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    items = [_item(what, dataset[i], i) for i in range(len(dataset))]
    if not items:
        raise UserError(f"{what} is a Dataset of no items: give one item or more, or tensors of no rows")
    with noted(f"It happened with the items of {what}."):
        x, y = stack(items)
    return x, y


def _item(what: str, item: Any, place: int) -> tuple[Inputs, Tensor]:
    """Return a sample and its target."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise UserError(f"item {place} of {what} is a {type(item).__name__}: a Dataset gives pairs (sample, target)")
    sample, target = (torch.tensor(part) if isinstance(part, bool | int | float) else part for part in item)
    return as_inputs(f"sample {place} of {what}", sample), as_tensor(f"target {place} of {what}", target)


Array = Tensor | NDArray[Any] | dict[str, Any] | tuple[Any, ...]
Pair = tuple[Array, Array] | Dataset[Any]


@checked("function", own=("train", "test"))
def from_tensors(
    train: Sequence[Pair],
    test: Sequence[Pair],
    classes: PositiveInt | None = None,
    transform: Transform | None = None,
    names: Sequence[str] = (),
) -> Federation:
    """Make a federation of one pair (samples, targets) per client: tensors, arrays, DataFrames, lists of numbers.

    A client may be a ``torch.utils.data.Dataset`` instead, whose items are pairs (sample, target). DataFrames have the
    same columns, which are brought into the order of the first one. Samples of several inputs are a dictionary of such
    arrays, which a model takes as keyword arguments, or a tuple, which it takes in order.

    Samples and floating targets keep their dtype; integer targets are class labels and become int64. ``classes``
    is one more than the largest label unless given. Images of type uint8 are stored as they are; ``transform`` says
    how a batch of them becomes what the model sees. ``names``: what the clients are called in tables and sentences.

    >>> x, y = torch.rand(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    >>> fed = from_tensors(train=[(x, y), (x[:1], y[:1])], test=[(x, y), (x, y)])
    >>> fed.sizes.tolist(), fed.classes, fed.x.dtype
    ([4, 1], 3, torch.float64)
    """
    order = ColumnOrder()
    x, y, parts = _concatenated("train", train, names, order)
    test_x, test_y, test_parts = _concatenated("test", test, names, order)
    if classes is None and not y.is_floating_point():
        largest = [int(labels.max()) for labels in (y, test_y) if labels.numel()]
        classes = max(largest, default=0) + 1
        if classes > max(MOST_CLASSES, len(y) + len(test_y)):
            raise UserError(f"the largest label is {classes - 1}: number the classes from 0, or say how many there are")
    return Federation(x, y, test_x, test_y, parts, test_parts, classes, transform=transform, names=tuple(names))


def _concatenated(
    kind: str, pairs: Sequence[Pair], names: Sequence[str], order: ColumnOrder
) -> tuple[Inputs, Tensor, tuple[Tensor, ...]]:
    """Return all pairs end to end, and the rows of each client."""
    if not isinstance(pairs, Sequence) or isinstance(pairs, str | bytes):
        raise UserError(f"{kind} is a {type(pairs).__name__}: give a list of pairs (samples, targets), one per client")
    if not pairs:
        raise UserError(f"{kind} is empty: give one pair (samples, targets) per client")
    check_names(names, len(pairs))
    called = [client_name(names, client) for client in range(len(pairs))]
    tensors = [_pair(kind, who, pair, order) for who, pair in zip(called, pairs, strict=True)]
    for who, pair in zip(called, tensors, strict=True):
        for what, mine, first in zip(("samples", "targets"), pair, tensors[0], strict=True):
            check_alike(f"{kind} {what} of {who}", mine, f"those of {called[0]}", first)
    xs, ys = zip(*tensors, strict=True)
    rows = torch.arange(sum(map(len, ys)), device=ys[0].device)
    x: Inputs = tree_map(lambda *parts: torch.cat(parts), *xs)
    return x, torch.cat(ys), torch.split(rows, [len(y) for y in ys])


def _pair(kind: str, who: str, pair: Pair, order: ColumnOrder) -> tuple[Inputs, Tensor]:
    if isinstance(pair, Dataset):
        pair = dataset_pair(f"{kind} of {who}", pair)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(
            f"{kind} of {who} must be a pair (samples, targets) or a torch Dataset, not a {type(pair).__name__}"
        )
    whose = f"{kind} of {who}"
    x = as_inputs(f"the {kind} samples of {who}", pair[0], order, whose)
    y = as_labels(f"the {kind} targets of {who}", order.aligned("targets", whose, pair[1]))
    for name, v in by_name(whose, x).items():
        if not v.ndim or not y.ndim or len(v) != len(y):
            shapes = f"{tuple(v.shape)} and {tuple(y.shape)}"
            raise UserError(f"{name} needs as many samples as targets, not shapes {shapes}")
    return x, y
