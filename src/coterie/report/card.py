"""A run as a notebook shows it: its headline numbers and how it got there, in a few kilobytes of HTML.

Styles are attributes and lines are SVG: notebooks strip style sheets and scripts from what they do not trust. Lines and
words have the color of the text around them, so that they can be read in light and dark.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from ..measure.compare import Cell, Comparison
from .charts import COLORS, LOSS, Measure, metric_measures
from .collect import collect
from .groups import Curve, Method, setups
from .tables import notes_of

if TYPE_CHECKING:
    from ..training.run import Run

DASHES = ("", "7 4", "2 3")
WIDTH, HEIGHT, MARGIN = 480, 120, 8

_CELL = "padding:2px 14px 2px 0;text-align:left;vertical-align:top;white-space:nowrap;border:0;background:none"
_SOFT = "opacity:.7;font-size:.85em;font-weight:400"


class Line(NamedTuple):
    """A measure over the rounds."""

    measure: Measure
    curve: Curve


def card(run: "Run") -> str:
    """Return the run as HTML that loads nothing and needs no script."""
    (setup,) = setups(collect([run]).records)
    (method,) = setup.methods
    about = f"{setup.title}; {method.rounds} round{'s' * (method.rounds != 1)}, seed {method.first.seed}"
    return f"""<div style="font-family:system-ui,sans-serif;max-width:60em">
<p style="margin:.2em 0"><b>{escape(method.label)}</b> <span style="{_SOFT}">{escape(about)}</span></p>
{_table(method)}
{_picture(_lines(method))}
</div>"""


def _table(method: Method) -> str:
    """Return the columns of the report's first table that this run can fill."""
    wanted = [c for c in Comparison([method]).columns if c.cells[0].value is not None]
    heads = "".join(
        f'<th scope="col" style="{_CELL}">{escape(c.title)}<br><span style="{_SOFT}">{escape(c.subtitle)}</span></th>'
        for c in wanted
    )
    cells = "".join(_cell(c.cells[0]) for c in wanted)
    return f'<div style="overflow-x:auto"><table style="border:0"><tr>{heads}</tr><tr>{cells}</tr></table></div>'


def _cell(cell: Cell) -> str:
    small = "".join(f'<br><span style="{_SOFT}">{escape(note)}</span>' for note in notes_of(cell))
    return f'<td style="{_CELL}">{escape(cell.text)}{small}</td>'


def _lines(method: Method) -> list[Line]:
    """Return the metric of a run at the points where it is measured; of one without any, its loss."""
    measures = [] if method.metric is None else metric_measures(method.metric)[:3]
    known = [Line(m, curve) for m in measures if (curve := method.curve(m)) is not None]
    loss = method.curve(LOSS)
    return known or ([] if loss is None else [Line(LOSS, loss)])


def _picture(lines: Sequence[Line]) -> str:
    """Draw the lines with a legend; nothing where nothing was measured."""
    if not lines:
        return ""
    values = [v for line in lines for v in line.curve.mean]
    low, high, last = min(values), max(values), max(line.curve.rounds[-1] for line in lines)
    paths = "".join(_path(line, i, low, high, last) for i, line in enumerate(lines))
    unit = f" {lines[0].measure.unit}" if lines[0].measure.unit else ""
    final = ", ".join(f"{line.measure.title} {line.curve.mean[-1]:.3g}{unit}" for line in lines)
    name = lines[0].measure.axis.partition(",")[0]
    span = f"from {low:.3g} to {high:.3g}{unit}, over {last} round{'s' * (last != 1)}"
    what = f"{f'personal {name} ' if name else ''}{span}, mean over the clients"
    label = escape(f"{what}; at the end: {final}")
    return f"""<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}"
style="max-width:100%;height:auto;font:11px system-ui,sans-serif" fill="none" stroke="currentColor">
{paths}</svg>
<p style="margin:.1em 0;font-size:.85em">{_legend(lines)} <span style="opacity:.7">{what}</span></p>"""


def _stroke(place: int) -> str:
    return f'stroke="{COLORS[place]}" stroke-width="2" stroke-dasharray="{DASHES[place]}"'


def _path(line: Line, place: int, low: float, high: float, last: int) -> str:
    """Draw a line from round 1 to ``last``, with its own color and dashes and a point at its end."""
    x = [MARGIN + (WIDTH - 2 * MARGIN) * (t - 1) / max(1, last - 1) for t in line.curve.rounds]
    y = [MARGIN + (HEIGHT - 2 * MARGIN) * (high - v) / (high - low or 1.0) for v in line.curve.mean]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    end = f'<circle cx="{x[-1]:.1f}" cy="{y[-1]:.1f}" r="3" fill="{COLORS[place]}" stroke="none"/>'
    return f'<polyline points="{points}" {_stroke(place)}/>{end}'


def _legend(lines: Sequence[Line]) -> str:
    """Return a short piece of each line beside its name."""
    pieces = []
    for place, line in enumerate(lines):
        sample = f'<svg width="26" height="8" aria-hidden="true"><path d="M0 4H26" {_stroke(place)}/></svg>'
        pieces.append(f"{sample}&nbsp;{escape(line.measure.title)}&emsp;")
    return "".join(pieces)
