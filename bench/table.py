"""The table of speeds, for people."""

from collections.abc import Iterator, Mapping
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from measure import LOSS_TOLERANCE, machine
from sides import WARM_UP, Side
from workloads import Workload

Results = Mapping[Workload, Mapping[str, Side]]
"""By workload and name; coterie is one of the sides, and what the others are measured by."""

HEADINGS = ("a round", "times coterie's", "CPU", "start-up", "loss", "GiB")


def show(results: Results, repeats: int) -> None:
    """A row a side, then what the rows and the numbers are."""
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for heading in ("", "", *HEADINGS):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for workload, sides in results.items():
        for name, side in sides.items():
            table.add_row(workload.name if name == "coterie" else "", name, *_cells(side, sides["coterie"]))
        table.add_section()
    console.print(table)
    for line in (*_notes(results), *_protocol(repeats)):
        console.print(line, soft_wrap=True)


def _cells(side: Side, coterie: Side) -> list[str]:
    if side.left_out is not None:
        return ["left out"]
    ratio = side.ratio(coterie)
    told = "losses differ" if ratio is None else "{} ({} to {})".format(*map(_times, ratio))
    return [
        _seconds(side.seconds),
        "" if side is coterie else told,
        _seconds(side.cpu_seconds),
        f"{median(side.start_ups):.1f} s",
        f"{median(side.test_losses):.3f}",
        gib(side.peak_memory),
    ]


def _notes(results: Results) -> Iterator[str]:
    """What was played, how each side ran its clients, and who is missing."""
    for workload, sides in results.items():
        yield f"[bold]{workload.name}[/bold]  {workload}"
        for name, side in sides.items():
            versions = ", ".join(f"{package} {version}" for package, version in side.versions.items())
            yield f"    {name}: " + (
                f"{side.engine}; {versions}" if side.left_out is None else f"left out, {side.left_out}"
            )


def _protocol(repeats: int) -> Iterator[str]:
    facts = machine()
    yield f"""
a round: the median, without evaluation; repeats: {repeats}, all sides in turns, each in a fresh
  process, rounds not counted at its beginning: {WARM_UP}
times coterie's: the ratio of the medians (of the repeats: least to most), only where the test
  losses of the first weights are the same and the last ones agree within {LOSS_TOLERANCE:.0%}:
  the sides shuffle differently
CPU: the processor time of a round, mean, all processes of a side: what it needs, however busy
  the machine is
start-up: from the start of the process to the end of its first round
loss: of the server's model on the test samples after the last round
GiB: the most memory all processes of a side held together, shared pages counted once
Python {facts["python"]}, CPU, {facts["system"]}"""


def _seconds(s: float) -> str:
    return f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def gib(size: int | None) -> str:
    """A size in GiB; a dash where it is not known."""
    return "-" if size is None else f"{size / 1024**3:.2f}"
