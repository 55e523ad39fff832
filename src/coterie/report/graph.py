"""The communication graph: the last round's graph on a circle, its weights to be read by pointing at a link."""

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Any, NamedTuple

import torch

from ..core.schema import ACCURACY, Graph
from ..core.units import client_names, of_clients, scale, unit, with_unit, words
from ..topology import spectral_gap
from .charts import INK, SCALE, Chart, Figure, color_bar, titled
from .groups import Method, Setup

DRAWN = 1500  # links; above it only those of client 0, as single lines could not be told apart
NUMBERED = 50  # clients whose numbers fit on the circle
LONGEST = 12  # letters of a name that are made room for
SOLVED = 500  # clients up to which the eigenvalues are computed: they take n^3

Point = tuple[float, float]


class Edge(NamedTuple):
    """A message's way and weight; ``back``: that of the message in the other direction, None where there is none."""

    sender: int
    receiver: int
    weight: float
    back: float | None


def topology(setup: Setup) -> Chart | None:
    """Draw the graph of every method in a view of its own, the clients colored by that method's metric."""
    graphs: dict[Method, Graph] = {}
    for m in setup.methods:
        graph = m.first.client_summary.get("graph")
        if graph is not None and graph["edges"]:
            graphs[m] = graph
    if not graphs:
        return None
    captions = dict.fromkeys(_describe(graph, _clients(m)) for m, graph in graphs.items())
    others = [m.label for m in setup.methods if m not in graphs]
    apart = f" No links: {', '.join(others)} (with a server, or alone)." if others else ""
    caption = " ".join(captions) + _colors(next(iter(graphs))) + apart
    views = {m.label: _figure(graph, m) for m, graph in graphs.items()}
    return Chart("topology", "Communication graph", caption, views, height=560, square=True)


def _colors(method: Method) -> str:
    """Say what the colors of the clients are, and what there is to point at."""
    metric, run = method.metric, method.first
    point = " Point at a link for its weights"
    if metric is None:
        return f"{point}."
    number = f"{words(metric)} after aggregation with the method shown, seed {run.seed}, round {run.evaluated}"
    return f" The color of a client is its {number}.{point}, at a client for its {words(metric)}."


def _clients(method: Method) -> int:
    return len(method.first.client_summary["train_samples"])


def _names(method: Method) -> Sequence[str]:
    """Return what stands beside the clients: their names, or their numbers."""
    return method.first.client_summary.get("names") or [str(i) for i in range(_clients(method))]


def _describe(graph: Graph, n: int) -> str:
    """Describe the graph in words."""
    when = "the same in every round" if graph["fixed"] else f"another one every round, here round {graph['round']}"
    alone = "" if graph["fixed"] else " of this one alone"
    gap = f", spectral gap{alone} {gap_of(graph, n):.4f}" if 1 < n <= SOLVED else ""
    few = f"; only the links of client 0 are drawn, of {graph['messages']:,} messages" if _crowded(graph) else ""
    ways = " One-way links are dotted on the sender's half." if any(k.back is None for k in _edges(graph)) else ""
    return f"{graph['name']}: {when}{gap}, {graph['messages']:,} messages per round{few}.{ways}"


def gap_of(graph: Graph, n: int) -> float:
    """Return the spectral gap of the round's mixing matrix; a client keeps what its weights lack to a sum of 1."""
    W = torch.zeros(n, n, dtype=torch.float64)
    for sender, receiver, weight in graph["edges"] or ():
        W[receiver, sender] = weight
    kept = 1 - W.sum(0 if graph["stochastic"] == "column" else 1)
    return spectral_gap(W + torch.diag(kept))


def _edges(graph: Graph) -> list[Edge]:
    """Return every link once; one that goes both ways begins at the lower number."""
    weights = {(j, i): w for j, i, w in graph["edges"] or ()}
    return [Edge(j, i, w, weights.get((i, j))) for (j, i), w in weights.items() if j < i or (i, j) not in weights]


def _crowded(graph: Graph) -> bool:
    return len(graph["edges"] or ()) > 2 * DRAWN


