"""A table as training and test samples: which column is what, which rows are for testing, and texts as numbers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.annotations import Range
from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.rng import generator
from ..core.tensors import Integers, tree_map
from .columns import Table, TableColumn, doubles, numbered, one_kind
from .encoding import Columns, EncodingOptions, encode
from .pool import Natural, Pool, rows_by_label
from .readers.images import channel_stats
from .validation import stratified

Task = Literal["auto", "classification", "regression"]
Names = str | tuple[str, ...]
FRACTION = 0.25  # of the rows for testing, as for other data without test samples
_TRAIN, _TEST = "train", "test"


@checked_class("class")
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What the columns of a table are. Several columns are a list, or a text with + between them.

    target: the column to be learned; several of them are numbers that are learned together (0 and 1 for many labels).
    client: the column that names the client of every row; without it a partition divides the rows.
    drop: columns that are left out; all others are features. task: classification or regression; by default texts and
    integers are classes, and other numbers and several columns are not. Test rows are those of a second file,
    those that test_column marks with "test" beside "train", or a fraction of every client's rows, in its proportions of
    classes, drawn by the seed: a quarter unless test_fraction says another. missing: "mean" fills missing features by
    the mean of the training rows, texts by none. standardize: features by mean and deviation of the training rows,
    "all" for targets that are numbers, too, or "none".
    """

    target: Names
    client: str = ""
    drop: Names = ""
    task: Task = "auto"
    test_fraction: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    test_column: str = ""
    missing: Literal["refuse", "mean"] = "refuse"
    standardize: Literal["features", "all", "none"] = "features"


class Target(NamedTuple):
    """What is learned: the numbers of classes [N], or numbers [N, k]."""

    y: NDArray[Any]
    classes: tuple[str, ...] | None


def table_source(read: Callable[..., Table]) -> Callable[..., Pool]:
    """Return the source that reads a table: it takes what ``read`` takes, and what the columns of any table are."""
    own, common = inspect.signature(read).parameters, inspect.signature(TableOptions).parameters

    @wraps(read)
    def load(seed: int, known: Columns | None = None, **given: Any) -> Pool:
        options = TableOptions(**{k: v for k, v in given.items() if k in common})
        table = read(**{k: v for k, v in given.items() if k in own})
        if known is not None:
            options = _as_far_as_there(table, options)
        pool = table_pool(seed, table, options, known)
        table.close()
        return pool

    order = [*own.values(), *common.values()]
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in order[1:]]
    first = inspect.Parameter("seed", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    load.__signature__ = inspect.Signature([first, order[0], *named])  # type: ignore[attr-defined]
    load.__annotations__ = {"seed": int} | get_type_hints(read, include_extras=True) | _hints()
    return load


def _hints() -> dict[str, Any]:
    hints = get_type_hints(TableOptions, include_extras=True)
    return {field.name: hints[field.name] for field in fields(TableOptions)}


def _as_far_as_there(table: Table, options: TableOptions) -> TableOptions:
    """Leave out what a run has left out, and its column of clients: another site's table may have them or not."""
    table.drop([*_listed(options.drop), options.client])
    return replace(options, drop="", client="", test_column=options.test_column * (options.test_column in table.names))


def table_pool(seed: int, table: Table, options: TableOptions, known: Columns | None = None) -> Pool:
    """Return the samples of a table, with the clients that a column names; ``known``: those of a run, to be alike."""
    targets, dropped = (_listed(names) for names in (options.target, options.drop))
    marked = [name for name in (options.client, options.test_column) if name]
    for option, names in (("target", targets), ("drop", dropped), ("client or test_column", marked)):
        table.check(option, names)
    _check_roles(targets, marked, dropped)
    table.drop(dropped)
    where = table.where
    client = one_kind(_complete(where, options.client, table.pop(options.client))) if options.client else None
    told = _complete(where, options.test_column, table.pop(options.test_column)) if options.test_column else None
    found = [_complete(where, name, table.pop(name)) for name in targets]
    target = _target(where, targets, found, options.task) if known is None else _like(where, targets, found, known)
    owners = np.zeros(table.rows, np.int64) if client is None else client.values
    test = _test_rows(table, options, seed, owners, target, told)
    if client is not None and client.names is not None:
        _check_everybody(where, client.names, owners, test)
    encoding = EncodingOptions(options.missing == "mean", options.standardize, known)
    encoded = encode(table, test, targets, target.y, target.classes, encoding)
    natural = None if client is None else _natural(client, test)
    x, y, test_x, test_y = tree_map(torch.from_numpy, encoded[:4])
    classes = None if target.classes is None else len(target.classes)
    images = isinstance(x, torch.Tensor) and x.dtype == torch.uint8
    transform = channel_stats(encoded.x).transform(augment=False) if images else None
    return Pool(x, y, test_x, test_y, classes, None, transform, natural, encoded.columns)


def _listed(names: Names) -> tuple[str, ...]:
    return tuple(filter(None, names.split("+"))) if isinstance(names, str) else names


def _check_roles(targets: Sequence[str], marked: Sequence[str], dropped: Sequence[str]) -> None:
    roles = [*targets, *marked, *dropped]
    if not targets:
        raise UserError("a table needs a target: name the column that is to be learned, as in target=outcome")
    twice = next((name for i, name in enumerate(roles) if name in roles[:i]), None)
    if twice is not None:
        raise UserError(f"column {twice} has two roles: name it once, as target, client, test_column or in drop")


def _complete(where: str, name: str, column: TableColumn) -> TableColumn:
    """Refuse a column that must have one value in every row and does not."""
    if column.values.ndim > 1:
        raise UserError(f"column {name} of {where} holds sequences, which are features: name a column of single values")
    missing = int(column.missing.sum())
    if missing:
        raise UserError(f"column {name} of {where} is missing in {missing:,} rows: fill it there, or remove these rows")
    return column


def _target(where: str, names: Sequence[str], columns: Sequence[TableColumn], task: Task) -> Target:
    """Return the classes of one column, or the numbers of one or several."""
    for name, column in zip(names, columns, strict=True):
        if not len(column.values) or (column.values == column.values[0]).all():
            raise UserError(f"target {name} of {where} is the same in all rows: name a column that varies")
        if column.names is not None and (task == "regression" or len(names) > 1):
            raise UserError(
                f"target {name} of {where} holds texts, such as {column.names[0]!r}: name columns of numbers, or one "
                "column of classes without task=regression"
            )
    kinds = columns[0].names is not None or columns[0].values.dtype.kind in "iub"
    if task == "classification" and len(names) > 1:
        raise UserError(f"classes are of one column, and target names {len(names)}: leave task=classification out")
    if len(names) == 1 and (task == "classification" or (task == "auto" and kinds)):
        found = one_kind(columns[0])
        return Target(found.values, found.names)
    return Target(_numbers(where, names, columns), None)


def _numbers(where: str, names: Sequence[str], columns: Sequence[TableColumn]) -> NDArray[np.float64]:
    """Return the targets of all rows, a column each."""
    return np.stack([doubles(where, name, c.values) for name, c in zip(names, columns, strict=True)], 1)


def _like(where: str, names: Sequence[str], columns: Sequence[TableColumn], known: Columns) -> Target:
    """Return targets of the kind that a run has learned; there may be one class only."""
    if known.classes is None:
        if any(column.names is not None for column in columns):
            raise UserError(f"target {names[0]} of {where} holds texts, and the run has learned numbers: make it alike")
        return Target(_numbers(where, names, columns), None)
    kinds = one_kind(columns[0])
    strange = [name for name in kinds.names or () if name not in known.classes]
    if strange:
        raise UserError(
            f"target {names[0]} of {where} holds {strange[0]!r}, which the run does not know: its classes are "
            f"{', '.join(known.classes)}"
        )
    return Target(numbered(kinds, known.classes), known.classes)


def _test_rows(
    table: Table, options: TableOptions, seed: int, owners: Integers, target: Target, told: TableColumn | None
) -> NDArray[np.bool_]:
    """Mark the rows for testing."""
    files, fraction = len(table.files) > 1, options.test_fraction
    ways = {"test_file": files, "test_column": told is not None, "test_fraction": fraction is not None}
    given = [name for name, holds in ways.items() if holds]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} both say which rows are for testing: keep one of them")
    if files:
        return np.repeat([False, True], table.sizes)
    if told is not None:
        return _marked(table.where, options.test_column, told)
    return _apart(owners, None if target.classes is None else target.y, fraction or FRACTION, seed)


