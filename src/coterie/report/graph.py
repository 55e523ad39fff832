"""Who mixes with whom: the last round's graph on a circle, its weights to be read by pointing at a link."""

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Any, NamedTuple

import torch

from ..core.schema import Graph
from ..topology import spectral_gap
from .charts import INK, SCALE, Chart, Figure
from .groups import Method, Setup

DRAWN = 1500  # links; above it only those of client 0, as single lines could not be told apart
NUMBERED = 50  # clients whose numbers fit on the circle
SOLVED = 500  # clients up to which the eigenvalues are computed: they take n^3

Point = tuple[float, float]


class Edge(NamedTuple):
    """A message's way and weight; ``back``: that of the message in the other direction, None where there is none."""

    sender: int
    receiver: int
    weight: float
    back: float | None


def topology(setup: Setup) -> Chart | None:
    """A view for every graph that occurs, with the methods that use it."""
    alike: dict[str, tuple[Graph, list[Method]]] = {}
    for m in setup.methods:
        graph = m.first.client_summary.get("graph")
        if graph is not None and graph["edges"]:
            alike.setdefault(repr(graph), (graph, []))[1].append(m)
    if not alike:
        return None
    views = {", ".join(m.label for m in methods): _figure(graph, methods) for graph, methods in alike.values()}
    captions = dict.fromkeys(_facts(graph, _clients(methods[0])) for graph, methods in alike.values())
    others = [m.label for m in setup.methods if not any(m in methods for _, methods in alike.values())]
    apart = f" No links: {', '.join(others)} (around a server, or alone)." if others else ""
    point = " Point at a link for its weights, at a client for its accuracy after mixing."
    caption = " ".join(captions) + point + apart
    return Chart("topology", "Who mixes with whom", caption, views, height=560, square=True)


def _clients(method: Method) -> int:
    return len(method.first.client_summary["train_samples"])


def _facts(graph: Graph, n: int) -> str:
    """The graph in words."""
    when = "the same in every round" if graph["fixed"] else f"another one every round, here round {graph['round']}"
    alone = "" if graph["fixed"] else " of this one alone"
    gap = f", spectral gap{alone} {gap_of(graph, n):.4f}" if 1 < n <= SOLVED else ""
    few = f"; only the links of client 0 are drawn, of {graph['messages']:,} messages" if _crowded(graph) else ""
    ways = " One-way links are dotted on the sender's half." if any(k.back is None for k in links(graph)) else ""
    return f"{graph['name']}: {when}{gap}, {graph['messages']:,} messages a round{few}.{ways}"


def gap_of(graph: Graph, n: int) -> float:
    """The spectral gap of the round's mixing matrix; what sums lack to 1 is what a client keeps of its own."""
    W = torch.zeros(n, n, dtype=torch.float64)
    for sender, receiver, weight in graph["edges"] or ():
        W[receiver, sender] = weight
    kept = 1 - W.sum(0 if graph["stochastic"] == "column" else 1)
    return spectral_gap(W + torch.diag(kept))


def links(graph: Graph) -> list[Edge]:
    """Every link once; of one that goes both ways, from the lower number."""
    weights = {(j, i): w for j, i, w in graph["edges"] or ()}
    return [Edge(j, i, w, weights.get((i, j))) for (j, i), w in weights.items() if j < i or (i, j) not in weights]


def _crowded(graph: Graph) -> bool:
    return len(graph["edges"] or ()) > 2 * DRAWN


def _figure(graph: Graph, methods: Sequence[Method]) -> Figure:
    n = _clients(methods[0])
    places = [(sin(2 * pi * i / n), cos(2 * pi * i / n)) for i in range(n)]
    drawn = [k for k in links(graph) if not _crowded(graph) or 0 in k[:2]]
    axis = {"visible": False, "range": [-1.15, 1.15]}
    layout = {
        "xaxis": axis,
        "yaxis": {**axis, "scaleanchor": "x"},
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 24, "r": 24, "t": 10, "b": 10},
    }
    return {"data": [*_lines(drawn, places), _handles(drawn, places), _nodes(methods, places)], "layout": layout}


def _lines(drawn: Sequence[Edge], places: Sequence[Point]) -> list[dict[str, Any]]:
    """Straight lines; the sender's half of one that goes one way is dotted."""
    whole, near, far = [], [], []
    for link in drawn:
        a, b = places[link.sender], places[link.receiver]
        middle = _between(a, b, 0.5)
        if link.back is None:
            far.append((a, middle))
            near.append((middle, b))
        else:
            whole.append((a, b))
    strength = min(0.7, max(0.15, 60 / max(1, len(drawn))))
    return [_segments(parts, dash, strength) for parts, dash in ((whole + near, "solid"), (far, "dot")) if parts]


def _segments(parts: Sequence[tuple[Point, Point]], dash: str, strength: float) -> dict[str, Any]:
    ends: list[list[float | None]] = [[], []]
    for a, b in parts:
        for axis in (0, 1):
            ends[axis] += [round(a[axis], 3), round(b[axis], 3), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": ends[0],
        "y": ends[1],
        "line": {"color": INK, "width": 1, "dash": dash},
        "opacity": strength,
        "hoverinfo": "skip",
    }


def _handles(drawn: Sequence[Edge], places: Sequence[Point]) -> dict[str, Any]:
    """What one points at: unseen marks on the links, off their middles, where many of them cross."""
    at = [_between(places[k.sender], places[k.receiver], 0.5 if k.back is None else 0.35) for k in drawn]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(x, 3) for x, _ in at],
        "y": [round(y, 3) for _, y in at],
        "text": [_said(k) for k in drawn],
        "marker": {"size": 14, "opacity": 0, "color": INK},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _said(link: Edge) -> str:
    to = f"{link.sender} → {link.receiver}: weight {link.weight:.4g}"
    return to if link.back is None else f"{to}<br>{link.receiver} → {link.sender}: weight {link.back:.4g}"


def _nodes(methods: Sequence[Method], places: Sequence[Point]) -> dict[str, Any]:
    """The clients, colored by accuracy where there is one."""
    n = len(places)
    known = {m.label: m.first.client_summary["accuracy"].get("after_mix") or [None] * n for m in methods}
    means = [_mean([each[i] for each in known.values()]) for i in range(n)]
    fared = [[f"{m}: {100 * v:.1f} %" for m, each in known.items() if (v := each[i]) is not None] for i in range(n)]
    told = ["<br>".join([f"client {i}", *lines]) for i, lines in enumerate(fared)]
    size = max(6, min(26, 700 / n))
    numbered = next(step for step in (1, 2, 5, 10, 20, 50, n) if n / step <= NUMBERED)
    bar = {"title": {"text": "accuracy, %", "side": "right"}, "thickness": 12, "outlinewidth": 0, "len": 0.6}
    marker = {"size": size, "line": {"color": INK, "width": 1}, "symbol": "circle"}
    if any(v is not None for v in means):
        marker |= {"color": means, "colorscale": SCALE, "colorbar": bar}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [round(x, 3) for x, _ in places],
        "y": [round(y, 3) for _, y in places],
        "text": ["" if i % numbered else str(i) for i in range(n)],
        "textposition": [_outside(x, y) for x, y in places],
        "cliponaxis": False,
        "customdata": told,
        "marker": marker,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _outside(x: float, y: float) -> str:
    """Where a number stands clear of the links."""
    if abs(x) < 0.2:
        return "top center" if y > 0 else "bottom center"
    return "middle right" if x > 0 else "middle left"


def _between(a: Point, b: Point, share: float) -> Point:
    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [100 * v for v in values if v is not None]
    return sum(known) / len(known) if known else None
