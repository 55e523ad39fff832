"""``coterie export``."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ..core.spec import whole_number
from ..export import Form, FormatName, save, save_all

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
    print(f"{client if whole_number(client) is None else f'client {client}'} of {run} is in {file}")
