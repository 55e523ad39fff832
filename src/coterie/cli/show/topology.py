"""``coterie topology``: how fast a graph mixes, what it costs, and a picture of it on a circle."""

from collections.abc import Iterable
from math import cos, pi, sin
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from torch import Tensor

from ...core.errors import UserError
from ...core.spec import counted, scaled
from ...topology import Topology, build, degree, diameter, edges, in_neighbors, spectral_gap
from ...topology.facts import check_dense
from ..common.console import INK, picture, plain_console
from ..common.rows_format import for_programs, print_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]

_ROUNDS = 20  # whose spectral gaps are averaged
BYTES = 4  # of a parameter
_KINDS = {
    "doubly": "doubly stochastic: every mix keeps the mean",
    "row": "row-stochastic: the receiver sets the weights, the mean drifts",
    "column": "column-stochastic: the sender sets the weights, the sum is kept (push-sum)",
}
_LINK, _BUSY, _IDLE = "#64748b", "#2563eb", "#cbd5e1"


def show_topology(
    text: str,
    clients: int,
    model: str,
    parameters: int,
    seed: int = 0,
    round: int = 0,
    png: Path | None = None,
    format: str = "table",
) -> None:
    """Print the facts of a topology and what one round of it costs for a model; ``png``: a picture of the graph.

    >>> show_topology("ring", 4, "a model", 1_000_000)
    ring · 4 clients · the same every round
    matrix               doubly stochastic: every mix keeps the mean
    spectral gap         0.666667
    in-neighbors         2 least, 2 mean, 2 most
    diameter             2
    messages per round   8
    bytes per round      32 MB, exactly 32,000,000 bytes
                         8 messages x 1,000,000 parameters of a model x 4 bytes
    """
    check_dense(clients)
    topology = build(text, clients, seed)
    if round < 0:
        raise UserError(f"the round must be 0 or more, not {round}")
    W = topology(round)
    if for_programs(format):
        _print_facts(topology, W, round, parameters, png, format)
        return
    when = "the same every round" if topology.fixed else f"round {round}, another one every round"
    title = f"{topology.name} · {counted(clients, 'client')} · {when}"
    console = plain_console()
    console.print(title, style="bold")
    facts = Table.grid(padding=(0, 3))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for row in _facts(topology, W, round):
        facts.add_row(*row)
    total = edges(W) * parameters * BYTES
    facts.add_row("bytes per round", f"{scaled(total, 'B')}, exactly {total:,} bytes")
    facts.add_row("", f"{edges(W):,} messages x {parameters:,} parameters of {model} x {BYTES} bytes")
    console.print(facts)
    if png is not None:
        draw_png(W, png, title)
        console.print(f"drawn to {png}", soft_wrap=True)


def _print_facts(topology: Topology, W: Tensor, round: int, parameters: int, png: Path | None, format: str) -> None:
    """Print the facts for a program."""
    if png is not None:
        raise UserError(f"--png draws, and --format {format} is for programs: leave one of them out")
    least, mean, most = degree(W)
    numbers = {
        "topology": topology.name,
        "clients": topology.n,
        "round": round,
        "stochastic": topology.stochastic,
        "fixed": topology.fixed,
        "spectral_gap": spectral_gap(W),
        "in_neighbors_least": least,
        "in_neighbors_mean": mean,
        "in_neighbors_most": most,
        "diameter": diameter(W),
        "messages_per_round": edges(W),
        "bytes_per_round": edges(W) * parameters * BYTES,
    }
    print_rows(format, [numbers], numbers)


def _facts(topology: Topology, W: Tensor, round: int) -> list[tuple[str, str]]:
    least, mean, most = degree(W)
    far = diameter(W)
    rows = [("matrix", _KINDS[topology.stochastic]), ("spectral gap", f"{spectral_gap(W):.6f}")]
    if not topology.fixed:
        gaps = [spectral_gap(topology(t)) for t in range(round, round + _ROUNDS)]
        rows.append(("mean spectral gap", f"{sum(gaps) / _ROUNDS:.6f} over rounds {round} to {round + _ROUNDS - 1}"))
    return [
        *rows,
        ("in-neighbors", f"{least} least, {mean:.4g} mean, {most} most"),
        ("diameter", "none: not everybody reaches everybody in this graph" if far is None else str(far)),
        ("messages per round", f"{edges(W):,}"),
    ]


class Arrow(NamedTuple):
    """A message's way; a mutual one also carries a message back."""

    sender: int
    receiver: int
    mutual: bool


def _around(n: int) -> list[Point]:
    """Return n points on the unit circle, clockwise from the top; y grows downwards."""
    return [(sin(2 * pi * i / n), -cos(2 * pi * i / n)) for i in range(n)]


def _links(W: Tensor) -> list[Arrow]:
    """Return every link; one that goes both ways is listed once."""
    heard = [set(row) for row in in_neighbors(W)]
    return [
        Arrow(j, i, i in heard[j]) for i, row in enumerate(heard) for j in sorted(row) if i not in heard[j] or j < i
    ]


def _busy(links: Iterable[Arrow]) -> set[int]:
    return {client for link in links for client in link[:2]}


def draw_png(W: Tensor, path: Path, title: str) -> None:
    """Draw the graph on a circle, clockwise from the top; arrows point at receivers of one-way links."""
    with picture(path, 8, 8.4) as figure:
        axes = figure.add_subplot(aspect="equal")
        axes.set_axis_off()
        axes.set_title(title, fontsize=13, color=INK, pad=12)
        axes.set(xlim=(-1.12, 1.12), ylim=(1.12, -1.12))
        links, places = _links(W), _around(len(W))
        # The diameter of a node in points, so that neighbors on a circle of some 1500 points keep apart.
        node = min(30.0, 600 / len(W))
        _paint_links(axes, places, links, node)
        _paint_nodes(axes, places, _busy(links), node)


def _paint_links(axes: "Axes", places: list[Point], links: list[Arrow], node: float) -> None:
    """Draw lines for links both ways, bent arrows for the others; the more there are, the fainter."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import FancyArrowPatch

    strength = min(0.75, max(0.12, 60 / max(1, len(links))))
    straight = [(places[link.sender], places[link.receiver]) for link in links if link.mutual]
    axes.add_collection(LineCollection(straight, colors=_LINK, linewidths=1.2, alpha=strength, zorder=1))
    for link in links:
        if not link.mutual:
            arrow = FancyArrowPatch(
                places[link.sender],
                places[link.receiver],
                arrowstyle="-|>,head_length=0.5,head_width=0.25",
                connectionstyle="arc3,rad=0.08",
                shrinkA=node / 2,
                shrinkB=node / 2 + 1,
                mutation_scale=max(8, node / 2),
                linewidth=1.2,
                color=_LINK,
                alpha=strength,
            )
            axes.add_patch(arrow)


def _paint_nodes(axes: "Axes", places: list[Point], busy: set[int], node: float) -> None:
    """Draw discs over the ends of the links, numbered inside, or beside where the disc is too small."""
    colors = [_BUSY if i in busy else _IDLE for i in range(len(places))]
    across, down = [x for x, _ in places], [y for _, y in places]
    axes.scatter(across, down, s=node**2, c=colors, edgecolors="white", linewidths=1.2, zorder=3)
    inside = node >= 18
    size, color, away = (node / 2.4, "white", 1.0) if inside else (min(9, 800 / len(places)), INK, 1.06)
    for i, (x, y) in enumerate(places):
        axes.annotate(str(i), (away * x, away * y), ha="center", va="center", fontsize=size, color=color)
