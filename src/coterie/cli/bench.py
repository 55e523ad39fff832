"""``coterie bench``: the table of speeds."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..bench import Result, find, machine, measure, measure_memory
from ..bench.measure import LOSS_TOLERANCE
from ..core.errors import UserError
from ..core.files import write_json

GIB = 1024**3


def show_bench(workloads: list[str], repeats: int, out: Path | None) -> None:
    """Measures the workloads and prints a row each; status 1 where the two sides did not learn the same."""
    chosen = find(workloads)
    if out is not None and not out.parent.is_dir():  # said now, not after minutes of measuring
        raise UserError(f"the folder {out.parent} does not exist: create it, or choose another --out")
    progress = Console(stderr=True, highlight=False)
    results = []
    for workload in chosen:
        results.append(measure(workload, repeats, progress.print))
        measure_memory(results[-1], progress.print)
    show(results, repeats)
    if out is not None:
        write_json(out, {"machine": machine(), "repeats": repeats, "workloads": [as_json(r) for r in results]})
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
    """The table, then what its rows and its numbers are."""
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("", style="bold", no_wrap=True)
    for heading in ("plain loop", "coterie", "times faster", "test loss", "memory, GiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    console.print(table)
    for result in results:
        console.print(f"[bold]{result.workload.name}[/bold]  {result.workload}", soft_wrap=True)
        console.print(f"    coterie's engine: {result.coterie.engine}")
    console.print(_protocol(repeats), soft_wrap=True)


def _cells(r: Result) -> list[str]:
    ratio = "losses differ" if r.ratio is None else f"{r.ratio:.2f} ({min(r.ratios):.2f} to {max(r.ratios):.2f})"
    memory = ("-" if s.peak_memory is None else f"{s.peak_memory / GIB:.2f}" for s in (r.plain, r.coterie))
    return [
        r.workload.name,
        _seconds(r.plain.seconds),
        _seconds(r.coterie.seconds),
        ratio,
        f"{r.plain.test_loss:.3f} / {r.coterie.test_loss:.3f}",
        " / ".join(memory),
    ]


def _seconds(s: float) -> str:
    return f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s"


def _protocol(repeats: int) -> str:
    facts = machine()
    return f"""
plain loop, coterie: the median round: local work and mixing, without evaluation;
  {repeats} repeats, the two sides taking turns
times faster: the ratio of the two medians (slowest to fastest repeat), only where the
  test losses agree within {LOSS_TOLERANCE:.0%}: the sides shuffle differently
test loss, memory: plain loop / coterie; memory is the resident peak, data included,
  of a process of its own
torch {facts["torch"]}, Python {facts["python"]}, {facts["threads"]} threads, CPU, {facts["system"]}"""
