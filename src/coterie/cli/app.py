"""The commands and their options. What they do is imported when they run, so that help comes at once."""

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..core.annotations import MOST
from .common.options import SEEDS, Settings, TopologyText
from .common.training_command import TrainingCommand
from .common.typed import Commands
from .data.commands import data_sets
from .models.commands import export, personalize, predict
from .peer.certs import certs
from .peer.commands import peer
from .recipe import recipe
from .results.commands import pack, report, watch
from .show.commands import list_names, topology
from .training.commands import compare, run, tune

app = Commands(
    name="coterie",
    help="Personalized federated learning, with a server or between peers: every client ends with its own model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(recipe, name="recipe")
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


app.command()(report)
app.command()(watch)
app.command()(pack)
app.command(name="list")(list_names)
app.command()(topology)


@app.command()
def theory(
    method: Annotated[
        str, typer.Argument(help="A method whose paper has a theorem; the answer to any other lists them.")
    ],
    clients: Annotated[int | None, typer.Option(help="How many clients.", min=2, max=10_000, show_default="8")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.", min=1, max=100_000, show_default="100")] = None,
    topology: TopologyText = None,
    problem: Annotated[
        str,
        typer.Option(help="Of the problem, as in noise=0.5,spread=1: dim, noise, spread, coupling, smoothness, start."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the problem, the batches and the graphs.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many runs the measured is the mean of.", min=1, max=SEEDS)] = 1,
    set: Settings = [],  # noqa: B006
    corollary: Annotated[
        bool,
        typer.Option("--corollary", help="Take the rates of the paper's corollary, not the largest of its theorem."),
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            help="One run for every value, as in T=100,400,1600: T (rounds), K (steps), m (clients, or those that take "
            "part) or lambda (graphs, as in lambda=ring,grid,full); with the rates and the exponent of the corollary."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
) -> None:
    """Hold a paper's theorem beside runs on a small problem: constants, assumptions, measured norms, bound."""
    from .theory import TheoryRequest, show_sweep, show_theory

    request = TheoryRequest(clients, rounds, topology, problem, seed, seeds, corollary, set)
    if sweep is None:
        show_theory(method, request, png)
    else:
        show_sweep(method, sweep, request, png)


@app.command()
def capacity(
    model: Annotated[str, typer.Option(help="Which model (see `coterie list`).")] = "resnet18-bn",
    classes: Annotated[int, typer.Option(help="How many classes.", min=1, max=MOST)] = 10,
    shape: Annotated[str, typer.Option(help="The shape of one sample: channels, height, width.")] = "3,32,32",
) -> None:
    """Show what the smaller forms of a model cost: low rank, narrow, shallow, growing, composed of a basis."""
    from .capacity import show_capacity, typed_shape

    show_capacity(model, classes, typed_shape(shape))


@app.command()
def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1, W2, W3; by default all.")] = None,
    repeats: Annotated[int, typer.Option(help="How often each side runs; the median counts.", min=1, max=SEEDS)] = 3,
    out: Annotated[Path | None, typer.Option(help="Write the measurements into this JSON file.")] = None,
) -> None:
    """Measure Coterie against a plain PyTorch loop, side by side in one process."""
    from .bench import show_bench

    show_bench(workloads or [], repeats, out)


app.command()(export)
app.command()(personalize)
app.command()(predict)
