"""``coterie list METHOD``: what a method is, and its settings."""

from typing import Any

from rich.table import Table

from ...algorithms import builder
from ...algorithms.about import DIFFERS, REFERENCE, about, default
from ...algorithms.settings import describe_settings
from ...core.custom import display_name
from ...study.presets import DATA
from ..common.console import table, wide_console
from ..common.options import RunOptions
from ..common.rows_format import for_programs, print_rows
from ..common.typed_plan import typed_plan


def show_method(name: str, format: str) -> None:
    """Print what a method is, its update rule, its settings with their defaults, and where it comes from."""
    a = about(builder(name))
    if for_programs(format):
        rows = settings_rows(name)
        print_rows(format, rows, {"method": display_name(name), "what": a.what, "settings": rows})
        return
    console = wide_console()
    console.print(f"{a.title or name}: {a.what}", style="bold")
    for text in filter(None, (a.recurrence, *a.notes)):
        console.print(f"\n{text}")
    console.print()
    show_settings(name)
    for title, text in ((REFERENCE, a.reference), (DIFFERS, a.differs)):
        if text:
            console.print(f"\n{title} {text}")


def show_settings(name: str) -> None:
    """Print the settings of a method: both defaults, the type, and the meaning of each."""
    console = wide_console()
    console.print(f"Settings of {name}, as in --set NAME=VALUE", style="bold")
    console.print(settings_table(name))
    console.print(
        f"in Python: the method's own default; run {DATA}: what `coterie run {name}` takes, whose preset suits small "
        "data (coterie list presets)",
        style="dim",
    )


def settings_table(name: str) -> Table:
    """Return one row per setting."""
    rows = table("setting", "in Python", f"run {DATA}", "type", "meaning")
    for row in settings_rows(name):
        rows.add_row(row["setting"], default(row["python"]), default(row["command"]), row["type"], row["meaning"])
    return rows


def settings_rows(name: str) -> list[dict[str, Any]]:
    """Return every setting with both defaults, its type and its meaning."""
    build = builder(name)
    own, commands, says = build().settings, command_settings(name), about(build).args
    return [
        {
            "setting": key,
            "python": own.get(key),
            "command": commands.get(key),
            "type": kinds,
            "meaning": says.get(key, ""),
        }
        for key, kinds in describe_settings(build).items()
    ]


def command_settings(name: str) -> dict[str, Any]:
    """Return the settings that ``coterie run`` takes where nothing is typed."""
    (algorithm,) = typed_plan([name], RunOptions()).algorithms.values()
    return dict(algorithm.settings)
