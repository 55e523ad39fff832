"""``coterie peer``: one participant of a real federation. What it needs is imported when it runs."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import UserError
from ...core.spec import counted
from ..common.typed import Commands

peer = Commands(no_args_is_help=True, invoke_without_command=True)

ConfigFile = Annotated[Path, typer.Option(help="The member's file, which coterie peer init writes.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(help="Code of your own that the file names and may run here: module:function.", show_default="none"),
]


@peer.callback()
def participate(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The member's file, which coterie peer init writes.", show_default="none")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="How long a round waits for neighbors, as 30s or auto, in place of the file's.", show_default="none"
        ),
    ] = None,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Go without TLS, where all members are on 127.0.0.1.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Run one participant of a real federation, which trains with others over a network.

    coterie peer --config peer.toml takes part until the last round. It goes on
    where its folder stands, whatever has ended it.
    """
    if context.invoked_subcommand is not None:
        if config is not None or deadline is not None or insecure_loopback or trust:
            raise UserError(f"type options behind {context.invoked_subcommand}: they are those of a participant here")
        return
    if config is None:
        raise UserError("say which participant: coterie peer --config peer.toml (coterie peer init writes such a file)")
    from .run import run_participant

    run_participant(config, trust or (), deadline, insecure_loopback)


@peer.command(name="init")
def init_peer(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("peer.toml"),
) -> None:
    """Write a commented peer.toml, to be changed."""
    from ...core.files import write_text
    from ...net.setup.config import TEMPLATE

    if os.path.lexists(out):
        raise UserError(f"{out} is there already: change it, or choose another --out")
    write_text(out, TEMPLATE)
    print(f"wrote {out}: change it, and hand its part [federation] to all members")


@peer.command()
def check(config: ConfigFile = Path("peer.toml"), trust: Trust = None) -> None:
    """Say what is wrong before anything starts: certificate, data, folder, port, and the neighbors that run already.

    Neighbors say their time and what they have agreed on, which is compared.
    The status is 2 if there is a problem.
    """
    from ...net.operations.check import asker, findings
    from ...net.setup.config import load

    found = load(config, trust or ())
    problems = 0
    for one in findings(found, asker(found)):
        print(one, flush=True)
        problems += one.problem
    if problems:
        raise UserError(f"{counted(problems, 'problem')} of {found.name}: mend what is said above")


@peer.command()
def status(
    config: ConfigFile = Path("peer.toml"),
    format: Annotated[str, typer.Option(help="table, or json for other programs.")] = "table",
) -> None:
    """Show what the peer of this machine does: its round, its neighbors, bytes, refusals, mass, metrics.

    The status is 2 if it does not run. Numbers for Prometheus are at the
    address that metrics names in peer.toml.
    """
    from .status import show_status

    show_status(config, format)


@peer.command()
def alone(
    config: ConfigFile = Path("peer.toml"),
    trust: Trust = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the run alone.", show_default="the member's own with -alone behind it"),
    ] = None,
) -> None:
    """Tell whether the federation helps this member: train alone on the same samples, and compare the two models.

    The run alone has the member's rows, encoding, split, model, settings, seed and
    rounds. A page shows who gains. While the federation goes on, both are
    compared after the rounds that there are; the same command goes on later.
    """
    from .alone import compare_alone

    compare_alone(config, trust or (), out)


@peer.command()
def columns(
    tables: Annotated[
        list[str], typer.Argument(help="Tables, as in csv:FILE,target=COLUMN, or files that this command has written.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("columns.json"),
    seed: Annotated[int, typer.Option(help="That of the federation, which draws the rows for testing.")] = 0,
) -> None:
    """Tell how tables become samples, for all members alike: names of columns, texts in them, means, deviations.

    Every member runs it on its own table and hands the file to one of them,
    who puts all files together and hands the result to everybody. No rows are
    in it.
    """
    from ...core.files import write_json
    from ...net.setup.shared_columns import columns_of, merged

    found = merged([columns_of(text, seed) for text in tables])
    write_json(out, found)
    inputs = counted(len(found["mean"]), "input")
    print(f"wrote {out}: {inputs} of {counted(len(found['features']), 'column')}, from {found['rows']:,} training rows")
