"""The commands and their options. What they do is imported when they run, so that help comes at once."""

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..core.annotations import MOST
from ..core.extensions import extended
from .certs import certs
from .completion import complete_method
from .data_group import data_sets
from .options import DAY, DataDir, RowsFormat
from .peer import peer
from .run_and_compare import compare, run
from .trained import predict
from .training_command import TrainingCommand
from .tune import tune
from .typed import Commands

app = Commands(
    name="coterie",
    help="Personalized federated learning, with a server or between peers: every client ends with its own model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for extension in extended("commands"):
    extension.add_groups(app)
app.add_typer(data_sets, name="data")
app.add_typer(certs, name="certs")
app.add_typer(peer, name="peer")
app.command(cls=TrainingCommand)(run)
app.command(cls=TrainingCommand)(compare)
app.command(cls=TrainingCommand)(tune)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train together, keep what is yours."""


@app.command()
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


@app.command()
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


@app.command()
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


@app.command(name="list")
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
    from .column_list import show_columns
    from .listing import show_list, show_method
    from .preset_list import show_presets

    lists = {"": show_list, "presets": show_presets, "columns": show_columns}
    found = lists.get((what or "").lower())
    show_method(what or "", format) if found is None else found(format)


@app.command()
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
    from ..models import build
    from .topology import show_topology

    parameters = sum(p.numel() for p in build(model, classes=10).parameters())
    show_topology(name, clients, model, parameters, seed, round, png, format)


for extension in extended("commands"):
    extension.add_commands(app)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose model: its name, or its number, counted from 0, or all.")],
    out: Annotated[Path, typer.Option(help="The file to write; with --client all a folder, one file per client.")],
    format: Annotated[
        str | None,
        typer.Option(help="safetensors, onnx or torchscript; by default what --out ends with (.onnx, .pt)."),
    ] = None,
    form: Annotated[
        str, typer.Option(help="Of models of low rank: recovered (ordinary layers) or factorized.")
    ] = "recovered",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Code of your own that the run names and may run here: module:function.", show_default="none"
        ),
    ] = None,
) -> None:
    """Write a client's own model into a file that works elsewhere.

    ONNX and TorchScript files contain the normalization: they take samples as
    the data set gives them, so images as uint8 from 0 to 255; data that
    Coterie holds as numbers, such as digits, go in as they are.

    A safetensors file is the state dict alone, for inputs that are normalized;
    its metadata hold mean and std, and much more.

    ONNX needs pip install 'coterie\\[export]'.
    """
    from .export import export_models

    export_models(run, client, format, out, form, force, trust or [])


@app.command()
def personalize(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="The new site's samples: a file like those of the run, or any data, as in npz:FILE.")
    ],
    out: Annotated[Path, typer.Option(help="The file for the site's model: .safetensors, .onnx or .pt.")],
    epochs: Annotated[
        int | None, typer.Option(help="Passes through its samples; by default those of a round.", min=1, max=MOST)
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="safetensors, onnx or torchscript; by default what --out ends with.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Give a new site the model that a run's clients share, and train its own part of it."""
    from .personalize import personalize_site

    personalize_site(run, data, out, epochs, format, force, data_dir)


app.command()(predict)
