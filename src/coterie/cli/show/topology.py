"""``coterie topology``: how fast a graph mixes, what it costs, and how it looks on a circle."""

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
Position = tuple[int, int]  # of a character in the terminal, or of a dot

_ROUNDS = 20  # whose spectral gaps are averaged
BYTES = 4  # of a parameter
_KINDS = {
    "doubly": "doubly stochastic: every mix keeps the mean",
    "row": "row-stochastic: the receiver sets the weights, the mean drifts",
    "column": "column-stochastic: the sender sets the weights, the sum is kept (push-sum)",
}
# A character cell of braille is 2 dots wide and 4 high; _BITS[y][x] is the dot's bit above U+2800.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
# Above this share of dots set inside the circle, single lines cannot be told apart.
_FULLEST = 0.4
# Up to this angle from the vertical a number stands above or below its node, beyond it to the side.
_CAP = pi / 7
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
    """Print the facts of a topology, what one round of it costs for a model, and the graph.

    >>> show_topology("ring", 4, "a model", 1_000_000)  # doctest: +ELLIPSIS
    ring · 4 clients · the same every round
    matrix               doubly stochastic: every mix keeps the mean
    spectral gap         0.666667
    in-neighbors         2 least, 2 mean, 2 most
    diameter             2
    messages per round   8
    bytes per round      32 MB, exactly 32,000,000 bytes
                         8 messages x 1,000,000 parameters of a model x 4 bytes
    ...
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
    console.print()
    if png is None:
        # Larger circles for more clients, within what the window allows.
        width = min(console.width, 40 + 5 * clients // 8, 80)
        console.print(draw_terminal(W, width), no_wrap=True, overflow="ignore", crop=False)
    else:
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


def _line(start: Position, end: Position, mutual: bool) -> set[Position]:
    """Return the dots between the middles of two cells; the sender's half of a one-way link is dotted."""
    (x0, y0), (x1, y1) = ((2 * x + 1, 4 * y + 2) for x, y in (start, end))
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    shares = (s / steps for s in range(steps + 1) if mutual or s > steps / 2 or s % 4 == 0)
    return {(round(x0 + (x1 - x0) * share), round(y0 + (y1 - y0) * share)) for share in shares}


def _label(number: str, node: Position, direction: Point) -> tuple[Position, str]:
    """Return where the number of a node begins and what to write, with a blank towards a node beside it."""
    (x, y), (right, down) = node, direction
    if abs(down) > cos(_CAP):
        return (x - len(number) // 2, y + (1 if down > 0 else -1)), number
    return ((x + 1, y), " " + number) if right > 0 else ((x - 1 - len(number), y), number + " ")


def _labels(cells: list[Position], step: int) -> dict[Position, str] | None:
    """Return the number of every step-th node, one character per cell, or None where two would touch."""
    taken = dict.fromkeys(cells, " ")
    directions = _around(len(cells))
    for i in range(0, len(cells), step):
        (left, y), text = _label(str(i), cells[i], directions[i])
        around = {(left + d, y) for d in range(-1, len(text) + 1)} - {cells[i]}
        if not around.isdisjoint(taken):
            return None
        taken |= {(left + d, y): character for d, character in enumerate(text)}
    return taken


def _render(dots: set[Position], cells: dict[Position, str]) -> str:
    """Return dots as braille, overwritten by the characters of the cells, without blank edges."""
    codes: dict[Position, int] = {}
    for x, y in dots:
        codes[x // 2, y // 4] = codes.get((x // 2, y // 4), 0x2800) | _BITS[y % 4][x % 2]
    drawn = {cell: chr(code) for cell, code in codes.items()} | cells
    rows, columns = range(max(y for _, y in drawn) + 1), range(max(x for x, _ in drawn) + 1)
    return "\n".join("".join(drawn.get((x, y), " ") for x in columns).rstrip() for y in rows)


def draw_terminal(W: Tensor, width: int = 60) -> str:
    """Return the graph on a circle, `width` characters wide and half as many lines high, clockwise from the top.

    A filled mark is a client that exchanges something, a hollow one is idle. Where all the links together
    would be a blot, only those of client 0 are drawn, and a line below says so.

    >>> from coterie.topology import ring
    >>> print(draw_terminal(ring(4)(0), width=20))
              0
              ●⡀
            ⢀⠎ ⠈⢆
          ⢀⠔⠁    ⠑⢄
         ⡔⠁        ⠑⡄
     3 ●⡊           ⠈● 1
        ⠈⢆         ⢀⠎
          ⠑⢄     ⢀⠔⠁
            ⠑⡄  ⡔⠁
             ⠈●⠊
              2
    """
    links = _links(W)
    digits = len(str(len(W) - 1))
    radius = max(width // 2 - 2 - digits, 3)
    left, top = radius + 2 + digits, (radius + 1) // 2 + 1
    # A cell is twice as high as wide, hence half the radius downwards.
    cells = [(left + round(radius * x), top + round(radius / 2 * y)) for x, y in _around(len(W))]
    lines = {link: _line(cells[link.sender], cells[link.receiver], link.mutual) for link in links}
    dots, notes = set().union(*lines.values()), []
    if len(dots) > _FULLEST * pi * (2 * radius) ** 2:
        dots = set().union(*(line for link, line in lines.items() if 0 in link[:2]))
        notes.append(f"Only the links of client 0 are drawn, of {edges(W)} messages in all.")
    if not all(link.mutual for link in links):
        notes.append("A link that goes one way is dotted on the sender's half.")
    busy = _busy(links)
    marks = {cell: "●" if i in busy else "○" for i, cell in enumerate(cells)}
    steps = (base * 10**k for k in range(digits + 1) for base in (1, 2, 5))
    numbers = next(filter(None, (_labels(cells, step) for step in steps)), {})  # all of them, or every 2nd, 5th, ...
    return "\n".join([_render(dots, numbers | marks), *notes])


def draw_png(W: Tensor, path: Path, title: str) -> None:
    """Draw the same circle as a picture; an arrow points at the receiver of a link that goes one way."""
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
