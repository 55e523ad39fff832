"""What commands print and draw with: a console, one style of table, and pictures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table

from ...core.errors import UserError
from ...core.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 140  # columns where there is no terminal to ask
INK = "#1f2937"  # of the words in pictures


def plain_console(stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints texts as they are: what somebody types, or a file holds, is no markup."""
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def wide_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=WIDE)


def table(*headings: str, no_wrap: bool = False) -> Table:
    """Return an empty table in the style of all others; columns whose heading begins with > hold numbers."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for heading in headings:
        side: JustifyMethod = "right" if heading.startswith(">") else "left"
        made.add_column(heading.lstrip(">"), justify=side, overflow="fold", no_wrap=no_wrap)
    return made


def check_png(path: Path) -> None:
    """Refuse what could not be drawn, before anything that takes long."""
    if path.suffix.lower() != ".png":
        name = path.with_suffix(".png") if path.name else path / "figure.png"
        raise UserError(f"the figure is a PNG: write it to {name} instead of {path}")
    import_extra("matplotlib.figure", "report", "drawing a PNG")


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """Give a white figure of so many inches to draw on, and write it to ``path`` in the end."""
    check_png(path)
    from matplotlib.figure import Figure

    # Not pyplot, which keeps every figure in a global list and picks a backend for the whole process.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    yield figure
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): name a folder you can write to") from error
