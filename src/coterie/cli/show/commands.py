"""The commands that show what there is. What they do is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from ...core.annotations import MOST
from ..common.completion import complete_method
from ..common.options import RowsFormat


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A method, to show its update rule and settings, or module:function of your own; presets: what "
            "commands assume where nothing is typed; columns: what those of a table of results are.",
            show_default="all names",
            autocompletion=complete_method,
        ),
    ] = None,
    format: RowsFormat = "table",
) -> None:
    """Show the methods, data, partitions, topologies and models there are, or one of them in detail."""
    named = (what or "").lower()
    if not named:
        from .names import show_list

        show_list(format)
    elif named == "presets":
        from .presets import show_presets

        show_presets(format)
    elif named == "columns":
        from .columns import show_columns

        show_columns(format)
    else:
        from .methods import show_method

        show_method(what or "", format)


def topology(
    name: Annotated[str, typer.Argument(help="ring, grid, exponential, full, star, random:10, random-pull:10, ...")],
    clients: Annotated[int, typer.Option(help="How many clients.", min=1, max=MOST)] = 16,
    model: Annotated[str, typer.Option(help="The model whose bytes per round are counted.")] = "cnn",
    png: Annotated[Path | None, typer.Option(help="Draw the graph into this file.")] = None,
    round: Annotated[int, typer.Option(help="Which round of a changing graph.", min=0, max=MOST)] = 0,
    seed: Annotated[int, typer.Option(help="Of a random graph.")] = 0,
    format: RowsFormat = "table",
) -> None:
    """Show a graph: its spectral gap, degrees, diameter, and bytes per round; --png draws it."""
    from ...models import build
    from .topology import show_topology

    parameters = sum(p.numel() for p in build(model, classes=10).parameters())
    show_topology(name, clients, model, parameters, seed, round, png, format)
