"""The clients: their labels and their metric, method by method."""

from collections.abc import Sequence
from typing import Any

from ..core.schema import MetricInfo
from ..core.units import client_names, of_clients, scale, unit, words
from ..measure.compare import POINTS
from .charts import SCALE, Chart, Figure, LineStyle, axis, color_bar, line_style, titled
from .groups import Method, Setup
from .record import Record

ROW = 56  # pixels that a method takes


def distribution(setup: Setup) -> Chart | None:
    """Draw every client's metric as a mark, method by method."""
    metric = setup.methods[0].metric
    if metric is None:
        return None
    views = {title: figure for point, title in POINTS.items() if (figure := _strips(setup, metric, point))["data"]}
    if not views:
        return None
    side = "left" if metric["higher_is_better"] else "right"
    many = " of all seeds" if setup.seeds > 1 else ""
    caption = (
        f"One mark per client{many}: its own model on its own test samples after the last round. A box spans the "
        f"middle half of the clients, and its line is the median; clients far to the {side} are the worst off."
    )
    return Chart("clients", "Distribution over clients", caption, views, height=120 + ROW * len(setup.methods))


def _strips(setup: Setup, metric: MetricInfo, point: str) -> Figure:
    traces = [_strip(method, line_style(place), metric, point) for place, method in enumerate(setup.methods)]
    along = {"autorange": "reversed", "automargin": True, "ticksuffix": " "}
    across = axis(titled(f"personal {words(metric)} {POINTS[point]}", unit(metric)))
    layout = {"xaxis": across, "yaxis": along, "showlegend": False}
    return {"data": [t for t in traces if t["x"]], "layout": layout}


def _strip(method: Method, style: LineStyle, metric: MetricInfo, point: str) -> dict[str, Any]:
    shown = "%{x:.1f} %" if metric["percent"] else "%{x:.4~g}"
    known = [
        (scale(metric) * value, _describe(run, i, len(method.runs) > 1))
        for run in method.runs
        for i, value in enumerate(of_clients(run.client_summary, metric).get(point, []))
        if value is not None
    ]
    return {
        "type": "box",
        "orientation": "h",
        "name": method.label,
        "x": [value for value, _ in known],
        "text": [text for _, text in known],
        "boxpoints": "all",
        "pointpos": 0,
        "jitter": 0.6,
        "fillcolor": "rgba(0,0,0,0)",
        "line": {"color": style.color, "width": 1.5},
        "marker": {"color": style.color, "symbol": style.symbol, "size": 6, "opacity": 0.65},
        "hoveron": "points",
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{shown}<extra></extra>",
    }


def _describe(run: Record, client: int, several: bool) -> str:
    """Describe a client in few words: its name, and what it holds."""
    seed = f", seed {run.seed}" if several else ""
    labels = run.client_summary.get("labels")
    mostly = ""
    if labels and sum(labels[client]):
        most = max(range(len(labels[client])), key=lambda c: labels[client][c])
        mostly = f", {100 * labels[client][most] / sum(labels[client]):.0f} % of class {most}"
    sizes = run.client_summary.get("parameters", [])
    size = f", a model of {sizes[client]:,} parameters" if len(set(sizes)) > 1 else ""
    name, samples = client_names(run.client_summary)[client], run.client_summary["train_samples"][client]
    return f"{name}{seed}: {samples} samples{mostly}{size}"


def labels(setup: Setup) -> Chart | None:
    """Draw who holds how many training samples of which class."""
    views: dict[str, Figure] = {}
    for run in (run for m in setup.methods for run in m.runs):
        if counts := run.client_summary.get("labels"):
            views.setdefault(f"seed {run.seed}", heat_map(counts, run.client_summary.get("names")))
    if not views:
        return None
    caption = (
        "Training samples of each class that a client has; where there is no color, it has none. All methods see the "
        "same clients with the same seed."
    )
    classes = max(len(view["data"][0]["y"]) for view in views.values())
    height = 160 + max(200, min(600, 22 * classes))
    return Chart("labels", "Label distribution per client", caption, views, height)


def heat_map(counts: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> Figure:
    """Draw the training samples [clients][classes], clients across, by name where they have names."""
    trace = {
        "type": "heatmap",
        "x": list(names or range(len(counts))),
        "y": list(range(len(counts[0]))),
        "z": [[row[c] or None for row in counts] for c in range(len(counts[0]))],
        "zmin": 0,
        "colorscale": SCALE,
        "hoverongaps": False,
        "xgap": 1 if len(counts) <= 60 else 0,
        "ygap": 1 if len(counts[0]) <= 40 else 0,
        "colorbar": color_bar("samples"),
        "hovertemplate": f"{'' if names else 'client '}%{{x}}, class %{{y}}: %{{z}} samples<extra></extra>",
    }
    across = {"type": "category"} if names else _whole(len(counts))
    axes = {"xaxis": axis("client", showgrid=False, zeroline=False, **across)}
    axes |= {"yaxis": axis("class", showgrid=False, zeroline=False, **_whole(len(counts[0])))}
    return {"data": [trace], "layout": axes}


def _whole(count: int) -> dict[str, Any]:
    """Return the ticks of an axis of numbers from 0: every one where there is room, and never a fraction."""
    return {"tickformat": "d", "dtick": next(step for step in (1, 2, 5, 10, 20, 50, 100, count) if count <= 20 * step)}
