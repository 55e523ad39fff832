"""Features and targets of a table in the form that a model sees: texts one-hot, numbers standardized."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.memory import check_fits
from ..core.schema import SavedColumns, SharedColumns
from ..core.tensors import Integers, tree_map
from .columns import Table, TableColumn, doubles, numbered
from .readers.pictures import decoded

SHOWN = 5  # names in a sentence


def feature_notes(features: Mapping[str, tuple[str, ...] | None], standardize: str) -> list[str]:
    """Return what was done to the features: by column its texts, or None for a column of numbers."""
    texts = [name for name, found in features.items() if found is not None]
    numbers = len(features) - len(texts)
    width = sum(len(found) for found in features.values() if found is not None)
    said = [f"{few(texts)}: texts, encoded one-hot in {width} inputs"] if texts else []
    if numbers and standardize != "none":
        said.append(f"{numbers} column{'s' * (numbers > 1)} of numbers: standardized by the training rows")
    return said


def few(names: Sequence[str]) -> str:
    """Return the first of some names.

    >>> few(["a", "b"]), few(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, d, e and 1 more')
    """
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


_AS_STORED = {"images": "an image", "sequences": "one or more sequences"}  # kinds that no other kind is beside
MOST_TEXTS = 100  # different texts of a column that is encoded one-hot
Mask = NDArray[np.bool_]
Floats32 = NDArray[np.float32]
Texts = tuple[str, ...]


class EncodingOptions(NamedTuple):
    """What is done to the columns of a table."""

    fill: bool  # missing features by the mean of the training rows, texts by none
    standardize: Literal["features", "all", "none"]
    known: "Columns | None" = None  # how another table was encoded: then this one is, too


class RowBlock(NamedTuple):
    """Some of the rows, and the inputs that they become."""

    rows: Mask
    inputs: Floats32


class Scale(NamedTuple):
    """What numbers are standardized with: (value - mean) / std."""

    mean: float = 0.0
    std: float = 1.0
    constant: bool = False  # all values were equal: their deviation is 0, and std is 1, by which one can divide

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Scale":
        """Return mean and deviation of numbers.

        >>> Scale.of(np.full(6, 0.003))
        Scale(mean=0.003, std=1.0, constant=True)
        """
        if not len(values):
            return cls()
        if values.min() == values.max():  # rounding would give them another mean, and a deviation
            return cls(float(values[0]), constant=True)
        mean = float(values.mean(dtype=np.float64))
        return cls(mean, float(np.sqrt(np.square(values - mean).mean())))

    def of_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return standardized numbers."""
        return (values - self.mean) / self.std


@dataclass(frozen=True)
class Columns:
    """How the samples of a table were made: enough to make those of another table with the same columns.

    An input is (value - mean) / std; one of a text is 1 where the column holds it, and 0 elsewhere.
    """

    features: dict[str, Texts | None]  # by column, in the order of the inputs: its texts; None: a number
    scales: tuple[Scale, ...]  # of every input
    target: Texts
    classes: Texts | None  # their names; None: the targets are numbers
    target_scales: tuple[Scale, ...]  # of targets that are numbers
    fill: tuple[float, ...]  # what stands in every input for a missing value: the mean, and 0 for a text
    filled: bool  # whether missing values are filled; otherwise they are refused
    notes: tuple[str, ...] = ()  # what was done to the table, in sentences

    @classmethod
    def of(cls, saved: SavedColumns | SharedColumns) -> "Columns":
        """Return the columns that a run has saved, or on which members have agreed."""
        scales = tuple(map(_scale, saved["mean"], saved["std"]))
        features = {name: None if texts is None else tuple(texts) for name, texts in saved["features"].items()}
        classes = None if saved["classes"] is None else tuple(saved["classes"])
        of_targets = tuple(map(_scale, saved["target_mean"], saved["target_std"]))
        fill = tuple(saved.get("fill", saved["mean"]))
        found = cls(features, scales, tuple(saved["target"]), classes, of_targets, fill, "fill" in saved)
        numbers = 0 if classes is not None else len(found.target)
        if not len(found.inputs) == len(scales) == len(fill) or len(of_targets) != numbers:
            raise UserError("the columns in the run's config.json have too few means or too many: restore the file")
        return found

    def saved(self) -> SavedColumns:
        """Return what another table with the same columns is encoded with, as JSON has it."""
        saved: SavedColumns = {
            "features": {name: None if texts is None else list(texts) for name, texts in self.features.items()},
            "mean": [scale.mean for scale in self.scales],
            "std": [scale.std for scale in self.scales],
            "target": list(self.target),
            "classes": None if self.classes is None else list(self.classes),
            "target_mean": [scale.mean for scale in self.target_scales],
            "target_std": [scale.std for scale in self.target_scales],
        }
        return {**saved, "fill": list(self.fill)} if self.filled else saved

    @property
    def inputs(self) -> Texts:
        """The name of every input, such as age or ward=surgery."""
        each = ([k] if texts is None else [f"{k}={text}" for text in texts] for k, texts in self.features.items())
        return tuple(name for names in each for name in names)


def _scale(mean: float, std: float) -> Scale:
    """Return what numbers of this mean and deviation are standardized with."""
    return Scale(mean, std or 1.0, constant=std == 0)


class Encoded(NamedTuple):
    """The samples of a table: rows of float32, images of bytes, or sequences, which are a dictionary if several."""

    x: Any
    y: NDArray[Any]
    test_x: Any
    test_y: NDArray[Any]
    columns: Columns


def encode(
    table: Table, test: Mask, targets: Sequence[str], y: NDArray[Any], classes: Texts | None, options: EncodingOptions
) -> Encoded:
    """Return the samples of a table: its other columns are inputs; ``y``: the targets of all rows."""
    notes = [_target_note(targets, y, classes, options.standardize)]
    names = list(table.names)
    if not names:
        raise UserError(f"{table.where} has no column left to learn from: name fewer of them in drop")
    if kind := next(filter(table.of_kind, _AS_STORED), None):
        return _as_stored(table, test, targets, y, classes, options, kind)
    if options.known is not None:
        _check_alike(table, options.known)
    texts = {name: table.pop(name) for name in table.of_kind("texts")}
    kinds = {name: _categories(table.where, name, column, ~test) for name, column in texts.items()}
    features = {name: kinds.get(name) for name in names} if options.known is None else options.known.features
    width = sum(1 if found is None else len(found) for found in features.values())
    check_fits(4 * width * table.rows, f"{table.rows:,} rows of {width:,} inputs", "leave columns out with drop")
    x, test_x = (np.zeros((int(rows.sum()), width), np.float32) for rows in (~test, test))
    made: list[tuple[Scale, float]] = []  # of every input
    for name, found in features.items():
        column = table.pop(name) if found is None else texts.pop(name)
        notes += _missing(table.where, name, column, options.fill)
        parts = RowBlock(~test, x[:, len(made) :]), RowBlock(test, test_x[:, len(made) :])
        if found is None:
            known = None if options.known is None else (options.known.scales[len(made)], options.known.fill[len(made)])
            made.append(_fill_numbers(table.where, name, column.values, parts, options.standardize != "none", known))
        else:
            notes += _fill_texts(name, column, found, parts)
            made += [(Scale(), 0.0)] * len(found)
    notes += feature_notes(features, options.standardize)
    y, of_targets = _scaled_targets(y, classes, ~test, options)
    scales, fill = zip(*made, strict=True)
    columns = Columns(features, scales, tuple(targets), classes, tuple(of_targets), fill, options.fill, tuple(notes))
    return Encoded(x, y[~test], test_x, y[test], columns)


def _as_stored(
    table: Table,
    test: Mask,
    targets: Sequence[str],
    y: NDArray[Any],
    classes: Texts | None,
    options: EncodingOptions,
    kind: str,
) -> Encoded:
    """Return the samples of a table of images, which are normalized where they train, or of sequences."""
    names = table.of_kind(kind)[: 1 if kind == "images" else None]
    if others := [name for name in table.names if name not in names]:
        raise UserError(
            f"{table.where} has the columns {few(others)} beside the {kind} {few(names)}, and a sample is "
            f"{_AS_STORED[kind]} or a row of numbers: leave them out with drop={'+'.join(others)}"
        )
    if options.fill or options.standardize == "none":
        raise UserError(f"missing=mean and standardize=none are for columns of numbers, not for {kind}: leave them out")
    values = {name: table.pop(name).values for name in names}
    first = values[names[0]]
    x = decoded(first.tolist()) if kind == "images" else values if len(names) > 1 else first
    notes = (_target_note(targets, y, classes, options.standardize),)
    y, scales = _scaled_targets(y, classes, ~test, options)
    columns = Columns({}, (), tuple(targets), classes, tuple(scales), (), False, notes)
    inputs, test_inputs = (tree_map(lambda v, rows=rows: v[rows], x) for rows in (~test, test))
    return Encoded(inputs, y[~test], test_inputs, y[test], columns)


def _missing(where: str, name: str, column: TableColumn, fill: bool) -> Iterable[str]:
    """Yield what is to be said of missing values; refuse any unless they are to be filled."""
    missing, rows = int(column.missing.sum()), len(column.values)
    if missing == rows:
        raise UserError(f"column {name} of {where} is missing in all rows: leave it out with drop={name}")
    if missing and not fill:
        raise UserError(
            f"column {name} of {where} is missing in {missing:,} of {rows:,} rows: fill it there, add missing=mean, or "
            f"leave the column out with drop={name}"
        )
    if missing:
        yield f"{name} is missing in {missing:,} rows: filled as missing=mean says"


def _fill_numbers(
    where: str,
    name: str,
    values: NDArray[Any],
    parts: Sequence[RowBlock],
    standardize: bool,
    known: tuple[Scale, float] | None,
) -> tuple[Scale, float]:
    """Write a column of numbers to its place; return how it was scaled, and the mean that stands for missing ones."""
    values = doubles(where, name, values)
    if np.isinf(values).any():
        raise UserError(f"column {name} of {where} holds infinity: mend it, or leave it out with drop={name}")
    absent, train = np.isnan(values), parts[0].rows
    found = Scale.of(values[train & ~absent])
    scale, mean = known or (found if standardize else Scale(), found.mean)
    values = np.where(absent, mean, values) if absent.any() else values
    for rows, inputs in parts:
        inputs[:, 0] = scale.of_values(values[rows])
    return scale, mean


def _categories(where: str, name: str, column: TableColumn, train: Mask) -> Texts:
    """Return the texts that occur in the training rows."""
    occurs = np.unique(column.values[train])
    found = tuple((column.names or ())[i] for i in occurs.tolist() if i >= 0)
    most = min(MOST_TEXTS, max(2, int(train.sum()) // 2))  # a text of nearly every row says who it is, not what
    if len(found) > most:
        raise UserError(
            f"column {name} of {where} holds {len(found):,} different texts, such as {found[0]!r}, and at most "
            f"{most} are encoded: leave it out with drop={name}, or save numbers in it"
        )
    return found


def _fill_texts(name: str, column: TableColumn, found: Texts, parts: Sequence[RowBlock]) -> Iterable[str]:
    """Write a column of texts to its places, one per text; yield what is to be said of texts new in testing."""
    places = numbered(column, found)
    for rows, inputs in parts:
        one_hot(places[rows], inputs)
    strange = (places < 0) & (column.values >= 0)
    if strange.any():
        which = [(column.names or ())[i] for i in np.unique(column.values[strange]).tolist()]
        yield (
            f"{int(strange.sum()):,} test rows hold {few(which)} in {name}, which no training row does: they are 0 in "
            "all of its inputs"
        )


def one_hot(places: Integers, inputs: Floats32) -> None:
    """Write a 1 for the text of every row, by its place among the known texts; -1: the row holds none of them."""
    inputs[np.flatnonzero(places >= 0), places[places >= 0]] = 1


def _check_alike(table: Table, known: Columns) -> None:
    """Refuse a table whose columns are not those that a run has learned from."""
    names, texts = set(table.names), set(table.of_kind("texts"))
    for name, found in known.features.items():
        if name not in names:
            raise UserError(f"{table.where} has no column {name!r}, which the run has learned from: add it")
        if (found is not None) != (name in texts):
            kinds = ("texts", "numbers") if name in texts else ("numbers", "texts")
            raise UserError(
                f"column {name} of {table.where} holds {kinds[0]}, and {kinds[1]} in the run: make it alike"
            )
    strange = [name for name in table.names if name not in known.features]
    if strange:
        raise UserError(
            f"the run has not learned from {few(strange)} of {table.where}: remove what it does not know, or leave it "
            f"out, as in csv:FILE,target={'+'.join(known.target)},drop={'+'.join(strange[:3])}"
        )


def _scaled_targets(
    y: NDArray[Any], classes: Texts | None, train: Mask, options: EncodingOptions
) -> tuple[NDArray[Any], list[Scale]]:
    """Return the targets as a federation has them; numbers are standardized if that is asked for."""
    if classes is not None:
        if options.standardize == "all":
            raise UserError(
                "standardize=all is for targets that are numbers, and these are classes: leave it out, or add "
                "task=regression"
            )
        return y, []
    found = [Scale.of(column) if options.standardize == "all" else Scale() for column in y[train].T]
    scales = found if options.known is None else list(options.known.target_scales)
    mean, std = (np.array([scale[i] for scale in scales]) for i in (0, 1))
    return ((y - mean) / std).astype(np.float32), scales


def _target_note(targets: Sequence[str], y: NDArray[Any], classes: Texts | None, standardize: str) -> str:
    if classes is not None:
        return f"{targets[0]} has {len(classes)} classes: {few(classes)}"
    many = f"{len(targets)} targets, {few(targets)}, are numbers" if len(targets) > 1 else f"{targets[0]} is a number"
    scales = [Scale.of(column) for column in y.T]
    if standardize == "all":
        return f"{many}, standardized by the training rows"
    far = any(abs(scale.mean) > scale.std or not 0.1 <= scale.std <= 10 for scale in scales)
    first = f"mean {scales[0].mean:.4g}, deviation {scales[0].std:.4g}"
    return f"{many} ({first}; standardize=all makes it easier to learn)" if far else many
