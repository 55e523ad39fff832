"""Showing how far a run is: a bar in a terminal, a line now and then elsewhere."""

import sys
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Progress of one run on the standard error stream."""

    def __init__(self, name: str, rounds: int, shown: bool) -> None:
        self.name, self.rounds, self.shown = name, rounds, shown
        console = Console(stderr=True)
        self.bar: Bar | None = None
        if shown and console.is_terminal:
            self.bar = Bar(
                TextColumn(f"{name:<12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[said]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            self.task = self.bar.add_task(name, total=rounds, said="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        elif self.shown:
            print(text, file=sys.stderr)

    def update(self, done: int, row: dict[str, Any] | None) -> None:
        """``done`` rounds are done; ``row`` is what the last one measured."""
        said = _said(row)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, said=said)
        elif self.shown and row is not None and (done == self.rounds or done % max(1, self.rounds // 5) == 0):
            print(f"{self.name}: round {done}/{self.rounds}  {said}", file=sys.stderr)


def _said(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    accuracy, loss = row["personal_accuracy_after_mix"], row["train_loss"]
    parts = [] if accuracy is None else [f"personal accuracy after mixing {100 * accuracy:.1f} %"]
    return ", ".join(parts + ([] if loss is None else [f"train loss {loss:.3f}"]))
