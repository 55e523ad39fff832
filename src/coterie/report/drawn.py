"""What a paper draws and no single run shows: splits of the data, and an accuracy over two settings."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from .charts import SCALE, Chart, Figure
from .pictures import heat_map

SPLITS, GRID, LANDSCAPE = "splits", "grid", "landscape"
_AXES = re.compile(r"(?P<data>\S+) (?P<across>\w+)=(?P<x>\S+) (?P<along>\w+)=(?P<y>\S+)")


def drawn(recipe: Mapping[str, Any]) -> list[Chart]:
    """The charts of a recipe as ``coterie recipe run`` saved it."""
    splits = [
        Chart(
            f"{recipe['recipe']}-split-{i}",
            f"Who holds what: {split['case']}",
            "Training samples of every class a client holds; where there is no color, it holds none."
            + other_than_published(recipe),
            {"": heat_map(split["labels"])},
            height=360,
        )
        for i, split in enumerate(recipe.get(SPLITS, []), 1)
    ]
    return [*splits, *_grids(recipe)]


def other_than_published(recipe: Mapping[str, Any]) -> str:
    """A picture bears the name of the published case, and says where it shows another."""
    return f" Shortened or changed: {', '.join(recipe['shortened'])}." if recipe["shortened"] else ""


def _grids(recipe: Mapping[str, Any]) -> list[Chart]:
    """A heat map for every data set, where the cases are a grid of two settings."""
    if recipe.get("draws") != GRID:
        return []
    placed = [(found, result) for result in recipe["results"] if (found := _AXES.fullmatch(result["case"]))]
    charts: list[Chart] = []
    for kind in dict.fromkeys((found["data"], result["method"], result["metric"]) for found, result in placed):
        cells = [(f, r) for f, r in placed if (f["data"], r["method"], r["metric"]) == kind]
        data, method, metric = kind
        title = f"{method} on {data}: {metric.replace('_', ' ')}"
        caption = f"A number is the {cells[0][1]['protocol']}.{other_than_published(recipe)}"
        charts.append(Chart(f"{recipe['recipe']}-grid-{len(charts) + 1}", title, caption, {"": _grid(cells)}))
    return charts


def _axis(cells: Sequence[tuple[re.Match[str], Any]], name: str) -> str:
    return cells[0][0][name]


def _grid(cells: Sequence[tuple[re.Match[str], Mapping[str, Any]]]) -> Figure:
    """The mean over the seeds in every place; none where a seed has no number."""
    across, along = (sorted({found[name] for found, _ in cells}, key=float) for name in "xy")
    ours = {(f["x"], f["y"]): _mean(result["ours"]) for f, result in cells}
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
        "colorbar": {"title": {"text": "%", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{x}, %{y}: %{z:.2f}<extra></extra>",
    }
    titles = {"xaxis": _axis(cells, "across"), "yaxis": _axis(cells, "along")}
    layout = {k: {"title": {"text": v}, "type": "category", "showgrid": False} for k, v in titles.items()}
    return {"data": [trace], "layout": layout}


def _mean(ours: Sequence[float | None]) -> float | None:
    known = [value for value in ours if value is not None]
    return fmean(known) if known and len(known) == len(ours) else None
