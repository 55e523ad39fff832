"""The commands of the papers. What they do is imported when they run, so that help comes at once."""

from pathlib import Path
from typing import Annotated

import typer

from ...cli.common.options import SEEDS, Settings, TopologyText
from ...cli.common.typed import Commands
from ...core.annotations import MOST
from .recipe import group


def add_groups(app: Commands) -> None:
    """Add what has commands of its own."""
    app.add_typer(group, name="recipe")


def add_commands(app: Commands) -> None:
    """Add single commands."""
    app.command()(theory)
    app.command()(capacity)


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
    from .theory_tables import TheoryRequest, show_sweep, show_theory

    request = TheoryRequest(
        clients, rounds, topology, problem=problem, seed=seed, seeds=seeds, corollary=corollary, items=set
    )
    if sweep is None:
        show_theory(method, request, png)
    else:
        show_sweep(method, sweep, request, png)


def capacity(
    model: Annotated[str, typer.Option(help="Which model (see `coterie list`).")] = "resnet18-bn",
    classes: Annotated[int, typer.Option(help="How many classes.", min=1, max=MOST)] = 10,
    shape: Annotated[str, typer.Option(help="The shape of one sample: channels, height, width.")] = "3,32,32",
) -> None:
    """Show what the smaller forms of a model cost: low rank, narrow, shallow, growing, composed of a basis."""
    from .capacity_table import show_capacity, typed_shape

    show_capacity(model, classes, typed_shape(shape))
