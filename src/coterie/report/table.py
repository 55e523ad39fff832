"""The headline table in HTML, read without any script and sorted with one."""

from html import escape

from ..measure.compare import Cell, Column, Comparison

STAR = '<span class="star" title="best of this column">★<span class="unseen"> best</span></span>'


def headline_table(comparison: Comparison) -> str:
    """The headline table; it can be sorted by its headings, and read without."""
    heads = "".join(_head(c) for c in comparison.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, cells))}</tr>' for label, cells in comparison.rows
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="Results of all methods">
<table class="headline sortable"><thead><tr>{_heading("method", "", "text")}{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="caption">{_hint(comparison)} <span class="said" aria-live="polite"></span></p>"""


def _hint(comparison: Comparison) -> str:
    """How to read it, where the table has more than the protocol explains."""
    both = "± clients: standard deviation over the clients, mean over the seeds. "
    several = any(len(m.runs) > 1 for m in comparison.methods)
    sorts = "A heading sorts by it, once more the other way round."
    return (both if several else "") + (sorts if len(comparison.methods) > 1 else "")


def _head(column: Column) -> str:
    return _heading(column.title, column.subtitle, "best-high" if column.best is max else "best-low")


def _heading(title: str, below: str, kind: str) -> str:
    small = f"<small>{escape(below)}</small>" if below else ""
    return f'<th scope="col" data-kind="{kind}"><button type="button">{escape(title)}</button>{small}</th>'


def _cell(cell: Cell) -> str:
    """A number with its spread below it; the best one is marked by more than a color."""
    sorted_by = "" if cell.value is None else f' data-value="{cell.value!r}"'
    attributes = sorted_by + (' class="best"' if cell.best else "")
    below = "".join(f"<small>{escape(part)}</small>" for part in beside(cell))
    return f'<td{attributes}><span class="number">{STAR if cell.best else ""}{escape(cell.text)}</span>{below}</td>'


def beside(cell: Cell) -> list[str]:
    """All that belongs to a number where there is room for it."""
    return [*(f"±{far} {over}" for over, far in cell.spreads), *cell.parts]
