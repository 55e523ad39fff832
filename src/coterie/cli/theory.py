"""A theorem beside runs: its constants, what it assumes, the measured norms and the bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..algorithms import builder
from ..algorithms.settings import meant
from ..core.errors import UserError
from ..theory import Outcome, examine
from .picture import check_png, picture

ROWS = 12  # of the table, the first and the last round among them
_HOW = {"exact": "exact", "seen": "at the points of the run"}


def show_theory(
    method: str,
    clients: int,
    rounds: int,
    topology: str | None,
    problem: str,
    seed: int,
    seeds: int,
    items: Sequence[str],
    png: Path | None,
) -> None:
    """Print a theorem beside runs; where something it assumes fails, the measured alone, and what to change."""
    settings = meant(items, {method: builder(method)})[method]
    if png is not None:
        check_png(png)
    asked: dict[str, Any] = {"topology": topology, "problem": problem, "seed": seed, "seeds": seeds, **settings}
    o = examine(method, clients=clients, rounds=rounds, **asked)
    console = Console()
    console.print(f"{o.method} · {o.theorem} · {clients} clients, {rounds} rounds", style="bold", highlight=False)
    console.print(f"bounded: {o.quantity}\n", highlight=False)
    for table in (_constants(o), _conditions(o), _rounds(o)):
        console.print(table)
        console.print()
    for note in o.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    if png is not None:
        draw(o, png)
        console.print(f"drawn to {png}", markup=False, highlight=False, soft_wrap=True)
    if o.void:
        raise UserError("no bound: " + "; ".join(f"not true that {c.text}: {c.fix}" for c in o.void))
    console.print(verdict(o), highlight=False, soft_wrap=True)


def verdict(o: Outcome) -> str:
    """What the curves say, in one sentence a bound."""
    said = []
    for name, bound in (("bound", o.bound), ("completed bound", o.completed)):
        if bound is not None:
            above = o.first_above(bound)
            how = (
                f"holds for every T; at the end it is {bound[-1] / max(o.measured[-1], 1e-300):.3g} times the measured"
            )
            said.append(
                f"the {name} {how if above is None else f'does not hold: the measured is above it at T = {above}'}"
            )
    return "; ".join(said)


def _constants(o: Outcome) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None)
    for heading in ("constant", "value", "known", "meaning"):
        table.add_column(heading, justify="right" if heading == "value" else "left", overflow="fold")
    for c in o.constants:
        table.add_row(c.name, f"{c.value:.5g}", _HOW[c.how], c.meaning)
    return table


def _conditions(o: Outcome) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None)
    table.add_column("holds")
    table.add_column("assumed", overflow="fold")
    for c in o.conditions:
        table.add_row("yes" if c.holds else "NO", c.text)
    return table


def _rounds(o: Outcome) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None)
    columns = {"measured": o.measured, "bound": o.bound, "completed": o.completed}
    told = {k: v for k, v in columns.items() if v is not None}
    for heading in ("T", *told):
        table.add_column(heading, justify="right")
    T = len(o.measured)
    for t in sorted({round(1 + k * (T - 1) / (ROWS - 1)) for k in range(ROWS)}):
        table.add_row(str(t), *(f"{v[t - 1]:.5g}" for v in told.values()))
    return table


def draw(o: Outcome, path: Path) -> None:
    """The measured and the bounds over T, both axes logarithmic."""
    with picture(path, 8, 5) as figure:
        axes = figure.add_subplot(xscale="log", yscale="log", xlabel="T", ylabel=o.quantity.split(" of ", 1)[-1])
        T = range(1, len(o.measured) + 1)
        axes.plot(T, o.measured, label="measured", color="#3949ab")
        if o.bound is not None:
            axes.plot(T, o.bound, label=o.theorem, color="#c62828")
        if o.completed is not None:
            axes.plot(T, o.completed, label="with the terms its proof drops", color="#c62828", linestyle="--")
        axes.set_title(f"{o.method}: {o.quantity}", fontsize=10)
        axes.legend()
        axes.grid(alpha=0.3)
