"""Data sets of the Hugging Face library ``datasets``, as ``save_to_disk`` writes them: columns, images or sequences."""

from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import UserError
from ...core.extras import import_extra
from ...core.files import user_path
from ..columns import Lazy, Table, TableColumn
from .arrow import arrow_table
from .pictures import ImageBytes

_TRAIN, _TEST = "train", "test"


def huggingface(path: str, test_split: str = "") -> Table:
    """Read a data set that ``save_to_disk`` wrote: one part, or a part ``train`` and others.

    test_split: the part for testing; by default ``test``, if there is one.
    """
    library = import_extra("datasets", "huggingface", "a Hugging Face data set")
    try:
        found = library.load_from_disk(str(user_path(path)))
    except Exception as error:  # what is damaged fails in many ways
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read ({said}): name a folder that save_to_disk wrote") from error
    if not isinstance(found, library.DatasetDict):
        if test_split:
            raise UserError(f"{path} has one part only: leave test_split={test_split} out")
        return _table(library, [path], [found])
    wanted = test_split or (_TEST if _TEST in found else "")
    for name in filter(None, (_TRAIN, wanted)):
        if name not in found:
            raise UserError(f"{path} has no part {name!r}, only {', '.join(found)}: save it so, or name another")
    parts = list(filter(None, (_TRAIN, wanted)))
    return _table(library, [str(Path(path) / name) for name in parts], [found[name] for name in parts])


def _table(library: Any, files: list[str], parts: list[Any]) -> Table:
    """Return the columns of all parts; labels keep the names and the order that the data set gives them."""
    table = arrow_table(files, [part.with_format("arrow")[:] for part in parts])
    for file, part, columns in zip(files, parts, table.parts, strict=True):
        for name, feature in part.features.items():
            if isinstance(feature, library.ClassLabel):
                columns[name] = Lazy("texts", _named(columns[name], feature.names))
            elif isinstance(feature, library.Image):
                columns[name] = Lazy("images", _pictures(part, file, name))
    return table


def _named(column: Lazy, names: list[str]) -> Any:
    def read() -> TableColumn:
        values = column.read().values
        return TableColumn(np.where(np.isnan(values), -1, values).astype(np.int64), tuple(names))

    return read


def _pictures(part: Any, file: str, name: str) -> Any:
    """Return a function that reads the files of images, as they are stored."""

    def read() -> TableColumn:
        stored = part.with_format("arrow")[:].column(name).to_pylist()
        found = np.empty(len(stored), object)
        for row, image in enumerate(stored):
            where = f"{name} in row {row} of {file}"
            if image is None or (image["bytes"] is None and not image["path"]):
                raise UserError(f"the image {where} is missing: remove the row")
            found[row] = Path(image["path"]) if image["bytes"] is None else ImageBytes(where, image["bytes"])
        return TableColumn(found)

    return read
