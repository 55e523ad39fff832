"""Numbers over rounds and bytes as plain data for plotly.js, and what all figures have in common.

Colors are those of Okabe and Ito, which color-blind people can tell apart; lines also differ in dashes and marks.
INK stands for the color of the text, SCALE for a scale from pale to strong: the page fills them in, in light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..core.schema import MetricInfo, Row, global_column, number, personal_column
from ..core.units import metrics_of, scale, unit, words
from ..measure.compare import POINTS
from .groups import Curve, Setup

Figure = dict[str, Any]
"""``data`` and ``layout`` of plotly."""

INK, SCALE = "ink", "scale"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "hexagon", "bowtie")
LOG = {"type": "log", "exponentformat": "power"}
MARKED = 20  # points up to which every one of them has its mark


class LineStyle(NamedTuple):
    """How a method is drawn, in all charts alike."""

    color: str
    dash: str
    symbol: str


@dataclass(frozen=True)
class Chart:
    """A figure with its words; a reader chooses between several views."""

    name: str  # unique on the page
    title: str
    caption: str
    views: Mapping[str, Figure]
    height: int = 400
    square: bool = False  # never higher than wide, as on a phone


class Section(NamedTuple):
    """Charts; with a title they lie side by side below it. ``html`` comes after them."""

    charts: Sequence[Chart] = ()
    title: str = ""
    about: str = ""  # a sentence about them, or why there are none
    html: str = ""


@dataclass(frozen=True)
class Measure:
    """A number of a row, as it is drawn."""

    title: str
    field: str
    factor: float = 1.0
    unit: str = ""
    log: bool = False
    per: str | None = None  # another number of the row that it is divided by
    axis: str = ""  # what the axis says; unless given, the title

    def __call__(self, row: Row) -> float | None:
        """Return its value in a round; on a logarithmic axis there is no 0."""
        value, over = number(row, self.field), 1 if self.per is None else number(row, self.per)
        return None if value is None or not over or (self.log and value <= 0) else self.factor * value / over


LOSS = Measure("training loss", "train_loss")
CONSENSUS = Measure("consensus distance", "consensus_distance", log=True)
TRAFFIC = (
    Measure("parameters per message", "parameters_sent", per="messages_sent"),
    Measure("bytes of the busiest node, up", "busiest_bytes_up"),
    Measure("bytes of the busiest node, down", "busiest_bytes_down"),
)
RECORDED = (
    Measure("smallest singular value of all factors", "smallest_singular_value", log=True),
    Measure("sharpness, mean over the clients", "sharpness"),
    Measure("gradient norm of the shared part, squared", "gradient_norm_shared", log=True),
    Measure("gradient norm of the personal part, squared", "gradient_norm_personal", log=True),
    Measure("perplexity, mean over the clients", "perplexity", log=True),
    Measure("global accuracy on the training samples", "global_accuracy_train", 100.0, "%", axis="accuracy, %"),
)


def metric_measures(metric: MetricInfo) -> tuple[Measure, ...]:
    """Return a metric over the rounds: of the clients' own models by protocol, of the worst client, of one model."""
    factor, of, name = scale(metric), unit(metric), words(metric)
    fields = {
        **{title: personal_column(metric, point) for point, title in POINTS.items()},
        "worst client after aggregation": personal_column(metric, "after_mix_worst"),
        "global": global_column(metric),
    }
    return tuple(Measure(title, field, factor, of, axis=titled(name, of)) for title, field in fields.items())


def further_measures(metrics: Sequence[MetricInfo]) -> tuple[Measure, ...]:
    """Return those that were measured beside the first one, each after aggregation."""
    mixed = (metric_measures(metric)[0] for metric in metrics[1:])
    return tuple(replace(m, title=f"{words(of)} after aggregation") for m, of in zip(mixed, metrics[1:], strict=True))


def titled(name: str, unit: str) -> str:
    """Return what an axis says.

    >>> titled("accuracy", "%"), titled("MSE", "")
    ('accuracy, %', 'MSE')
    """
    return f"{name}, {unit}" if unit else name


