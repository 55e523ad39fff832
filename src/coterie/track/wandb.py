"""Weights & Biases, online or, with WANDB_MODE=offline, in files to be synced later."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.extras import import_extra
from ..core.schema import Config, Row, Summary
from .base import dotted, mark, name_of, reason, remember, scalars


@checked_class("class")
class WandB:
    """Logs the configuration and every number of every round; ``project``: else WANDB_PROJECT, else "coterie".

    Its files lie in the run's folder unless WANDB_DIR says otherwise.
    """

    name = "wandb"

    def __init__(self, project: str | None = None) -> None:
        self.wandb = import_extra("wandb", self.name, "this tracker")
        self.project = project or os.environ.get("WANDB_PROJECT", "coterie")
        try:
            if self.wandb.setup().settings.mode == "online":
                self.wandb.login()
        except Exception as error:
            raise UserError(
                f"Weights & Biases cannot be used ({reason(error)}): run wandb login, or set WANDB_MODE=offline"
            ) from error
        self.run: Any = None

    def begin(self, config: Config, folder: Path | None, history: Sequence[Row]) -> str:
        """Go on with the run of this folder; one that is new there gets the whole history."""
        known = mark(folder, self.name)
        place = None if folder is None or "WANDB_DIR" in os.environ else str(folder)
        self.run = self.wandb.init(
            project=self.project,
            name=name_of(config, folder),
            id=known,
            resume=None if known is None else "allow",
            config=dict(config),
            dir=place,
            settings=self.wandb.Settings(silent=True, console="off"),
        )
        if known is None:
            remember(folder, self.name, self.run.id)
            for row in history:
                self.round(row)
        return f"wandb sync {Path(self.run.dir).parent}" if self.run.offline else str(self.run.url)

    def round(self, row: Row) -> None:
        """Log a round; W&B passes over one that was logged before an interruption, as steps only grow."""
        self.run.log(scalars(row), step=row["round"], commit=True)  # else it waits for the next round

    def end(self, summary: Summary | None) -> None:
        """Log what the run comes to."""
        if summary is not None:
            self.run.summary.update(dict(dotted({"summary": summary})))
        self.run.finish(exit_code=int(summary is None))