def _figure(graph: Graph, method: Method) -> Figure:
    n = _clients(method)
    places = [(sin(2 * pi * i / n), cos(2 * pi * i / n)) for i in range(n)]
    edges = [k for k in _edges(graph) if not _crowded(graph) or 0 in k[:2]]
    names = _names(method)
    wide = 1.15 + 0.065 * min(LONGEST, max(map(len, names)))  # names stand beside the circle, on phones as well
    square = {"visible": False, "range": [-1.15, 1.15]}
    layout = {
        "xaxis": {**square, "range": [-wide, wide]},
        "yaxis": {**square, "scaleanchor": "x"},
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 24, "r": 24, "t": 10, "b": 10},
    }
    return {"data": [*_lines(edges, places), _handles(edges, places, names), _nodes(method, places)], "layout": layout}


def _lines(edges: Sequence[Edge], places: Sequence[Point]) -> list[dict[str, Any]]:
    """Draw straight lines; the sender's half of one that goes one way is dotted."""
    whole, near, far = [], [], []
    for link in edges:
        a, b = places[link.sender], places[link.receiver]
        middle = _between(a, b, 0.5)
        if link.back is None:
            far.append((a, middle))
            near.append((middle, b))
        else:
            whole.append((a, b))
    strength = min(0.7, max(0.15, 60 / max(1, len(edges))))
    return [_segments(parts, dash, strength) for parts, dash in ((whole + near, "solid"), (far, "dot")) if parts]


def _segments(parts: Sequence[tuple[Point, Point]], dash: str, strength: float) -> dict[str, Any]:
    x, y = ([v for a, b in parts for v in (round(a[axis], 3), round(b[axis], 3), None)] for axis in (0, 1))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": INK, "width": 1, "dash": dash},
        "opacity": strength,
        "hoverinfo": "skip",
    }


def _handles(edges: Sequence[Edge], places: Sequence[Point], names: Sequence[str]) -> dict[str, Any]:
    """Return what one points at: unseen marks on the links, off their middles, where many of them cross."""
    at = [_between(places[k.sender], places[k.receiver], 0.5 if k.back is None else 0.35) for k in edges]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(x, 3) for x, _ in at],
        "y": [round(y, 3) for _, y in at],
        "text": [_weights(k, names) for k in edges],
        "marker": {"size": 14, "opacity": 0, "color": INK},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _weights(link: Edge, names: Sequence[str]) -> str:
    sender, receiver = names[link.sender], names[link.receiver]
    to = f"{sender} → {receiver}: weight {link.weight:.4g}"
    return to if link.back is None else f"{to}<br>{receiver} → {sender}: weight {link.back:.4g}"


def _nodes(method: Method, places: Sequence[Point]) -> dict[str, Any]:
    """Draw the clients, colored by the method's metric where there is one."""
    n, metric, known = len(places), method.metric or ACCURACY, method.first.client_summary
    mixed = of_clients(known, metric).get("after_mix") or [None] * n
    names = client_names(known)
    texts = [f"{name}<br>{'-' if v is None else with_unit(metric, v)}" for name, v in zip(names, mixed, strict=True)]
    numbered = next(step for step in (1, 2, 5, 10, 20, 50, n) if n / step <= NUMBERED)
    marker = {"size": max(6, min(26, 700 / n)), "line": {"color": INK, "width": 1}, "symbol": "circle"}
    if any(v is not None for v in mixed):
        bar = color_bar(titled(f"{words(metric)} of {method.label}", unit(metric)), len=0.6)
        marker |= {"color": [None if v is None else scale(metric) * v for v in mixed], "colorscale": SCALE}
        marker |= {"colorbar": bar}
    shown = _names(method)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [round(x, 3) for x, _ in places],
        "y": [round(y, 3) for _, y in places],
        "text": ["" if i % numbered else shown[i] for i in range(n)],
        "textposition": [_outside(x, y) for x, y in places],
        "cliponaxis": False,
        "customdata": texts,
        "marker": marker,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _outside(x: float, y: float) -> str:
    """Return where a number stands clear of the links."""
    if abs(x) < 0.2:
        return "top center" if y > 0 else "bottom center"
    return "middle right" if x > 0 else "middle left"


def _between(a: Point, b: Point, share: float) -> Point:
    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])
