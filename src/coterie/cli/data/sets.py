"""``coterie data dir``, ``list`` and ``fetch``: where data sets are, which are there, bringing them."""

import sys
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ...core.spec import scaled
from ...data.catalog import CATALOG, present
from ...data.data_dir import choose, data_dir
from ...data.fetch import Patience, fetch
from ..common.console import plain_console


def show_dir(folder: Path | None) -> None:
    """Remember the folder, or say which one is used and who chose it."""
    if folder is not None:
        print(f"data sets are looked for in {choose(folder)}")
        return
    place = data_dir()
    print(f"{place.path} ({place.chosen_by})")


def show_data(option: Path | None) -> None:
    """Print one row per data set: whether it is there, and where."""
    folder = data_dir(option).path
    table = Table(title=f"Data sets in {folder}", title_justify="left")
    for heading in ("name", "what it is", "here"):
        table.add_column(heading, no_wrap=heading == "name")
    for name, entry in CATALOG.items():
        found = present(name, folder)
        where = "no"
        if found:
            files = [f for path in found for f in (path.rglob("*") if path.is_dir() else [path])]
            size = sum(f.stat().st_size for f in files if f.is_file())
            shared = found[0] if len(found) == 1 else found[0].parent
            where = f"{shared.relative_to(folder)}, {scaled(size, 'B')}"
        table.add_row(name, entry.what, where)
    plain_console().print(table)


def fetch_data(names: list[str], option: Path | None, timeout: float, attempts: int) -> None:
    """Bring data sets from their homes, one after another."""
    folder = data_dir(option).path
    for name in names:
        with Transfer() as shown:
            where = fetch(name, folder, shown.update, Patience(timeout, attempts))
        print(f"{name} is in {where}")


class Transfer:
    """How far a download is, on the standard error stream: a bar in a terminal, one line per file elsewhere."""

    def __init__(self) -> None:
        console = plain_console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Transfer":
        self.bar.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self.bar.stop()

    def update(self, name: str, done: int, total: int | None) -> None:
        """Show that so many bytes of a file are there."""
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total)
            if self.bar.disable:
                print(f"{name}: {'unknown size' if total is None else scaled(total, 'B')}", file=sys.stderr)
        self.bar.update(self.tasks[name], completed=done, total=total)
