"""The command ``coterie tune`` and its options. What it does is imported when it runs."""

from typing import Annotated

import typer

from ..core.annotations import MOST
from .completion import complete_method
from .fields import with_options
from .options import SEEDS, Output, RunOptions


@with_options
def tune(
    method: Annotated[
        str,
        typer.Argument(
            help="A method (see `coterie list`), or module:function of your own.", autocompletion=complete_method
        ),
    ],
    options: RunOptions,
    output: Output,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="The values of a setting that are tried, with ; "
            "between values that have commas: epochs=1,2;5; repeat for more.",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        int, typer.Option(help="How many seeds of every trial, counted up from --seed.", min=1, max=SEEDS)
    ] = 1,
    budget: Annotated[
        int | None,
        typer.Option(
            help="The most trainings, all seeds counted.", min=1, max=MOST, show_default="as many as the grid has"
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="grid for all, random for a part, tpe of Optuna; pip install 'coterie\\[tune]'.")
    ] = "grid",
) -> None:
    """Choose settings of a method on validation samples, and write them to a file for `run` and `compare --settings`.

    A part of every client's training samples, `--validation 0.2` unless told otherwise, is kept out of training and
    decides; no test sample is looked at. `--out FOLDER --resume` goes on with what is there.
    """
    from .tuning import tune_method

    tune_method(method, grid, seeds, budget, sampler, options, output)
