"""The figure of a method: one round as SVG inside the page. Colors come from the style sheet."""

import math
from collections.abc import Iterator

from method_round import CLIENTS, ROWS, Bar, MethodRound

WIDTH, HEIGHT = 620, 430
CENTER, RADIUS = (310.0, 215.0), 150.0
LAYER, GAP, FULL = 10, 2, 56  # height of a layer, space between two, width of a whole one
KINDS = {
    "shared": "shared: this part is sent and mixed",
    "personal": "personal: this part never leaves its client",
    "group": "shared among clients of the same width only",
    "drawn": "initial: this part is not trained while the others train together",
}


def picture(p: MethodRound, name: str) -> str:
    """Return the figure, with its legend and a sentence for readers who cannot see it."""
    inside = "".join((*links(p), *hub(p), *(client(p, i) for i in range(CLIENTS))))
    arrow = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
    )
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{sentence(p, name)}">{arrow}{inside}</svg>'
    return f'<figure class="method">{drawing}<figcaption>{legend(p)}</figcaption></figure>'


def sentence(p: MethodRound, name: str) -> str:
    """Return what the drawing shows, in words."""
    among = {b.kind for tower in p.towers for model in tower for b in model}
    where = f"{CLIENTS} clients of {name}"
    if not p.traffic.totals.messages:
        return f"{where}; each trains alone, and nothing is sent."
    how = f"{len(p.cohort)} of them exchange with a server" if p.W is None else "exchange with their neighbors"
    return f"{where}; {how}. " + " ".join(f"{text[0].upper()}{text[1:]}." for k, text in KINDS.items() if k in among)


def legend(p: MethodRound) -> str:
    """Return the colors that occur, and the other marks."""
    every = [b for tower in p.towers for model in tower for b in model]
    lines = [f'<i class="{k}"></i>{text}' for k, text in KINDS.items() if any(b.kind == k for b in every)]
    if any(b.factors for b in every):
        lines.append("two thin bars: a product of two factors, as long as its rank")
    if "mask" in p.slots:
        lines.append("gaps: entries that are zero, which differ between clients")
    elif any(b.held != ((0.0, 1.0),) and not b.factors for b in every):
        lines.append("shorter bars and gaps: channels that the client does not have")
    if any(b.beside for b in every):
        lines.append("dots: a further head on this stage")
    if len(p.cohort) < CLIENTS:
        lines.append("faint: the client does not take part in this round")
    if "mu" in p.slots:
        lines.append("μ: a weight that is sent along and de-biases")
    if "c" in p.slots:
        lines.append("c: a control variate that is sent along")
    lines.append(f"layers from bottom to top: {', '.join(ROWS)}")
    return " · ".join(f"<span>{line}</span>" for line in lines)


def place(i: int) -> tuple[float, float]:
    """Return the middle of a client."""
    angle = 2 * math.pi * i / CLIENTS - math.pi / 2
    return CENTER[0] + 1.45 * RADIUS * math.cos(angle), CENTER[1] + RADIUS * math.sin(angle)


def links(p: MethodRound) -> Iterator[str]:
    """Draw who exchanges with whom: both ways with a server, else along the edges of the round."""
    if not p.traffic.totals.messages:
        return
    if p.W is None:
        yield from (line(place(i), CENTER, "both") for i in p.cohort)
        return
    for i, j in p.W.nonzero().tolist():  # i receives from j
        mutual = bool(p.W[j, i] > 0)
        if i != j and not (mutual and i < j):
            yield line(place(j), place(i), "both" if mutual else "one")


def line(start: tuple[float, float], end: tuple[float, float], ways: str) -> str:
    """Return a line between two clients that ends before their frames."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    short = min(0.38 * length, 50.0)
    a, b = (x1 + dx * short, y1 + dy * short), (x2 - dx * short, y2 - dy * short)
    tip = ' marker-end="url(#tip)"' if ways == "one" else ""
    return f'<line class="link" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"{tip}/>'


def hub(p: MethodRound) -> Iterator[str]:
    """Draw the server, or the number of exchanges."""
    x, y = CENTER
    if p.W is None:
        yield f'<rect class="server" x="{x - 40}" y="{y - 18}" width="80" height="36" rx="7"/>'
        yield text(x, y + 5, "server, c" if "c" in p.slots else "server", "inverse")
    elif p.exchanges > 1:
        yield text(x, y + 5, f"{p.exchanges} exchanges per round", "note")


def client(p: MethodRound, i: int) -> str:
    """Draw a client: its models side by side in a frame."""
    models = p.towers[i]
    x, y = place(i)
    width, height = len(models) * (FULL + 8) + 8, len(ROWS) * (LAYER + GAP) + 14
    left, top = x - width / 2, y - height / 2
    frame = f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{width}" height="{height}" rx="8"/>'
    inside = "".join(tower(m, left + 8 + k * (FULL + 8), top + height - 8, i) for k, m in enumerate(models))
    mark = "".join(sign for slot, sign in (("mu", " μ"), ("c", " cᵢ")) if slot in p.slots)
    faint = "" if i in p.cohort else ' class="faint"'
    return f"<g{faint}>{frame}{inside}{text(x, top + height + 14, f'client {i}{mark}', 'note')}</g>"


def tower(bars: tuple[Bar, ...], left: float, bottom: float, i: int) -> str:
    """Draw a model, layer upon layer; where a layer is partly shared and partly not, both halves."""
    out = []
    for row in range(len(ROWS)):
        here = [b for b in bars if b.row == row and not b.beside]
        top, height = bottom - (row + 1) * (LAYER + GAP) + GAP, LAYER / max(1, len(here))
        out += [shape(b, left, top + k * height, height - (0.5 if len(here) > 1 else 0), i) for k, b in enumerate(here)]
        if any(b.beside for b in bars if b.row == row):
            out.append(f'<circle class="shared" cx="{left + FULL + 4}" cy="{top + LAYER / 2}" r="3"/>')
    return "".join(out)


def shape(b: Bar, left: float, top: float, height: float, i: int) -> str:
    """Draw a bar, with its gaps, or two thin ones."""
    name = f"{b.kind} own{i}" if b.kind == "personal" else b.kind
    thin = height * 0.36
    rows = [(top, thin), (top + height - thin, thin)] if b.factors else [(top, height)]
    return "".join(
        f'<rect class="{name}" x="{left + a * FULL:.1f}" y="{y:.1f}" width="{(z - a) * FULL:.1f}" height="{h:.1f}"/>'
        for y, h in rows
        for a, z in b.held
    )


def text(x: float, y: float, words: str, kind: str) -> str:
    """Write words in the middle of a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{words}</text>'
