"""``coterie export``."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ...core.clients import client_name, client_number
from ...data.encoding import Columns, few
from ...export import Form, FormatName, save, save_all
from ...export.deployed import of_table
from ...store import RunFolder

EVERYBODY = "all"


def export_models(
    run: Path, client: str, format: str | None, out: Path, form: str, force: bool, trusted: Sequence[str]
) -> None:
    """Write one client's model, or everybody's, and say where."""
    how = cast(FormatName | None, format), cast(Form, form), force, trusted  # other words are refused there
    if client == EVERYBODY:
        written = sum(1 for _ in save_all(run, out, *how))
        print(f"{written} models are in {out}")
        return
    file = save(run, client, out, *how)
    names = RunFolder(run).client_summary().get("names", ())
    number = client_number(names, int(RunFolder(run).config()["data"]["clients"]), client)
    print(f"{client_name(names, number)} of {run} is in {file}")
    columns = RunFolder(run).config().get("columns")
    if file.suffix != ".safetensors" and format != "safetensors" and columns is not None and columns["features"]:
        inputs = Columns.of(columns).inputs
        print(f"it takes [batch, {len(inputs)}]: {few(inputs)}; {of_table(columns)}; its metadata describe all columns")