def _marked(where: str, name: str, column: TableColumn) -> NDArray[np.bool_]:
    found = one_kind(column).names or ()
    if sorted(found) != [_TEST, _TRAIN]:
        held = ", ".join(found[:5])
        raise UserError(f"test_column {name} of {where} holds {held}: it must say {_TRAIN} or {_TEST} of every row")
    test: NDArray[np.bool_] = column.values == found.index(_TEST)
    return test


def _apart(owners: Integers, labels: Integers | None, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Mark a fraction of every owner's rows, in its own proportions of the labels."""
    chosen = np.zeros(len(owners), bool)
    for owner, rows in rows_by_label(owners).items():
        own = None if labels is None else labels[rows]
        chosen[rows] = stratified(own, len(rows), fraction, generator(seed, "test-rows", owner))
    return chosen


def _check_everybody(where: str, names: Sequence[str], owners: Integers, test: NDArray[np.bool_]) -> None:
    """Refuse a client that has rows for one purpose only."""
    counts = np.stack([np.bincount(owners[rows], minlength=len(names)) for rows in (~test, test)])
    for kind, have in zip(("training", "test"), counts, strict=True):
        without = np.flatnonzero(have == 0)
        if len(without):
            others = f" (and {len(without) - 1} others)" if len(without) > 1 else ""
            raise UserError(
                f"client {names[without[0]]}{others} of {where} has no {kind} rows: give it some, or leave it out"
            )


def _natural(client: TableColumn, test: NDArray[np.bool_]) -> Natural:
    """Return the rows of every client, counted among the training and among the test rows."""
    names = client.names or ()
    train, tested = (rows_by_label(client.values[rows]) for rows in (~test, test))
    every = range(len(names))
    return Natural(names, tuple(train[i] for i in every), tuple(tested[i] for i in every))
