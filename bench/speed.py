"""Coterie beside a plain PyTorch loop that does the same work: python bench/speed.py [W1 W2 W3] [--repeats 3]

Both sides run side by side in one process; without names all workloads are measured. ``--out`` keeps the measurements
in a JSON file. The status is 1 where the two sides did not learn the same.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from coterie.cli.common.console import plain_console, table
from coterie.core.errors import UserError
from coterie.core.files import write_json
from measure import LOSS_TOLERANCE, Result, machine, measure, measure_memory
from workloads import find

GIB = 1024**3


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="W1, W2, W3; by default all")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side runs; the median counts")
    parser.add_argument("--out", type=Path, help="the JSON file for the measurements")
    typed = parser.parse_args()
    if typed.repeats < 1:
        parser.error(f"--repeats {typed.repeats} measures nothing: give 1 or more")
    try:
        return show_bench(typed.workloads, typed.repeats, typed.out)
    except UserError as error:
        parser.error(str(error))


def show_bench(workloads: list[str], repeats: int, out: Path | None) -> int:
    """Measure the workloads and print one row for each; return 1 where the two sides did not learn the same."""
    chosen = find(workloads)
    if out is not None and not out.parent.is_dir():  # said now, not after minutes of measuring
        raise UserError(f"the folder {out.parent} does not exist: create it, or choose another --out")
    progress = plain_console(stderr=True)
    results = []
    for workload in chosen:
        results.append(measure(workload, repeats, progress.print))
        measure_memory(results[-1], progress.print)
    show_measurements(results, repeats)
    if out is not None:
        write_json(out, {"machine": machine(), "repeats": repeats, "workloads": [as_json(r) for r in results]})
    return 0 if all(r.losses_agree for r in results) else 1


def as_json(result: Result) -> dict[str, Any]:
    """Return everything that was measured, and what follows from it."""
    return {
        **asdict(result),
        "description": str(result.workload),
        "plain_seconds": result.plain.seconds,
        "coterie_seconds": result.coterie.seconds,
        "ratio": result.ratio,
        "ratio_by_repeat": result.ratios,
    }


def show_measurements(results: list[Result], repeats: int) -> None:
    """Print the table, then what its rows and its numbers are."""
    console = plain_console()
    made = table("", ">plain loop", ">coterie", ">times faster", ">test loss", ">memory, GiB", no_wrap=True)
    made.columns[0].style = "bold"
    for r in results:
        ratio = "losses differ" if r.ratio is None else f"{r.ratio:.2f} ({min(r.ratios):.2f} to {max(r.ratios):.2f})"
        sides = (r.plain, r.coterie)
        seconds = (f"{1000 * s.seconds:.1f} ms" if s.seconds < 1 else f"{s.seconds:.2f} s" for s in sides)
        loss = f"{r.plain.test_loss:.3f} / {r.coterie.test_loss:.3f}"
        memory = ("-" if s.peak_memory is None else f"{s.peak_memory / GIB:.2f}" for s in sides)
        made.add_row(r.workload.name, *seconds, ratio, loss, " / ".join(memory))
    console.print(made)
    for r in results:
        console.print(Text.assemble((r.workload.name, "bold"), f"  {r.workload}"), soft_wrap=True)
        console.print(f"    coterie's engine: {r.coterie.engine}")
    console.print(_protocol(repeats), soft_wrap=True)


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


if __name__ == "__main__":
    sys.exit(main())
