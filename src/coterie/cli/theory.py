"""``coterie theory``: a theorem beside runs, its constants, what it assumes, the measured norms and the bound."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..algorithms import builder
from ..algorithms.settings import parse_settings
from ..core.errors import UserError
from ..theory import Outcome, examine
from .console import check_png, picture, plain_console, table

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
    settings = parse_settings(items, {method: builder(method)})[method]
    if png is not None:
        check_png(png)
    asked: dict[str, Any] = {"topology": topology, "problem": problem, "seed": seed, "seeds": seeds, **settings}
    o = examine(method, clients=clients, rounds=rounds, **asked)
    console = plain_console()
    console.print(f"{o.method} · {o.theorem} · {clients} clients, {rounds} rounds", style="bold")
    console.print(f"bounded: {o.quantity}\n")
    for made in _tables(o):
        console.print(made)
        console.print()
    for note in o.notes:
        console.print(f"note: {note}")
    if png is not None:
        draw(o, png)
        console.print(f"drawn to {png}", soft_wrap=True)
    if o.void:
        raise UserError("no bound: " + "; ".join(f"not true that {c.text}: {c.fix}" for c in o.void))
    console.print(bound_verdict(o), soft_wrap=True)


def bound_verdict(o: Outcome) -> str:
    """Return what the curves say, in one sentence per bound."""
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


def _tables(o: Outcome) -> Iterator[Table]:
    """Yield the constants, the assumptions, and some of the rounds."""
    constants = table("constant", ">value", "known", "meaning")
    for c in o.constants:
        constants.add_row(c.name, f"{c.value:.5g}", _HOW[c.how], c.meaning)
    yield constants
    assumed = table("holds", "assumed")
    for condition in o.conditions:
        assumed.add_row("yes" if condition.holds else "NO", condition.text)
    yield assumed
    columns = {"measured": o.measured, "bound": o.bound, "completed": o.completed}
    told = {k: v for k, v in columns.items() if v is not None}
    rounds = table(">T", *(f">{name}" for name in told))
    T = len(o.measured)
    for t in sorted({round(1 + k * (T - 1) / (ROWS - 1)) for k in range(ROWS)}):
        rounds.add_row(str(t), *(f"{v[t - 1]:.5g}" for v in told.values()))
    yield rounds


def draw(o: Outcome, path: Path) -> None:
    """Draw the measured and the bounds over T, both axes logarithmic."""
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
