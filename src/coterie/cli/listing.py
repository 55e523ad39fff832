"""``coterie list``: what there is, taken from the tables the program itself uses."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from .. import data, models, topology
from ..algorithms import BUILDERS, builder
from ..algorithms.about import DIFFERS, REFERENCE, about, default
from ..algorithms.settings import describe_settings
from ..data import PARTITIONS
from ..data.partition import NATURAL
from ..measure import BUILT_IN
from ..models.losses import LOSSES
from .console import plain_console, table, wide_console


def show_list() -> None:
    """Print the methods with their one-line descriptions, then the other names."""
    console = plain_console()
    methods = Table(title="Methods", title_justify="left")
    methods.add_column("name", style="bold", no_wrap=True)
    methods.add_column("what it does")
    for name, build in BUILDERS.items():
        methods.add_row(name, about(build).what)
    console.print(methods)
    others: dict[str, Iterable[str]] = {
        "data": data.SOURCES,
        "partitions": (*PARTITIONS, NATURAL),
        "topologies": topology.BUILDERS,
        "models": models.BUILDERS,
        "losses": LOSSES,
        "metrics": BUILT_IN,
    }
    for kind, names in others.items():
        console.print(Text.assemble((f"{kind}:", "bold"), f" {', '.join(names)}"))
    console.print(
        "One method with its recurrence and its settings: coterie list METHOD, or module:function of your own"
    )


def show_method(name: str) -> None:
    """Print what a method is, its recurrence, its settings with their defaults, and where it comes from."""
    build = builder(name)
    a, values = about(build), build().settings
    console = wide_console()
    settings = table("setting", "default", "takes", "what it is")
    for key, kinds in describe_settings(build).items():
        settings.add_row(key, default(values.get(key)), kinds, a.args.get(key, ""))
    console.print(f"{a.title or name}: {a.what}", style="bold")
    for text in filter(None, (a.recurrence, *a.notes)):
        console.print(f"\n{text}")
    console.print("\nsettings, as in --set NAME=VALUE", style="bold")
    console.print(settings)
    for title, text in ((REFERENCE, a.reference), (DIFFERS, a.differs)):
        if text:
            console.print(f"\n{title} {text}")
