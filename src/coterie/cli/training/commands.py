"""The commands that train, and their options. What they do is imported when they run."""

from typing import Annotated

import typer

from ...core.annotations import MOST
from ..common.completion import complete_method
from ..common.fields import with_options
from ..common.options import SEEDS, DryRun, Output, ResultFormat, RunOptions, TuneTexts


@with_options
def run(
    method: Annotated[
        str,
        typer.Argument(
            help="A method (see `coterie list`), module:function of your own, a run folder or its config.json, or a "
            "TOML file with method, data, rounds, ... and tables of settings.",
            autocompletion=complete_method,
        ),
    ],
    options: RunOptions,
    output: Output,
    format: ResultFormat = "table",
    dry_run: DryRun = False,
) -> None:
    """Train one method. A saved config.json repeats its run exactly, or with what is typed changed: --set, --rounds,
    --seed; `--resume` continues an interrupted run, and with --rounds lets a finished one have more."""
    from ..common.results import TableStyle
    from ..dry_run import show_costs
    from .run import run_method

    if dry_run:
        show_costs([method], options, format)
    else:
        run_method(method, options, TableStyle(format.lower()), output)


@with_options
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods (see `coterie list`), or module:function of your own; dfedalt@lr=0.1 is one with settings of "
            "its own, so that a method may be there twice. Or a TOML file with methods, data, seeds, ...",
            autocompletion=complete_method,
        ),
    ],
    options: RunOptions,
    output: Output,
    seeds: Annotated[int, typer.Option(help="How many seeds, counted up from --seed.", min=1, max=SEEDS)] = 1,
    format: ResultFormat = "table",
    target: Annotated[
        float | None,
        typer.Option(
            help="The personal metric that rounds are counted to, here and on the page, such as 80 for 80 %.",
            show_default="80 where it is in %, else none",
        ),
    ] = None,
    tune: TuneTexts = [],  # noqa: B006
    dry_run: DryRun = False,
) -> None:
    """Train several methods on the same clients, print one table, and test which is better. `--set dfedalt.lr=0.1` is
    for one of them; `--out FOLDER --resume --format latex` prints a finished comparison once more."""
    from ..common.results import TableStyle
    from ..dry_run import show_costs
    from .compare import compare_methods

    if dry_run:
        show_costs(methods, options, format, seeds, tune)
    else:
        compare_methods(methods, options, seeds, TableStyle(format.lower(), target), output, tune)


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
    from .tune import tune_method

    tune_method(method, grid, seeds, budget, sampler, options, output)
