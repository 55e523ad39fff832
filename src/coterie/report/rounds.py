"""What changes over the rounds beside accuracy: what nodes send, the blocks of a model; and exchanges for rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..recipes import load
from .charts import COLORS, DASHES, SYMBOLS, Chart, Figure, Measure, lines
from .collect import Record
from .drawn import other_than_published
from .groups import Method, Setup

TRAFFIC = (
    Measure("parameters a message", "parameters_sent", per="messages_sent"),
    Measure("bytes of the busiest node, up", "busiest_bytes_up"),
    Measure("bytes of the busiest node, down", "busiest_bytes_down"),
)
BLOCK = "smallest_singular_value_block_"
EXCHANGES = "exchanges"


def traffic(setup: Setup) -> Chart | None:
    """What one message holds, and what the busiest node carries; None where that is one number for all and always."""
    views = {m.title: figure for m in TRAFFIC if (figure := lines(setup, m))["data"]}
    if all(len({y for trace in figure["data"] for y in trace["y"]}) < 2 for figure in views.values()):
        return None
    caption = (
        "Around a server every participant gets one message and sends one, so parameters a message are those of a "
        "client in a round. The busiest node is the one that sends or gets most; a server is a node."
    )
    return Chart("traffic", "Sent in a round", caption, views)


def blocks(setup: Setup) -> Chart | None:
    """The smallest singular value of every block, where it was recorded; a view a method."""
    views = {m.label: figure for m in setup.methods if (figure := _of_blocks(m))["data"]}
    if not views:
        return None
    caption = (
        "Of all factors in a block of the model, after mixing, the smallest over the clients; seed by seed a mean."
    )
    return Chart("blocks", "Smallest singular value by block", caption, views)


def _of_blocks(method: Method) -> Figure:
    count = sum(key.startswith(BLOCK) for key in method.first.history[-1])
    curves = {
        f"block {k}": curve
        for k in range(1, count + 1)
        if (curve := method.curve(Measure("", f"{BLOCK}{k}", log=True))) is not None
    }
    traces = [_trace(name, i, c.rounds, c.mean) for i, (name, c) in enumerate(curves.items())]
    along = {"title": {"text": "singular value"}, "type": "log", "exponentformat": "power"}
    return {"data": traces, "layout": {"xaxis": {"title": {"text": "round"}}, "yaxis": along}}


def exchanges(recipe: Mapping[str, Any], records: Sequence[Record]) -> list[Chart]:
    """Accuracy of the common model over exchanges, of which a round may have several; a chart for every graph."""
    if recipe.get("draws") != EXCHANGES:
        return []
    cases = load(recipe["recipe"]).cases
    placed = [(cases[int(r.case) - 1].label, r) for r in records if r.case and r.seed == 0]
    charts: list[Chart] = []
    for graph in dict.fromkeys(label.rpartition(" ")[0] for label, _ in placed):
        mine = [(label.rpartition(" ")[2], r) for label, r in placed if label.rpartition(" ")[0] == graph]
        traces = [_over_exchanges(name, i, record) for i, (name, record) in enumerate(mine)]
        layout = {"xaxis": {"title": {"text": "exchange"}}, "yaxis": {"title": {"text": "accuracy, %"}}}
        caption = (
            "The mean of all models on all test samples after so many exchanges between neighbors; a round with "
            f"several gossip steps counts as many. Seed 0.{other_than_published(recipe)}"
        )
        name = f"{recipe['recipe']}-exchanges-{len(charts) + 1}"
        charts.append(
            Chart(name, f"Accuracy over exchanges: {graph}", caption, {"": {"data": traces, "layout": layout}})
        )
    return charts


def _over_exchanges(name: str, place: int, record: Record) -> dict[str, Any]:
    steps = record.config["settings"].get("gossip_steps", 1)  # a run folder has no program to ask
    known = [(steps * row["round"], 100 * v) for row in record.history if (v := row["global_accuracy"]) is not None]
    return _trace(name, place, [x for x, _ in known], [y for _, y in known])


def _trace(name: str, place: int, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines+markers" if len(x) <= 20 else "lines",
        "x": list(x),
        "y": list(y),
        "line": {"color": COLORS[place % len(COLORS)], "dash": DASHES[place % len(DASHES)], "width": 2},
        "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 7},
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{y:.4~g}<extra></extra>",
    }
