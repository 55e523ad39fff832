"""What a topology does to a federation: how fast it mixes, what it costs, how it looks."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..core.errors import UserError
from ..core.spec import scaled
from ..topology import Topology, build, degree, diameter, edges, spectral_gap
from .draw import draw_png, draw_terminal

_ROUNDS = 20
_KINDS = {
    "doubly": "doubly stochastic: every mix keeps the mean",
    "row": "row-stochastic: the receiver sets the weights, the mean drifts",
    "column": "column-stochastic: the sender sets the weights, the sum is kept (push-sum)",
}


def show_topology(
    text: str,
    clients: int,
    seed: int = 0,
    round: int = 0,
    parameters: int | None = None,
    bytes_each: int = 4,
    model_name: str = "",
    png: Path | None = None,
) -> None:
    """Print the facts of a topology, what one round of it costs for a model, and the graph.

    >>> show_topology("ring", clients=4, parameters=1_000_000)  # doctest: +ELLIPSIS
    ring · 4 clients · the same every round
    matrix             doubly stochastic: every mix keeps the mean
    spectral gap       0.666667
    in-neighbors      2 least, 2 mean, 2 most
    diameter           2
    messages a round   8
    bytes a round      32 MB, exactly 32,000,000 bytes
                       8 messages x 1,000,000 parameters x 4 bytes
    ...
    """
    topology = build(text, clients, seed)
    if round < 0:
        raise UserError(f"the round must be 0 or more, not {round}")
    W = topology(round)
    when = "the same every round" if topology.fixed else f"round {round}, another one every round"
    title = f"{topology.name} · {clients} client{'' if clients == 1 else 's'} · {when}"
    console = Console()
    console.print(title, style="bold", highlight=False)
    console.print(_table(_facts(topology, W, round) + _cost(edges(W), parameters, bytes_each, model_name)))
    console.print()
    if png is None:
        # Larger circles for more clients, within what the window allows.
        width = min(console.width, 40 + 5 * clients // 8, 80)
        console.print(draw_terminal(W, width), markup=False, no_wrap=True, overflow="ignore", crop=False)
    else:
        draw_png(W, png, title)
        console.print(f"drawn to {png}", markup=False, highlight=False, soft_wrap=True)


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


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
        ("messages a round", f"{edges(W):,}"),
    ]


def _cost(messages: int, parameters: int | None, bytes_each: int, model_name: str) -> list[tuple[str, str]]:
    if parameters is None:
        return []
    total = messages * parameters * bytes_each
    model = f" of {model_name}" if model_name else ""
    why = f"{messages:,} messages x {parameters:,} parameters{model} x {bytes_each} bytes"
    return [("bytes a round", f"{scaled(total, 'B')}, exactly {total:,} bytes"), ("", why)]
