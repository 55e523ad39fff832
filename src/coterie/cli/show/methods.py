"""``coterie list``: what there is, taken from the tables the program itself uses."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from ... import data, models, topology
from ...algorithms import BUILDERS, builder
from ...algorithms.about import DIFFERS, REFERENCE, about, default
from ...algorithms.settings import describe_settings
from ...core.custom import display_name
from ...data import PARTITIONS
from ...data.partition import NATURAL
from ...measure import BUILT_IN
from ...models.losses import LOSSES
from ...study.presets import DATA
from ..common.console import plain_console, table, wide_console
from ..common.options import RunOptions
from ..common.rows_format import for_programs, print_rows
from ..kinds import BASELINE, UNEQUAL, method_kind
from ..request import RunPlan

PERSONAL = 18  # characters of a column, so that those of all groups are below each other
OTHERS: dict[str, Iterable[str]] = {
    "data": data.SOURCES,
    "partitions": (*PARTITIONS, NATURAL),
    "topologies": topology.BUILDERS,
    "models": models.BUILDERS,
    "losses": LOSSES,
    "metrics": BUILT_IN,
}
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
    if for_programs(format):
        rows = [{"method": name, **method_kind(name)._asdict(), "what": about(b).what} for name, b in BUILDERS.items()]
        print_rows(format, rows, {"methods": rows, **{kind: list(names) for kind, names in OTHERS.items()}})
        return
    console = plain_console()
    for group in GROUPS:
        console.print(f"Methods: {group}", style="bold")
        made = table("name", "personal", "what it does")
        for column, width in zip(made.columns, (max(map(len, BUILDERS)), PERSONAL), strict=False):
            column.no_wrap, column.min_width = True, width
        for name in (name for name in BUILDERS if method_kind(name).group == group):
            made.add_row(name, method_kind(name).personal, about(BUILDERS[name]).what)
        console.print(made)
        console.print()
    for kind, names in OTHERS.items():
        console.print(Text.assemble((f"{kind}:", "bold"), f" {', '.join(names)}"))
    console.print(
        "One method with its update rule and its settings: coterie list METHOD, or module:function of your own; what "
        "commands assume: coterie list presets; what tables show: coterie list columns"
    )


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
    return dict(RunPlan.of(RunOptions()).algorithm(name, [name]).settings)