def line_style(place: int) -> LineStyle:
    """Return the style of the method in this place; none comes twice before the 42nd."""
    return LineStyle(*(each[place % len(each)] for each in (COLORS, DASHES, SYMBOLS)))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of plotly with a title."""
    return {"title": {"text": title}, **more}


def color_bar(title: str, thickness: int = 12, **more: Any) -> dict[str, Any]:
    """Return the legend of a color scale."""
    return {"title": {"text": title, "side": "right"}, "thickness": thickness, "outlinewidth": 0, **more}


def line(name: str, style: LineStyle, x: Sequence[Any], y: Sequence[float | None], **more: Any) -> dict[str, Any]:
    """Return one line of a figure, with marks where there are few points; ``more`` replaces what differs."""
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines+markers" if len(x) <= MARKED else "lines",
        "x": list(x),
        "y": list(y),
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.symbol, "size": 7},
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{y:.4~g}<extra></extra>",
        **more,
    }


def progress(setup: Setup) -> list[Chart]:
    """Draw metrics and loss over rounds, and over what was sent until then."""
    band = "The bands reach from the lowest to the highest seed." if setup.seeds > 1 else "One seed: there is no band."
    nothing = [m.label for m in setup.methods if not any(row["bytes_sent"] for row in m.first.history)]
    silent = f" {', '.join(nothing)} sends nothing and stands at 0." if nothing else ""
    over_bytes = f"Mean over the clients; bytes over all links, both directions. {band}{silent}"
    metrics = metrics_of(setup.config)
    measures = [m for metric in metrics[:1] for m in metric_measures(metric)] + [*further_measures(metrics), LOSS]
    what = words(metrics[0]) if metrics else LOSS.title
    title = what if what[0].isupper() else what.capitalize()
    return [
        Chart("rounds", f"{title} over rounds", f"Mean over the clients. {band}", _views(setup, measures)),
        Chart("bytes", f"{title} over bytes sent", over_bytes, _views(setup, measures, over_bytes=True)),
    ]


def traffic(setup: Setup) -> Chart | None:
    """Draw what one message holds and what the busiest node carries, each unless it is one number for all."""
    every = _views(setup, TRAFFIC)
    views = {k: figure for k, figure in every.items() if len({y for trace in figure["data"] for y in trace["y"]}) > 1}
    if not views:
        return None
    messages = (
        "With a server every client that takes part gets one message and sends one, so parameters per message are "
        "those of a client in a round. "
    )
    caption = "The busiest node is the one that sends or gets most; a server is a node."
    return Chart("traffic", "Sent per round", (messages if TRAFFIC[0].title in views else "") + caption, views)


def consensus(setup: Setup) -> Chart | None:
    """Draw how far apart the clients' shared parts are."""
    figure = _lines(setup, CONSENSUS)
    if not figure["data"]:
        return None
    drawn = {trace["name"] for trace in figure["data"]}
    absent = [m.label for m in setup.methods if m.label not in drawn]
    agree = f" Not drawn: {', '.join(absent)}, where nothing is shared or all hold the same." if absent else ""
    caption = (
        "Mean squared distance of the clients' shared parts from the point they agree on, after aggregation, on a "
        f"logarithmic axis.{agree}"
    )
    return Chart("consensus", "Consensus distance over rounds", caption, {"": figure})


def recorded_measures(setup: Setup) -> Chart | None:
    """Draw what was asked for with ``--record``."""
    views = _views(setup, RECORDED)
    caption = "After aggregation, in the rounds that were evaluated."
    return Chart("recorded", "Recorded beside the metrics", caption, views) if views else None


def _views(setup: Setup, measures: Sequence[Measure], over_bytes: bool = False) -> dict[str, Figure]:
    """Return one figure per measure that some method has."""
    return {m.title: figure for m in measures if (figure := _lines(setup, m, over_bytes))["data"]}


def _lines(setup: Setup, measure: Measure, over_bytes: bool = False) -> Figure:
    """Draw one line per method, with the band of its seeds below it."""
    unit = f" {measure.unit}" if measure.unit else ""
    sent = "<br>%{x:.3~s}B sent" if over_bytes else ""
    hover = f"<b>%{{fullData.name}}</b><br>round %{{customdata}}: %{{y:.4~g}}{unit}{sent}<extra></extra>"
    traces: list[dict[str, Any]] = []
    for place, method in enumerate(setup.methods):
        curve, style = method.curve(measure), line_style(place)
        if curve is not None:
            x = curve.bytes if over_bytes else curve.rounds
            traces += [_band(method.label, curve, x, style)] if len(method.runs) > 1 else []
            more = {"legendgroup": method.label, "customdata": curve.rounds, "hovertemplate": hover}
            traces.append(line(method.label, style, x, curve.mean, **more))
    few = {"dtick": 1} if max(m.rounds for m in setup.methods) <= MARKED // 2 else {}  # no half rounds
    across = axis("sent", tickformat="~s", ticksuffix="B") if over_bytes else axis("round", tickformat=",d", **few)
    along = axis(measure.axis or titled(measure.title, measure.unit), **(LOG if measure.log else {}))
    return {"data": traces, "layout": {"xaxis": {**across, "rangemode": "tozero"}, "yaxis": along}}


def _band(name: str, curve: Curve, x: Sequence[float], style: LineStyle) -> dict[str, Any]:
    """Return an area whose outline goes out along the highest seed and back along the lowest."""
    return {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
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
    """Return the same color, nearly transparent.

    >>> faint("#0072b2"), faint("ink")
    ('rgba(0,114,178,0.15)', 'faint ink')
    """
    if color == INK:
        return f"faint {INK}"
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
