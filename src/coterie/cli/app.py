"""The commands and their options. What they do is imported when they run, so that help comes at once."""

from typing import Annotated

import typer

from .. import __version__
from ..core.extensions import extended
from .common.training_command import TrainingCommand
from .common.typed import Commands
from .data.commands import data_sets
from .models.commands import export, personalize, predict
from .peer.certs import certs
from .peer.commands import peer
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


app.command()(report)
app.command()(watch)
app.command()(pack)
app.command(name="list")(list_names)
app.command()(topology)
for extension in extended("commands"):
    extension.add_commands(app)
app.command()(export)
app.command()(personalize)
app.command()(predict)
