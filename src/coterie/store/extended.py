"""A run that gets more rounds than it was begun with."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from ..core.files import disk, write_json
from ..core.schema import Config, Row
from .checkpoint import Checkpoint
from .digests import DIGESTS
from .folder import CLIENTS, CONFIG, RESAMPLED, SUMMARY, RunFolder

T = TypeVar("T")


class ExtendedFolder(RunFolder):
    """A run that is to have ``rounds``; its files stay as they are until nothing can be refused any more."""

    def __init__(self, path: Path, rounds: int) -> None:
        super().__init__(path)
        self.rounds = rounds

    @property
    def finished(self) -> bool:
        """Whether the run here is complete, which it is not with more rounds."""
        return False

    def config(self) -> Config:
        """Return the configuration that the run would have been begun with."""
        return cast(Config, {**super().config(), "rounds": self.rounds})

    def resumed(
        self, restored: Callable[[Checkpoint], T], warn: Callable[[str], object], say: Callable[[str], object]
    ) -> tuple[T, list[Row]] | None:
        """Return what was saved last, as any run does; from then on the run here is one that has not ended yet."""
        found = super().resumed(restored, warn, say)
        with disk(self.path):
            # The summary first: as long as it is there, the run is complete.
            for name in (SUMMARY, DIGESTS, CLIENTS, RESAMPLED):
                (self.path / name).unlink(missing_ok=True)
            write_json(self.path / CONFIG, self.config())
        return found
