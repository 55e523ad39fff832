"""Which engine a run was given: known when it has been tried, and said before the first round."""

from collections.abc import Sequence
from pathlib import Path

from ...core.schema import Config, Summary, TrackedRow


class ChosenEngine:
    """A tracker that says the engine with its reason, and takes no numbers."""

    name = "engine"

    def begin(self, config: Config, folder: Path | None, history: Sequence[TrackedRow]) -> str:
        """Return the line that is said before the first round."""
        return f"{config['engine']} on {config['device']} ({config['engine_reason']})"

    def round(self, row: TrackedRow) -> None:
        """Take nothing."""

    def end(self, summary: Summary | None) -> None:
        """Nothing is open."""
