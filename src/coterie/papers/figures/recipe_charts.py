"""What a paper draws and no single run shows: splits of the data, an accuracy over two settings or over exchanges."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...report.charts import SCALE, Chart, Figure, axis, color_bar, line, line_style
from ...report.clients import heat_map
from ...report.record import Record
from ..recipes import load
from ..recipes.results import mean_of_all

SPLITS, GRID, LANDSCAPE, EXCHANGES = "splits", "grid", "landscape", "exchanges"
_NUMBER = r"\d+(?:\.\d+)?"
_AXES = re.compile(rf"(?P<data>\S+) (?P<across>\w+)=(?P<x>{_NUMBER}) (?P<along>\w+)=(?P<y>{_NUMBER})", re.ASCII)


def recipe_charts(recipe: Mapping[str, Any], records: Sequence[Record]) -> list[Chart]:
    """Return the charts of a recipe as ``coterie recipe run`` saved it, and of its runs."""
    return [*_splits(recipe), *_grids(recipe), *exchanges(recipe, records)]


def _changes(recipe: Mapping[str, Any]) -> str:
    """Say where a figure, which has the name of the published case, shows another one."""
    return f" Shortened or changed: {', '.join(recipe['shortened'])}." if recipe["shortened"] else ""


def _splits(recipe: Mapping[str, Any]) -> list[Chart]:
    caption = "Training samples of each class that a client has; where there is no color, it has none."
    return [
        Chart(
            f"{recipe['recipe']}-split-{i}",
            f"Label distribution per client: {split['case']}",
            caption + _changes(recipe),
            {"": heat_map(split["labels"])},
            height=360,
        )
        for i, split in enumerate(recipe.get(SPLITS, []), 1)
    ]


def _grids(recipe: Mapping[str, Any]) -> list[Chart]:
    """Draw one heat map per data set, method and metric, where the cases are a grid of two settings."""
    if recipe.get("draws") != GRID:
        return []
    groups: dict[tuple[str, str, str], list[tuple[re.Match[str], Any]]] = {}
    for result in recipe["results"]:
        if match := _AXES.fullmatch(result["case"]):
            groups.setdefault((match["data"], result["method"], result["metric"]), []).append((match, result))
    return [
        Chart(
            f"{recipe['recipe']}-grid-{i}",
            f"{method} on {data}: {metric.replace('_', ' ')}",
            f"A number is the {cells[0][1]['protocol']}.{_changes(recipe)}",
            {"": _grid(cells)},
        )
        for i, ((data, method, metric), cells) in enumerate(groups.items(), 1)
    ]


def _grid(cells: Sequence[tuple[re.Match[str], Mapping[str, Any]]]) -> Figure:
    """Draw the mean over the seeds in every place; none where a seed has no number."""
    across, along = (sorted({match[name] for match, _ in cells}, key=float) for name in "xy")
    ours = {(match["x"], match["y"]): mean_of_all(result["ours"]) for match, result in cells}
    values = [[ours.get((x, y)) for x in across] for y in along]
    trace = {
        "type": "heatmap",
        "x": across,
        "y": along,
        "z": values,
        "text": [["" if v is None else f"{v:.1f}" for v in row] for row in values],
        "texttemplate": "%{text}",
        "colorscale": SCALE,
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "colorbar": color_bar("%"),
        "hovertemplate": "%{x}, %{y}: %{z:.2f}<extra></extra>",
    }
    titles = {"xaxis": cells[0][0]["across"], "yaxis": cells[0][0]["along"]}
    layout = {k: axis(title, type="category", showgrid=False) for k, title in titles.items()}
    return {"data": [trace], "layout": layout}


def exchanges(recipe: Mapping[str, Any], records: Sequence[Record]) -> list[Chart]:
    """Draw the accuracy of the common model over exchanges, of which a round may have several; one chart per graph."""
    if recipe.get("draws") != EXCHANGES:
        return []
    cases, graphs = load(recipe["recipe"]).cases, dict[str, list[dict[str, Any]]]()
    for record in records:
        if record.case and record.seed == 0:
            graph, _, name = cases[int(record.case) - 1].label.rpartition(" ")
            traces = graphs.setdefault(graph, [])
            traces.append(_line_over_exchanges(name, len(traces), record))
    caption = (
        "The averaged model on all test samples after so many exchanges between neighbors; a round with "
        f"several gossip steps counts as many. Seed 0.{_changes(recipe)}"
    )
    layout = {"xaxis": axis("exchange"), "yaxis": axis("accuracy, %")}
    return [
        Chart(
            f"{recipe['recipe']}-exchanges-{i}",
            f"Accuracy over exchanges: {graph}",
            caption,
            {"": {"data": traces, "layout": layout}},
        )
        for i, (graph, traces) in enumerate(graphs.items(), 1)
    ]


def _line_over_exchanges(name: str, place: int, record: Record) -> dict[str, Any]:
    given = record.config["settings"].get("gossip_steps")  # a run folder has no program to ask
    steps = given if isinstance(given, int) else 1
    known = [(steps * row["round"], 100 * v) for row in record.history if (v := row["global_accuracy"]) is not None]
    return line(name, line_style(place), [x for x, _ in known], [y for _, y in known])
