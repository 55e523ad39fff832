"""``coterie data show``: who would hold which classes."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console

from ...core.errors import UserError
from ...core.spec import counted, parse, spelled
from ...data import SOURCES, Federation, federate
from ...data.partition import NATURAL
from ...study.presets import PRESETS
from ..common.console import INK, picture, plain_console
from ..common.rows_format import for_programs, print_rows

Counts = Sequence[Sequence[int]]
"""[clients][classes] training samples."""

PARTITION, CLIENTS = "dirichlet:0.3", 100  # of what is shown, unless it is typed


def show_split(
    source: str,
    clients: int | None,
    partition: str | None,
    seed: int,
    folder: Path | None,
    png: Path | None,
    format: str,
) -> None:
    """Print what every client holds, or draw it to a file."""
    if for_programs(format) and png is not None:
        raise UserError(f"--png draws, and --format {format} is for programs: leave one of them out")
    source = spelled(source, SOURCES)
    suits = PRESETS.get(parse(source).name)
    if partition is None and suits is not None and suits.partition is not None:  # tables know it themselves
        partition = PARTITION
    if clients is None and partition not in (None, NATURAL):
        clients = CLIENTS
    federation = federate(source, clients, partition, seed, folder)
    counts, clients = split_counts(federation), federation.clients
    if for_programs(format):
        rows = [
            {"client": name, "samples": sum(row), **{f"class {c}": count for c, count in enumerate(row)}}
            for name, row in zip(federation.names or range(clients), counts, strict=True)
        ]
        known = {"data": source, "partition": federation.origin["partition"], "seed": seed}
        print_rows(format, rows, {**known, "clients": rows})
        return
    divided = f"partitioned with {federation.origin['partition']} among {counted(clients, 'client')}"
    title = f"{source}, {divided}, seed {seed}"
    print_split(plain_console(), counts, title)
    if png is not None:
        draw_split(counts, png, title)
        print(f"drawn to {png}")


def split_counts(federation: Federation) -> list[list[int]]:
    """Return how many training samples of every class each client holds; refuse samples without a single class."""
    if federation.classes is None or federation.y.dim() != 1:
        raise UserError("these data have no class for every sample: choose data that are classified, such as digits")
    counts: list[list[int]] = federation.class_counts().tolist()
    return counts


def print_split(console: Console, counts: Counts, title: str) -> None:
    """Print the facts of a split."""
    console.print(title, style="bold")
    samples, held = [sum(row) for row in counts], [sum(map(bool, row)) for row in counts]
    for what, each in (("samples per client", samples), ("classes per client", held)):
        console.print(f"{what}: {min(each)} least, {fmean(each):.4g} mean, {max(each)} most")


def draw_split(counts: Counts, path: Path, title: str) -> None:
    """Draw a heat map as a picture, classes down and clients across; the darker, the more samples."""
    with picture(path, 10, 4.2) as figure:
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_subplot()
        held = [[row[c] or float("nan") for row in counts] for c in range(len(counts[0]))]  # none: no color
        image = axes.imshow(held, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, origin="lower")
        axes.set_title(title, fontsize=12, color=INK)
        axes.set(xlabel="client", ylabel="class")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=axes, label="training samples", pad=0.01)
