"""How all members make samples of their tables: columns.json, made of what each tells of its own columns.

It holds names of columns, texts that occur in them, means and deviations, and no rows.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from ...core.checked_json import read_json
from ...core.errors import DamagedFileError, UserError
from ...core.files import user_path
from ...core.schema import SharedColumns
from ...core.spec import parameters, parse, spelled
from ...data import SOURCES
from ...data.encoding import Columns, Scale
from ...data.sources import one_client

SUFFIX = ".json"


def read_columns(path: Path) -> SharedColumns:
    """Read a file that ``coterie peer columns`` has written."""
    if not path.exists():
        raise UserError(f"there is no file {path}: make it of all members' tables with coterie peer columns")
    try:
        found = read_json(path, SharedColumns)
    except DamagedFileError as error:
        raise UserError(f"{error.found}: make it again with coterie peer columns") from error
    Columns.of(found)  # refuses numbers that do not fit
    return found


def columns_of(text: str, seed: int) -> SharedColumns:
    """Return the columns of a table, as in csv:FILE,target=y, or those that a file tells of."""
    if text.endswith(SUFFIX):
        return read_columns(user_path(text))
    spec = parse(spelled(text, SOURCES))
    table = spec.name in SOURCES and "target" in parameters(SOURCES[spec.name])
    found = one_client(spec, seed) if table else None
    if found is None or found.columns is None:
        raise UserError(f"{text} is no table: write csv:FILE,target=COLUMN, or name a file of columns, .json")
    std, target_std = map(_deviations, (found.columns.scales, found.columns.target_scales))
    saved, fill = found.columns.saved(), list(found.columns.fill)  # another member may have missing values
    return {**saved, "std": std, "target_std": target_std, "fill": fill, "rows": len(found.y)}


def _deviations(scales: Sequence[Scale]) -> list[float]:
    return [0.0 if scale.constant else scale.std for scale in scales]


def merged(parts: Sequence[SharedColumns]) -> SharedColumns:
    """Return the columns of several tables as if they were one: all texts, and means and deviations of all rows."""
    first = parts[0]
    for part in parts[1:]:
        _check_alike(first, part)
    features = {name: _texts([part["features"][name] for part in parts]) for name in first["features"]}
    inputs = [_numbers(part) for part in parts]
    scales: list[tuple[float, float, float]] = []
    for name, texts in features.items():
        if texts is None:
            scale = _pooled(parts, [(mean, std) for mean, std, _ in (own[name] for own in inputs)])
            fill, _ = _pooled(parts, [(own[name][2], 0.0) for own in inputs])
            scales.append((*scale, fill))
        else:
            scales += [(0.0, 1.0, 0.0)] * len(texts)
    count = len(first["target_mean"])
    targets = [_pooled(parts, [(p["target_mean"][i], p["target_std"][i]) for p in parts]) for i in range(count)]
    return {
        "features": features,
        "mean": [mean for mean, _, _ in scales],
        "std": [std for _, std, _ in scales],
        "fill": [fill for _, _, fill in scales],
        "target": first["target"],
        "classes": _texts([part["classes"] for part in parts]),
        "target_mean": [mean for mean, _ in targets],
        "target_std": [std for _, std in targets],
        "rows": sum(part["rows"] for part in parts),
    }


def _check_alike(one: SharedColumns, other: SharedColumns) -> None:
    """Refuse tables that do not have the same columns of the same kinds."""
    for name in one["features"].keys() ^ other["features"].keys():
        raise UserError(f"only some of the tables have the column {name}: make them alike, or leave it out with drop")
    for name, texts in one["features"].items():
        if (texts is None) != (other["features"][name] is None):
            raise UserError(f"column {name} holds numbers in some tables and texts in others: make them alike")
    if one["target"] != other["target"] or (one["classes"] is None) != (other["classes"] is None):
        raise UserError("the tables have different targets: name the same target and task for each")


def _texts(each: Sequence[list[str] | None]) -> list[str] | None:
    """Return all texts of a column in their order; None: it holds numbers."""
    found = sorted({text for texts in each for text in texts or ()})
    return None if each[0] is None else found


def _numbers(part: SharedColumns) -> dict[str, tuple[float, float, float]]:
    """Return mean and deviation of every column of numbers, and what stands for a missing one."""
    columns = Columns.of(part)
    return dict(zip(columns.inputs, zip(part["mean"], part["std"], columns.fill, strict=True), strict=True))


def _pooled(parts: Sequence[SharedColumns], scales: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return mean and deviation of the rows of all parts."""
    if len(set(scales)) == 1:  # rounding would give equal values another mean, and a deviation
        return scales[0]
    rows = [part["rows"] for part in parts]
    mean = math.fsum(n * m for n, (m, _) in zip(rows, scales, strict=True)) / sum(rows)
    square = math.fsum(n * (s**2 + (m - mean) ** 2) for n, (m, s) in zip(rows, scales, strict=True)) / sum(rows)
    return mean, math.sqrt(square)
