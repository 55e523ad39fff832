"""``coterie theory``: a theorem beside runs, its constants, what it assumes, the measured norms and the bound."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ...algorithms import builder
from ...algorithms.settings import parse_settings
from ...cli.common.console import check_png, picture, plain_console, table
from ...core.errors import UserError
from ..theory import Outcome, Sweep, examine, sweep
from ..theory.theorems import CLIENTS, ROUNDS

ROWS = 12  # of the table, the first and the last round among them
_HOW = {"exact": "exact", "seen": "at the points of the run"}


class TheoryRequest(NamedTuple):
    """What is asked of a theorem; None: the default."""

    clients: int | None
    rounds: int | None
    topology: str | None
    problem: str
    seed: int
    seeds: int
    corollary: bool  # whether its rates are asked for
    items: Sequence[str]  # of --set

    def asked(self, method: str) -> dict[str, Any]:
        """Return the arguments of ``examine`` that are given."""
        named = {k: getattr(self, k) for k in ("clients", "rounds", "topology", "problem", "seed", "seeds")}
        rates = {"rates": "corollary"} if self.corollary else {}
        settings = parse_settings(self.items, {method: builder(method)})[method]
        return {**{k: v for k, v in named.items() if v is not None}, **rates, **settings}


def show_theory(method: str, request: TheoryRequest, png: Path | None) -> None:
    """Print a theorem beside runs; where something it assumes fails, the measured alone, and what to change."""
    asked = request.asked(method)
    if png is not None:
        check_png(png)
    o = examine(method, **asked)
    console = plain_console()
    clients, rounds = asked.get("clients", CLIENTS), asked.get("rounds", ROUNDS)
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


def show_sweep(method: str, text: str, request: TheoryRequest, png: Path | None) -> None:
    """Print a corollary beside runs at several values of one quantity, and the slopes in a log-log plot."""
    name, equals, listed = text.partition("=")
    if not equals:
        raise UserError(f"--sweep {text} names no values: give them, as in --sweep T=100,400,1600")
    if request.corollary:
        raise UserError("a sweep has the rates of the corollary: leave --corollary out")
    asked = request.asked(method)
    if png is not None:
        check_png(png)
    s = sweep(method, name.strip(), [value.strip() for value in listed.split(",")], **asked)
    console = plain_console()
    first = s.points[0].outcome
    console.print(f"{first.method} · {s.where} · {first.theorem}", style="bold")
    console.print(f"bounded: {first.quantity}\n")
    points = table(*dict.fromkeys((f">{s.name}", f">{s.order.x}")), ">lr", ">measured", ">bound")
    for p in s.points:
        x = [] if s.order.x == s.name else [f"{p.x:.4g}"]
        bound = "-" if p.bound is None else f"{p.bound:.5g}"
        points.add_row(str(p.value), *x, f"{p.outcome.settings['lr']:.4g}", f"{p.measured:.5g}", bound)
    console.print(points)
    console.print(sweep_verdict(s), soft_wrap=True)
    if png is not None:
        draw_sweep(s, png)
        console.print(f"drawn to {png}", soft_wrap=True)
    _refuse_void(s)


def sweep_verdict(s: Sweep) -> str:
    """Return the fitted exponents beside the stated one."""
    fitted = {"measured": s.measured_slope, "bound": s.bound_slope}
    slopes = ", ".join(f"{k} {'has none' if v is None else f'{v:+.3f}'}" for k, v in fitted.items())
    return f"fitted exponent of {s.order.x}: {slopes}; the corollary states {s.order.exponent:+g}, of {s.order.terms}"


def _refuse_void(s: Sweep) -> None:
    """End with status 2 where a point has no bound, as a single one does."""
    void = {p.value: p.outcome.void for p in s.points if p.outcome.void}
    if void:
        value, failing = next(iter(void.items()))
        told = "; ".join(f"not true that {c.text}: {c.fix}" for c in failing)
        raise UserError(f"no bound at {s.name} = {', '.join(map(str, void))}; at {value}: {told}")


def draw_sweep(s: Sweep, path: Path) -> None:
    """Draw the points of a sweep, both axes logarithmic."""
    with picture(path, 8, 5) as figure:
        axes = figure.add_subplot(xscale="log", yscale="log", xlabel=s.order.x, ylabel="over all rounds")
        bounds = [(p.x, p.bound) for p in s.points if p.bound is not None]
        axes.plot([p.x for p in s.points], [p.measured for p in s.points], "o-", label="measured", color="#3949ab")
        axes.plot([x for x, _ in bounds], [b for _, b in bounds], "o-", label="bound", color="#c62828")
        axes.set_title(f"{s.points[0].outcome.method}: {s.where}", fontsize=10)
        axes.legend()
        axes.grid(alpha=0.3)
