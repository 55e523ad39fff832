"""Numbers over rounds and bytes as plain data for plotly.js.

Colors are those of Okabe and Ito, which color-blind people can tell apart; lines also differ in dashes and marks.
INK stands for the color of the text, SCALE for a scale from pale to strong: the page fills them in, by day and by
night.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.schema import Row, number
from .groups import Curve, Method, Setup

Figure = dict[str, Any]
"""``data`` and ``layout`` of plotly."""

INK, SCALE = "ink", "scale"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "hexagon", "bowtie")
MARKED = 20  # rounds up to which every one of them has its mark


class LineStyle(NamedTuple):
    """How a method is drawn, in all charts alike."""

    color: str
    dash: str
    symbol: str


@dataclass(frozen=True)
class Chart:
    """A picture with its words; several views are chosen between."""

    name: str  # unique on the page
    title: str
    caption: str
    views: Mapping[str, Figure]
    height: int = 400
    square: bool = False  # never higher than wide, as on a phone


@dataclass(frozen=True)
class Measure:
    """A number of a row, as it is drawn."""

    title: str
    field: str
    factor: float = 1.0
    unit: str = ""
    log: bool = False
    per: str | None = None  # another number of the row that it is divided by

    def __call__(self, row: Row) -> float | None:
        """Its value in a round; on a logarithmic axis there is no 0."""
        value, over = number(row, self.field), 1 if self.per is None else number(row, self.per)
        return None if value is None or not over or (self.log and value <= 0) else self.factor * value / over


PROGRESS = (
    Measure("after mixing", "personal_accuracy_after_mix", 100.0, "%"),
    Measure("after training", "personal_accuracy_after_train", 100.0, "%"),
    Measure("after fine-tuning", "personal_accuracy_after_finetune", 100.0, "%"),
    Measure("worst client after mixing", "personal_accuracy_after_mix_worst", 100.0, "%"),
    Measure("global", "global_accuracy", 100.0, "%"),
    Measure("training loss", "train_loss"),
)
CONSENSUS = Measure("consensus distance", "consensus_distance", log=True)
RECORDED = (
    Measure("smallest singular value of all factors", "smallest_singular_value", log=True),
    Measure("sharpness, mean over the clients", "sharpness"),
    Measure("gradient norm of the shared part, squared", "gradient_norm_shared", log=True),
    Measure("gradient norm of the personal part, squared", "gradient_norm_personal", log=True),
    Measure("perplexity, mean over the clients", "perplexity", log=True),
    Measure("global accuracy on the training samples", "global_accuracy_train", 100.0, "%"),
)


def styles(methods: Sequence[Method]) -> list[LineStyle]:
    """A style for every method; none comes twice before the 42nd."""
    return [
        LineStyle(COLORS[i % len(COLORS)], DASHES[i % len(DASHES)], SYMBOLS[i % len(SYMBOLS)])
        for i in range(len(methods))
    ]


def progress(setup: Setup) -> list[Chart]:
    """Accuracy over rounds, and over what was sent until then."""
    band = "The bands reach from the lowest to the highest seed." if setup.seeds > 1 else "One seed: there is no band."
    nothing = [m.label for m in setup.methods if not any(row["bytes_sent"] for row in m.first.history)]
    still = f" {', '.join(nothing)} sends nothing and stands at 0." if nothing else ""
    return [
        Chart("rounds", "Accuracy over rounds", f"Mean over all clients. {band}", _views(setup, over_bytes=False)),
        Chart(
            "bytes",
            "Accuracy over bytes sent",
            f"Mean over all clients; bytes over all links, both directions. {band}{still}",
            _views(setup, over_bytes=True),
        ),
    ]


def consensus(setup: Setup) -> Chart | None:
    """How far apart the clients' shared parts are."""
    figure = lines(setup, CONSENSUS)
    if not figure["data"]:
        return None
    drawn = {trace["name"] for trace in figure["data"]}
    absent = [m.label for m in setup.methods if m.label not in drawn]
    agree = f" Not drawn: {', '.join(absent)}, where nothing is shared or all hold the same." if absent else ""
    caption = (
        "Mean squared distance of the clients' shared parts from the point they agree on, after mixing, on a "
        f"logarithmic axis.{agree}"
    )
    return Chart("consensus", "Consensus distance over rounds", caption, {"": figure})


def recorded(setup: Setup) -> Chart | None:
    """What was asked for with ``--record``."""
    views = {m.title: figure for m in RECORDED if (figure := lines(setup, m))["data"]}
    if not views:
        return None
    return Chart(
        "recorded", "Recorded beside the accuracies", "After mixing, in the rounds that were evaluated.", views
    )


def _views(setup: Setup, over_bytes: bool) -> dict[str, Figure]:
    return {m.title: figure for m in PROGRESS if (figure := lines(setup, m, over_bytes))["data"]}


def lines(setup: Setup, measure: Measure, over_bytes: bool = False) -> Figure:
    """A line a method, with the band of its seeds below it."""
    traces: list[dict[str, Any]] = []
    for method, style in zip(setup.methods, styles(setup.methods), strict=True):
        curve = method.curve(measure)
        if curve is not None:
            x = curve.bytes if over_bytes else curve.rounds
            traces += [_band(method, curve, x, style)] if len(method.runs) > 1 else []
            traces.append(_line(method, measure, curve, x, style, over_bytes))
    rounds = max(m.rounds for m in setup.methods)
    across = {"title": {"text": "sent"}, "tickformat": "~s", "ticksuffix": "B"} if over_bytes else _counted(rounds)
    along: dict[str, Any] = {"title": {"text": f"accuracy, {measure.unit}" if measure.unit else measure.title}}
    along |= {"type": "log", "exponentformat": "power"} if measure.log else {}
    return {"data": traces, "layout": {"xaxis": {**across, "rangemode": "tozero"}, "yaxis": along}}


def _counted(rounds: int) -> dict[str, Any]:
    """An axis of rounds; where there are few, no half ones."""
    return {"title": {"text": "round"}, "tickformat": ",d", **({"dtick": 1} if rounds <= MARKED // 2 else {})}


def _line(
    method: Method, measure: Measure, curve: Curve, x: Sequence[float], style: LineStyle, over_bytes: bool
) -> dict[str, Any]:
    unit = f" {measure.unit}" if measure.unit else ""
    marked = len(curve.rounds) <= MARKED
    return {
        "type": "scatter",
        "name": method.label,
        "legendgroup": method.label,
        "mode": "lines+markers" if marked or len(curve.rounds) == 1 else "lines",
        "x": list(x),
        "y": curve.mean,
        "customdata": curve.rounds,
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.symbol, "size": 7},
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>round %{{customdata}}: %{{y:.4~g}}{unit}"
        + ("<br>%{x:.3~s}B sent" if over_bytes else "")
        + "<extra></extra>",
    }


def _band(method: Method, curve: Curve, x: Sequence[float], style: LineStyle) -> dict[str, Any]:
    """Out along the highest, back along the lowest."""
    return {
        "type": "scatter",
        "name": method.label,
        "legendgroup": method.label,
        "showlegend": False,
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*curve.high, *reversed(curve.low)],
        "fill": "toself",
        "fillcolor": faint(style.color),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def faint(color: str) -> str:
    """The same color, nearly transparent.

    >>> faint("#0072b2"), faint("ink")
    ('rgba(0,114,178,0.15)', 'faint ink')
    """
    if color == INK:
        return f"faint {INK}"
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
