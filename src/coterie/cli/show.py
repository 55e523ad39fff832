"""Printing results: a table for people, or Markdown or LaTeX alone on the standard output, to be redirected."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RequestError, unknown
from .formats import latex, markdown
from .recipe_show import wide_console
from .results import Result, columns
from .tables import BEST, fitting, needed, protocol, results_table
from .verdict import verdict

WRITERS = {"markdown": markdown, "latex": latex}
TABLE = "table"


@dataclass(frozen=True)
class Style:
    """How results are to be shown."""

    format: str = TABLE
    target: float = 80.0  # % of mean personal accuracy after mixing, for the column of rounds

    def __post_init__(self) -> None:
        if self.format not in (TABLE, *WRITERS):
            raise unknown("format", self.format, (TABLE, *WRITERS))
        if not 0 < self.target <= 100:
            raise RequestError(f"--target {self.target:g} is no accuracy in %: choose one above 0 and up to 100")


def show(results: Sequence[Result], config: dict[str, Any], folder: Path, style: Style) -> None:
    """The results in the chosen format, and where the files lie."""
    if style.format == TABLE:
        _print_table(results, config, style.target)
        wide_console().print(f"results: {folder}", markup=False, soft_wrap=True)
        return
    every = columns(results, style.target)
    notes = protocol(results, config["data"]["clients"], config["rounds"], every, "Bold:")
    print(WRITERS[style.format](results, every, verdict(results), [*notes, _engine(config)]))
    print(f"results: {folder}", file=sys.stderr)


def _print_table(results: Sequence[Result], config: dict[str, Any], target: float) -> None:
    """As many columns as have room, what the test says, what the numbers are, and who computed them."""
    console, every = wide_console(), columns(results, target)
    shown = fitting(results, every, console.width)
    table = results_table(results, shown)
    console.print(table, width=needed(table), crop=False)
    for sentence in verdict(results):
        console.print(sentence, markup=False, soft_wrap=True)
    notes = protocol(results, config["data"]["clients"], config["rounds"], shown, BEST)
    for note in (*notes, _engine(config)):
        console.print(note, style="dim", markup=False, soft_wrap=True)
    left_out = [c.title for c in every if c not in shown]
    if left_out:
        room = f"no room in {console.width} characters for: {', '.join(left_out)} (a wider terminal shows them)"
        console.print(room, style="dim", markup=False, soft_wrap=True)


def _engine(config: dict[str, Any]) -> str:
    return f"engine: {config['engine']} on {config['device']} ({config['engine_reason']})"
