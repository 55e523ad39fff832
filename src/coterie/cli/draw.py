"""The graph of a mixing matrix on a circle, in the terminal and as a picture."""

from collections.abc import Iterable
from math import cos, pi, sin
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ..topology import edges, in_neighbors
from .picture import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]
Cell = tuple[int, int]


class Arrow(NamedTuple):
    """A message's way; a mutual one also carries a message back."""

    sender: int
    receiver: int
    mutual: bool


# A character cell of braille is 2 dots wide and 4 high; _BITS[y][x] is the dot's bit above U+2800.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
# Above this share of dots set inside the circle, single lines cannot be told apart.
_FULLEST = 0.4
# Up to this angle from the vertical a number stands above or below its node, beyond it to the side.
_CAP = pi / 7
_INK, _LINK, _BUSY, _IDLE = "#1f2937", "#64748b", "#2563eb", "#cbd5e1"


def _around(n: int) -> list[Point]:
    """n points on the unit circle, clockwise from the top; y grows downwards."""
    return [(sin(2 * pi * i / n), -cos(2 * pi * i / n)) for i in range(n)]


def _links(W: Tensor) -> list[Arrow]:
    """Every link; one that goes both ways is listed once."""
    heard = [set(row) for row in in_neighbors(W)]
    return [
        Arrow(j, i, i in heard[j]) for i, row in enumerate(heard) for j in sorted(row) if i not in heard[j] or j < i
    ]


def _busy(links: Iterable[Arrow]) -> set[int]:
    return {client for link in links for client in link[:2]}


def _line(start: Cell, end: Cell, mutual: bool) -> set[Cell]:
    """The dots between the middles of two cells; the sender's half of a one-way link is dotted."""
    (x0, y0), (x1, y1) = ((2 * x + 1, 4 * y + 2) for x, y in (start, end))
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    shares = (s / steps for s in range(steps + 1) if mutual or s > steps / 2 or s % 4 == 0)
    return {(round(x0 + (x1 - x0) * share), round(y0 + (y1 - y0) * share)) for share in shares}


def _lines(cells: list[Cell], links: Iterable[Arrow]) -> set[Cell]:
    return set().union(*(_line(cells[link.sender], cells[link.receiver], link.mutual) for link in links))


def _places(n: int, radius: int) -> list[Cell]:
    """The cells of the nodes; a cell is twice as high as wide, hence half the radius downwards."""
    left, top = radius + 2 + len(str(n - 1)), (radius + 1) // 2 + 1
    return [(left + round(radius * x), top + round(radius / 2 * y)) for x, y in _around(n)]


def _label(number: str, node: Cell, direction: Point) -> tuple[Cell, str]:
    """Where the number of a node begins and what to write, with a blank towards a node beside it."""
    (x, y), (right, down) = node, direction
    if abs(down) > cos(_CAP):
        return (x - len(number) // 2, y + (1 if down > 0 else -1)), number
    return ((x + 1, y), " " + number) if right > 0 else ((x - 1 - len(number), y), number + " ")


def _labels(cells: list[Cell], step: int) -> dict[Cell, str] | None:
    """The number of every step-th node, a character a cell, or None where two would touch."""
    taken = dict.fromkeys(cells, " ")
    directions = _around(len(cells))
    for i in range(0, len(cells), step):
        (left, y), text = _label(str(i), cells[i], directions[i])
        around = {(left + d, y) for d in range(-1, len(text) + 1)} - {cells[i]}
        if not around.isdisjoint(taken):
            return None
        taken |= {(left + d, y): character for d, character in enumerate(text)}
    return taken


def _numbers(cells: list[Cell]) -> dict[Cell, str]:
    """As many numbers as fit: all of them, or every second, fifth, tenth, ..."""
    steps = (base * 10**k for k in range(len(str(len(cells)))) for base in (1, 2, 5))
    return next(filter(None, (_labels(cells, step) for step in steps)), {})


def _render(dots: set[Cell], cells: dict[Cell, str]) -> str:
    """Dots as braille, overwritten by the characters of the cells; blank edges are cut off."""
    codes: dict[Cell, int] = {}
    for x, y in dots:
        codes[x // 2, y // 4] = codes.get((x // 2, y // 4), 0x2800) | _BITS[y % 4][x % 2]
    drawn = {cell: chr(code) for cell, code in codes.items()} | cells
    rows, columns = range(max(y for _, y in drawn) + 1), range(max(x for x, _ in drawn) + 1)
    return "\n".join("".join(drawn.get((x, y), " ") for x in columns).rstrip() for y in rows)


def draw_terminal(W: Tensor, width: int = 60) -> str:
    """The graph on a circle, `width` characters wide and half as many lines high, clockwise from the top.

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
    radius = max(width // 2 - 2 - len(str(len(W) - 1)), 3)
    cells = _places(len(W), radius)
    dots, notes = _lines(cells, links), []
    if len(dots) > _FULLEST * pi * (2 * radius) ** 2:
        dots = _lines(cells, [link for link in links if 0 in link[:2]])
        notes.append(f"Only the links of client 0 are drawn, of {edges(W)} messages in all.")
    if not all(link.mutual for link in links):
        notes.append("A link that goes one way is dotted on the sender's half.")
    busy = _busy(links)
    marks = {cell: "●" if i in busy else "○" for i, cell in enumerate(cells)}
    return "\n".join([_render(dots, _numbers(cells) | marks), *notes])


def draw_png(W: Tensor, path: Path, title: str) -> None:
    """The same circle as a picture; an arrow points at the receiver of a link that goes one way."""
    with picture(path, 8, 8.4) as figure:
        axes = figure.add_subplot(aspect="equal")
        axes.set_axis_off()
        axes.set_title(title, fontsize=13, color=_INK, pad=12)
        axes.set(xlim=(-1.12, 1.12), ylim=(1.12, -1.12))
        links, places = _links(W), _around(len(W))
        # The diameter of a node in points, so that neighbors on a circle of some 1500 points keep apart.
        node = min(30.0, 600 / len(W))
        _paint_links(axes, places, links, node)
        _paint_nodes(axes, places, _busy(links), node)


def _paint_links(axes: "Axes", places: list[Point], links: list[Arrow], node: float) -> None:
    """Lines for links both ways, bent arrows for the others; the more there are, the fainter."""
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
    """Discs over the ends of the links, numbered inside, or beside where the disc is too small."""
    colors = [_BUSY if i in busy else _IDLE for i in range(len(places))]
    across, down = [x for x, _ in places], [y for _, y in places]
    axes.scatter(across, down, s=node**2, c=colors, edgecolors="white", linewidths=1.2, zorder=3)
    inside = node >= 18
    size, color, away = (node / 2.4, "white", 1.0) if inside else (min(9, 800 / len(places)), _INK, 1.06)
    for i, (x, y) in enumerate(places):
        axes.annotate(str(i), (away * x, away * y), ha="center", va="center", fontsize=size, color=color)
