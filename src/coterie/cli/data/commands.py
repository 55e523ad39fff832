"""``coterie data`` and its options. What the commands do is imported when they run, so that help comes at once."""

from pathlib import Path
from typing import Annotated

import typer

from ...core.annotations import MOST
from ..common.options import DAY, SEEDS, DataDir, RowsFormat
from ..common.typed import Commands

data_sets = Commands(help="Data sets: where they are, which are there, bringing them.", no_args_is_help=True)


@data_sets.command(name="dir")
def choose_data_dir(
    folder: Annotated[Path | None, typer.Argument(help="The folder from now on; leave it out to see it.")] = None,
) -> None:
    """Choose once where data sets are, or show it."""
    from .sets import show_dir

    show_dir(folder)


@data_sets.command(name="show")
def data_show(
    source: Annotated[str, typer.Argument(help="The data, as in `coterie run --data`: digits, cifar10.")],
    partition: Annotated[
        str | None,
        typer.Option(help="How, as in `coterie run --partition`; by default dirichlet:0.3, or by a table's clients."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Among how many; by default 100, or all that a table names.", min=1, max=MOST)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    png: Annotated[Path | None, typer.Option(help="Draw it into this file.")] = None,
    data_dir: DataDir = None,
    format: RowsFormat = "table",
) -> None:
    """Count how many samples and classes every client holds, without training; --png draws who holds which."""
    from .show import show_split

    show_split(source, clients, partition, seed, data_dir, png, format)


@data_sets.command(name="list")
def data_list(data_dir: DataDir = None) -> None:
    """Show the data sets known by name, and which are there."""
    from .sets import show_data

    show_data(data_dir)


@data_sets.command(name="fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="mnist, cifar10, ... (see `coterie data list`).")],
    data_dir: DataDir = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds without a byte before trying again.", min=0.1, max=DAY)
    ] = 30.0,
    attempts: Annotated[int, typer.Option(help="How often to try again without a new byte.", min=1, max=SEEDS)] = 5,
) -> None:
    """Download data sets from their homes; an interrupted download is taken up by the next call."""
    from .sets import fetch_data

    fetch_data(names, data_dir, timeout, attempts)
