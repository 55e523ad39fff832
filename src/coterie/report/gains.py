"""Who gains: the figure at the top of the page, one line per client."""

from collections.abc import Mapping
from typing import Any

from ..core.schema import MetricInfo
from ..core.units import unit, words
from ..measure.compare import Comparison, Gain, Gains
from .charts import COLORS, INK, Chart, Figure, axis, titled

ROW = 18  # pixels that a client takes
LINES = 250  # that are so far apart; where there are more, they stand closer and not all have their names
VERDICTS = {"helps": ("helped", COLORS[2], "circle"), "harms": ("harmed", COLORS[1], "square")}
UNCLEAR = ("no clear difference", INK, "circle-open")


def who_gains(comparison: Comparison) -> Chart | None:
    """Draw each client's difference to training alone and to one model for all; None where neither was run.

    The method with the largest mean difference is shown first.
    """
    metric, found = comparison.methods[0].metric, comparison.gains
    if metric is None or not found:
        return None
    best = max(found, key=lambda one: (one.means == found[0].means, one.total))
    views = {f"{one.label} against {one.reference}": _figure(one, metric) for one in (best, *found)}
    better = "" if metric["higher_is_better"] else " A lower value counts as a gain."
    anew = " of every seed, because every seed deals the samples anew" if best.seeds > 1 else ""
    clear = (
        "Helped or harmed is a client where an exact test of its answers says so, corrected for all comparisons."
        if best.exact
        else "An interval that contains 0 shows no clear difference. The intervals are not corrected for the number of "
        "clients."
    )
    caption = (
        f"One line per client{anew}, with its training samples in parentheses: how much better its model is, on its "
        "own test samples, than its model of the other method, and a 95 % interval from resampling its test samples. "
        f"{clear}{better}"
    )
    most = max(len(one.each) for one in found)
    return Chart("gains", "Who gains", caption, views, height=130 + ROW * min(most, LINES))


def _figure(one: Gains, metric: MetricInfo) -> Figure:
    named = {gain: f"{gain.name} ({gain.samples:,})" for gain in one.each}
    traces = [_trace(one, verdict, named, *VERDICTS.get(verdict, UNCLEAR)) for verdict in ("helps", "unclear", "harms")]
    order = list(named.values())
    along = {"categoryorder": "array", "categoryarray": order[::-1], "automargin": True, "ticksuffix": " "}
    across = axis(titled(f"gain in {words(metric)}", unit(metric).replace("%", "points")), zerolinecolor=INK)
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    layout = {"xaxis": across, "yaxis": along, "legend": legend, "showlegend": True}
    return {"data": [t for t in traces if t["x"]], "layout": layout}


def _trace(one: Gains, verdict: str, named: Mapping[Gain, str], name: str, color: str, symbol: str) -> dict[str, Any]:
    mine = [gain for gain in one.each if gain.verdict == verdict]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name}: {len(mine)}",
        "x": [gain.difference for gain in mine],
        "y": [named[gain] for gain in mine],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [gain.high - gain.difference for gain in mine],
            "arrayminus": [gain.difference - gain.low for gain in mine],
            "color": color,
            "thickness": 1.2,
            "width": 3,
        },
        "marker": {"color": color, "symbol": symbol, "size": 8},
        "customdata": [gain.ends for gain in mine],
        "hovertemplate": "<b>%{y}</b>: %{x:+.3~g} (%{customdata[0]} to %{customdata[1]})<extra></extra>",
    }
