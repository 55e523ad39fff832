"""``coterie list``: the names there are, from a file that is made of the tables which the program uses.

A list of names must not wait for torch, and what kind of method one is shows only its program. ``make lists`` writes
the file, and a test holds it to the tables.
"""

import json
from importlib.resources import files
from typing import Any

from rich.text import Text

from ..common.console import plain_console, table
from ..common.rows_format import for_programs, print_rows

FILE, METHODS = "names.json", "methods"
PERSONAL = 18  # characters of a column, so that those of all groups are below each other
BASELINE, UNEQUAL = "Not federated", "Clients of unequal capacity"
GROUPS = (
    "Personalized, between peers",
    "Personalized, with a server",
    "One model, between peers",
    "One model, with a server",
    UNEQUAL,
    BASELINE,
)


def show_list(format: str) -> None:
    """Print the methods by what they are, with their one-line descriptions, then the other names."""
    names: dict[str, Any] = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    methods: list[dict[str, str]] = names[METHODS]
    if for_programs(format):
        print_rows(format, methods, names)
        return
    console = plain_console()
    for group in GROUPS:
        console.print(f"Methods: {group}", style="bold")
        made = table("name", "personal", "what it does")
        for column, width in zip(made.columns, (max(len(m["method"]) for m in methods), PERSONAL), strict=False):
            column.no_wrap, column.min_width = True, width
        for row in (row for row in methods if row["group"] == group):
            made.add_row(row["method"], row["personal"], row["what"])
        console.print(made)
        console.print()
    for kind in (kind for kind in names if kind != METHODS):
        console.print(Text.assemble((f"{kind}:", "bold"), f" {', '.join(names[kind])}"))
    console.print(
        "One method with its update rule and its settings: coterie list METHOD, or module:function of your own; what "
        "commands assume: coterie list presets; what tables show: coterie list columns"
    )
