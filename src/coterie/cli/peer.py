"""``coterie peer``: one participant of a real federation. What it needs is imported when it runs."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UserError
from ..core.spec import counted
from .typed import Commands

peer = Commands(
    help="One participant of a real federation, which trains with others over a network.", no_args_is_help=True
)


@peer.command(name="init")
def init_peer(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("peer.toml"),
) -> None:
    """Write a commented peer.toml, to be changed."""
    from ..core.files import write_text
    from ..net.template import TEMPLATE

    if os.path.lexists(out):
        raise UserError(f"{out} is there already: change it, or choose another --out")
    write_text(out, TEMPLATE)
    print(f"wrote {out}: change it, and hand its part [federation] to all members")


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
    from ..core.files import write_json
    from ..net.shared_columns import columns_of, merged

    found = merged([columns_of(text, seed) for text in tables])
    write_json(out, found)
    inputs = counted(len(found["mean"]), "input")
    print(f"wrote {out}: {inputs} of {counted(len(found['features']), 'column')}, from {found['rows']:,} training rows")
