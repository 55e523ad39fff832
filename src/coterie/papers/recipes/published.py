"""The published numbers, each with how sure it is; they are shown beside ours and never serve as a pass mark."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ...core.arguments import checked


class PublishedNumber(NamedTuple):
    """One number of a paper."""

    paper: str
    table: str
    recipe: str
    case: int | None  # counted from 1; None: it belongs to no single case, ``reason`` says why
    method: str  # of the recipe; empty: it belongs to no single one
    printed: str  # the method's name in the paper
    data: str
    setting: str
    metric: str
    value: float | None  # None: not reached, or not run
    std: float | None
    certainty: str  # printed, reconstructed (cells ran together), doubtful, uncertain or missing
    note: str
    reason: str  # why no single run gives it


@checked("function")
@cache
def published_numbers(recipe: str | None = None) -> tuple[PublishedNumber, ...]:
    """Return all published numbers, or those of one recipe.

    >>> [p.value for p in published_numbers("dfedalt-t1") if p.method == "dfedalt"][:2]
    [88.85, 86.5]
    """
    if recipe is not None:
        return tuple(p for p in published_numbers() if p.recipe == recipe)
    with files(__package__).joinpath("files/published.csv").open(encoding="utf-8") as file:
        return tuple(_from_row(row) for row in csv.DictReader(file))


def _from_row(raw: dict[str, str]) -> PublishedNumber:
    numbers = {k: float(raw[k]) if raw[k] else None for k in ("value", "std")}
    case = int(raw["case"]) if raw["case"] else None
    return PublishedNumber(**{**raw, **numbers, "case": case})  # type: ignore[arg-type]
