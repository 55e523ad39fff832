"""The table of all methods in HTML, read without any script and sorted with one."""

from html import escape

from ..measure.compare import Cell, Comparison

STAR = '<span class="star" title="best of this column">★<span class="unseen"> best</span></span>'


def headline_table(comparison: Comparison) -> str:
    """Return the table of all methods, with a hint on how to read it."""
    heads = "".join(head(c.title, c.subtitle, "best-high" if c.best is max else "best-low") for c in comparison.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(cell, cells))}</tr>' for label, cells in comparison.rows
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="Results of all methods">
<table class="headline sortable"><thead><tr>{head("method", "", "text")}{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="caption">{_hint(comparison)} <span class="said" aria-live="polite"></span></p>"""


def _hint(comparison: Comparison) -> str:
    """Say how to read the table, where it has more than the protocol explains."""
    both = "± clients: standard deviation over the clients, mean over the seeds. "
    several = any(len(m.runs) > 1 for m in comparison.methods)
    sorts = "Click a heading to sort by it, and again to reverse the order."
    return (both if several else "") + (sorts if len(comparison.methods) > 1 else "")


def head(title: str, below: str, kind: str) -> str:
    """Return the heading of a column that is sorted by; ``kind``: text, best-high or best-low."""
    return f'<th scope="col" data-kind="{kind}"><button type="button">{escape(title)}</button>{small(below)}</th>'


def small(text: str) -> str:
    """Return a text in small letters below another one."""
    return f"<small>{escape(text)}</small>" if text else ""


def cell(number: Cell) -> str:
    """Return a number with its spread below it; the best one is marked by more than a color."""
    sorted_by = "" if number.value is None else f' data-value="{number.value!r}"'
    attributes = sorted_by + (' class="best"' if number.best else "")
    below = "".join(map(small, notes_of(number)))
    return f'<td{attributes}><span class="number">{STAR if number.best else ""}{escape(number.text)}</span>{below}</td>'


def notes_of(cell: Cell) -> list[str]:
    """Return all that belongs to a number where there is room for it."""
    return [*(f"±{spread.text} {spread.over}" for spread in cell.spreads), *cell.parts]
