"""``coterie export``."""

from pathlib import Path
from typing import cast

from ..core.errors import UserError
from ..export import Form, FormatName, save, save_all

EVERYBODY = "all"


def export_models(run: Path, client: str, format: str | None, out: Path, form: str, force: bool) -> None:
    """Write one client's model, or everybody's, and say where."""
    how = cast(FormatName | None, format), cast(Form, form), force  # other words are refused there
    if client == EVERYBODY:
        written = sum(1 for _ in save_all(run, out, *how))
        print(f"{written} models are in {out}")
        return
    try:
        number = int(client)
    except ValueError:
        raise UserError(f"--client {client} is no client: give its number, counted from 0, or all") from None
    print(f"client {number} of {run} is in {save(run, number, out, *how)}")
