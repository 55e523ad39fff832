"""``coterie list``: what there is, taken from the tables the program itself uses."""

import inspect
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from .. import data, models, topology
from ..algorithms import BUILDERS
from ..data import PARTITIONS
from ..data.partition import NATURAL


def show_list() -> None:
    """Prints the methods with their one-line descriptions, then the other names."""
    console = Console(highlight=False)
    table = Table(title="Methods", title_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it does")
    for name, builder in BUILDERS.items():
        table.add_row(name, _description(builder))
    console.print(table)
    others: dict[str, Iterable[str]] = {
        "data": data.SOURCES,
        "partitions": (*PARTITIONS, NATURAL),
        "topologies": topology.names(),
        "models": models.BUILDERS,
    }
    for kind, names in others.items():
        console.print(f"[bold]{kind}:[/bold] {', '.join(names)}")


def _description(builder: object) -> str:
    """The first line of a docstring without the method's name."""
    line = (inspect.getdoc(builder) or "").splitlines()[0]
    return line.partition(": ")[2] or line
