"""``coterie bench``: the table of speeds."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..bench import Result, find, machine, measure
from ..bench.measure import LOSS_TOLERANCE
from ..store.files import write_json

GIB = 1024**3


def show_bench(workloads: list[str], repeats: int, out: Path | None) -> None:
    """Measures the workloads and prints a row each; status 1 where the two sides did not learn the same."""
    chosen = find(workloads)
    progress = Console(stderr=True, highlight=False)
    results = [measure(w, repeats, progress.print) for w in chosen]
    if out is not None:
        write_json(out, {"machine": machine(), "repeats": repeats, "workloads": [as_json(r) for r in results]})
    show(results, repeats)
    if not all(r.losses_agree for r in results):
        raise typer.Exit(1)


def as_json(result: Result) -> dict[str, Any]:
    """Everything that was measured, and what follows from it."""
    return {
        **asdict(result),
        "description": str(result.workload),
        "plain_seconds": result.plain.seconds,
        "coterie_seconds": result.coterie.seconds,
        "ratio": result.ratio,
        "ratio_by_repeat": result.ratios,
    }


def show(results: list[Result], repeats: int) -> None:
    """The table, then what its numbers are."""
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("", style="bold", no_wrap=True)
    for heading in ("plain loop", "coterie", "times faster", "test loss", "peak memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    console.print(table)
    for result in results:
        console.print(f"[bold]{result.workload.name}[/bold]  {result.workload}")
    console.print(_protocol(repeats))


def _cells(r: Result) -> list[str]:
    ratio = "losses differ" if r.ratio is None else f"{r.ratio:.2f} ({min(r.ratios):.2f} to {max(r.ratios):.2f})"
    return [
        r.workload.name,
        _seconds(r.plain.seconds),
        _seconds(r.coterie.seconds),
        ratio,
        f"{r.plain.test_loss:.3f} / {r.coterie.test_loss:.3f}",
        " / ".join("-" if s.peak_memory is None else f"{s.peak_memory / GIB:.2f}" for s in (r.plain, r.coterie)) + " GiB",
        r.coterie.engine,
    ]


def _seconds(s: float) -> str:
    return f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s"


def _protocol(repeats: int) -> str:
    facts = machine()
    return f"""
plain loop, coterie: a round's local work and mixing without evaluation, the median over {repeats} repeats that take turns
times faster: their ratio (slowest to fastest repeat); shown only where the test losses agree within {LOSS_TOLERANCE:.0%},
  as the sides shuffle differently
test loss, peak memory: plain loop / coterie; memory is resident, data included, in a process of its own
torch {facts["torch"]}, Python {facts["python"]}, {facts["threads"]} threads, CPU, {facts["system"]}"""
