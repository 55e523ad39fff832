"""TensorBoard: event files, by default in the run's own folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Any

from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.extras import import_extra
from ..core.schema import Config, Row, Summary
from .base import name_of, scalars

FOLDER = "tensorboard"  # in a run folder


@checked_class("class")
class TensorBoard:
    """Writes every number of every round as a scalar: one folder per run in ``folder``, else in each run's own."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        import_extra("tensorboard", self.name, "this tracker")  # torch would say it less clearly
        self.folder = folder
        self.writer: Any = None

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> str:
        """Go on in the same place: what was written of later rounds before an interruption does not count."""
        into = self._place(config, folder)
        begun = any(into.glob("events.out.tfevents.*"))
        done = len(history)
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(into), purge_step=max(1, done) if begun else None)
        if not begun:
            self.writer.add_text("config", f"```json\n{json.dumps(config, indent=2)}\n```", 0)
        for row in history[-1:] if begun else history:  # a kill may have come between a round and its event
            self.round(row)
        return join(["tensorboard", "--logdir", str(into)])

    def round(self, row: Row) -> None:
        """Write a round at once: someone may be looking."""
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def end(self, summary: Summary | None) -> None:
        """Close the file: the last row has said it all."""
        self.writer.close()

    def _place(self, config: Config, folder: Path | None) -> Path:
        if self.folder is not None:
            return Path(self.folder) / name_of(config, folder)
        if folder is None:
            raise UserError("TensorBoard needs a folder: give fit out=FOLDER, or write TensorBoard(FOLDER)")
        return folder / FOLDER
