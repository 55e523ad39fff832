"""Tables of one's own as federations, in Python: frames of pandas, and files by their kind."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.annotations import PositiveInt
from ..core.arguments import checked
from ..core.errors import UserError
from ..core.spec import Spec, bind, parameters
from .columns import Lazy, Table, TableColumn, check_columns, text_column
from .federation import Federation
from .readers.arrow import is_sequence, pyarrow, sequences
from .sources import default_partition, divided, federate
from .tables import Names, TableOptions, table_pool

_NUMBERS = "biuf"


@checked("function")
def from_frame(
    frame: Any,
    *,
    target: Names,
    client: str = "",
    test: Any | None = None,
    clients: PositiveInt | None = None,
    partition: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Federation:
    """Make a federation of a frame of pandas; ``test``: another one, with the rows for testing.

    ``options`` are those of ``TableOptions``: drop, task, test_fraction, test_column, missing, standardize.

    >>> import pandas
    >>> frame = pandas.DataFrame({"site": ["a", "b"] * 6, "age": range(12), "ill": [0, 0, 1, 1] * 3})
    >>> fed = from_frame(frame, target="ill", client="site")
    >>> fed.names, fed.sizes.tolist(), [len(rows) for rows in fed.test]
    (('a', 'b'), [4, 4], [2, 2])
    """
    given = {"target": target, "client": client, **options}
    found = bind("function", Spec("from_frame", (), given), parameters(TableOptions, filled=("self",)))
    frames = {"the frame": frame} | ({} if test is None else {"the test frame": test})
    parts = [_columns(name, one) for name, one in frames.items()]
    table = Table(list(frames), parts, [len(one) for one in frames.values()])
    pool = table_pool(seed, table, TableOptions(**found))
    return divided(pool, table.where, clients, partition or default_partition(pool), seed, {})


def _columns(where: str, frame: Any) -> dict[str, Lazy]:
    """Return the columns of a frame of pandas."""
    if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
        raise UserError(f"{where} is a {type(frame).__name__}: give a DataFrame of pandas")
    names = list(map(str, frame.columns))
    check_columns(where, names)
    if not len(frame):
        raise UserError(f"{where} has no rows: give one that has some")
    return {name: _lazy(where, name, frame.iloc[:, i]) for i, name in enumerate(names)}


def _lazy(where: str, name: str, series: Any) -> Lazy:
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        return Lazy("numbers", partial(_column, where, name, series))
    if any(isinstance(value, list | tuple | np.ndarray) for value in series.dropna().iloc[:1]):
        return Lazy("sequences", partial(_lists, where, name, series))
    return Lazy("texts", partial(_column, where, name, series))


def _lists(where: str, name: str, series: Any) -> TableColumn:
    """Return a column of lists by way of Arrow, as a file's is."""
    library = pyarrow("columns of lists")
    try:
        column = library.chunked_array([library.array(series.tolist(), from_pandas=True)])
    except library.ArrowException:
        column = None
    if column is None or not is_sequence(library.types, column.type):
        raise UserError(
            f"column {name} of {where} holds lists of other values than numbers: make them numbers, or leave it out "
            f"with drop={name!r}"
        )
    return sequences(library, where, name, column)


def _column(where: str, name: str, series: Any) -> TableColumn:
    if getattr(series.dtype, "kind", "O") in _NUMBERS:
        missing = bool(series.isna().any())
        return TableColumn(series.to_numpy(np.float64, na_value=np.nan) if missing else np.asarray(series.to_numpy()))
    codes, kinds = series.factorize()
    strange = next((kind for kind in kinds if not isinstance(kind, str)), None)
    if strange is not None:
        raise UserError(
            f"column {name} of {where} holds a {type(strange).__name__}, neither numbers nor texts: make it a number, "
            f"or leave it out with drop={name!r}"
        )
    return text_column(codes, list(kinds))


@checked("function")
def from_csv(
    path: str | Path,
    *,
    target: Names,
    client: str = "",
    clients: PositiveInt | None = None,
    partition: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Federation:
    """Make a federation of a CSV file, as ``federate("csv", path=...)`` does.

    ``options`` are those of ``TableOptions``, and test_file, delimiter and decimal.
    """
    return federate("csv", clients, partition, seed, path=str(path), target=target, client=client, **options)


@checked("function")
def from_parquet(
    path: str | Path,
    *,
    target: Names,
    client: str = "",
    clients: PositiveInt | None = None,
    partition: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Federation:
    """Make a federation of a Parquet file, as ``federate("parquet", path=...)`` does.

    ``options`` are those of ``TableOptions``, and test_file.
    """
    return federate("parquet", clients, partition, seed, path=str(path), target=target, client=client, **options)


@checked("function")
def from_huggingface(
    path: str | Path,
    *,
    target: Names,
    client: str = "",
    clients: PositiveInt | None = None,
    partition: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Federation:
    """Make a federation of a data set that the library ``datasets`` saved on disk, of columns or of images.

    ``options`` are those of ``TableOptions``, and test_split.
    """
    return federate("huggingface", clients, partition, seed, path=str(path), target=target, client=client, **options)
