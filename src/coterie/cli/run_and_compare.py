"""The commands ``coterie run`` and ``coterie compare`` and their options. What they do is imported when they run."""

from typing import Annotated

import typer

from .completion import complete_method
from .fields import with_options
from .options import SEEDS, DryRun, Output, ResultFormat, RunOptions, TuneTexts


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
    from .dry_run import show_costs
    from .results import TableStyle
    from .train import run_method

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
    from .comparing import compare_methods
    from .dry_run import show_costs
    from .results import TableStyle

    if dry_run:
        show_costs(methods, options, format, seeds, tune)
    else:
        compare_methods(methods, options, seeds, TableStyle(format.lower(), target), output, tune)
