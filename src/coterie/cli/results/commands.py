"""The commands that show runs which exist. What they do is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from ..common.options import DAY


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or those of a comparison or a recipe's runs.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the folder, or here for several.")
    ] = None,
    landscape: Annotated[
        bool,
        typer.Option("--landscape", help="Draw the loss around the one model that the clients of a method agree on."),
    ] = False,
    target: Annotated[
        float | None,
        typer.Option(help="The personal metric that rounds are counted to; else that of the comparison, or 80 %."),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            help="html, or table, markdown, latex, csv or json, which are printed; folders of several data sets give "
            "a table of methods by data sets."
        ),
    ] = "html",
    columns: Annotated[
        str | None,
        typer.Option(help="Which columns of a printed table, by title, as in 'after aggregation,worst client,sent'."),
    ] = None,
) -> None:
    """Make one HTML page of runs: who won, for whom, at what cost and why. It needs no network. `--format latex` prints
    their table instead."""
    from .report import show_report

    show_report(runs, out, landscape, target, format, columns)


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, or that of a comparison or a recipe's runs, under way.")],
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=DAY)] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, make the page, and end.")] = False,
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the folder.")] = None,
) -> None:
    """Follow runs that another process trains: a table in the terminal, and a page that a browser keeps up with.

    Only files are read: the folder may be mounted, or copied here again and again, from another machine. Ends when all
    runs are finished.
    """
    from .watch import watch_runs

    watch_runs(run, every, out, once)


def pack(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or those of a comparison or a recipe's runs.")],
    out: Annotated[Path | None, typer.Option(help="The archive; by default NAME.tar.gz here.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints/--no-checkpoints", help="With the states that unfinished runs need to go on.")
    ] = True,
) -> None:
    """Pack runs without the clients' models, to carry them to another machine and go on there; tar unpacks them."""
    from .pack import pack_runs

    pack_runs(runs, out, checkpoints)
