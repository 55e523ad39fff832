"""The headline table in HTML, read without any script and sorted with one."""

from collections.abc import Sequence
from html import escape

from .groups import Method, Setup
from .headline import Cell, Column, columns

STAR = '<span class="star" title="best of this column">★<span class="unseen"> best</span></span>'


def headline_table(setup: Setup) -> str:
    """The headline table; it can be sorted by its headings, and read without."""
    wanted = columns(setup)
    heads = "".join(_head(c) for c in wanted)
    best = [c.winner(setup.methods) for c in wanted]
    rows = "".join(_row(m, wanted, best) for m in setup.methods)
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="Results of all methods">
<table class="headline sortable"><thead><tr>{_heading("method", "", "text")}{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="caption">{_hint(setup)} <span class="said" aria-live="polite"></span></p>"""


def _hint(setup: Setup) -> str:
    """How to read it, where there is more than one row."""
    if len(setup.methods) < 2:
        return ""
    return "★ marks the best value of a column. A heading sorts by it, once more the other way round."


def _head(column: Column) -> str:
    return _heading(column.title, column.unit, "best-high" if column.best is max else "best-low")


def _heading(title: str, unit: str, kind: str) -> str:
    small = f"<small>{escape(unit)}</small>" if unit else ""
    return f'<th scope="col" data-kind="{kind}"><button type="button">{escape(title)}</button>{small}</th>'


def _row(method: Method, wanted: Sequence[Column], best: Sequence[float | None]) -> str:
    cells = "".join(_cell(column.cell(method), winner) for column, winner in zip(wanted, best, strict=True))
    return f'<tr><th scope="row">{escape(method.label)}</th>{cells}</tr>'


def _cell(cell: Cell, winner: float | None) -> str:
    """A number with its spread below it; the best one is marked by more than a colour."""
    won = cell.value is not None and cell.value == winner
    attributes = ("" if cell.value is None else f' data-value="{cell.value!r}"') + (' class="best"' if won else "")
    beside = "".join(f"<small>{escape(part)}</small>" for part in cell.small)
    return f'<td{attributes}><span class="number">{STAR if won else ""}{escape(cell.text)}</span>{beside}</td>'
