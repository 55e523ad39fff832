"""What is seen of runs while they train: progress or quiet, and who else is told."""

import sys
from dataclasses import dataclass, fields
from functools import cached_property

from ..track import MLflow, TensorBoard, Tracker, WandB

TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


@dataclass(frozen=True)
class Output:
    """The options of that kind, as typed."""

    quiet: bool = False
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False

    @cached_property
    def trackers(self) -> list[Tracker]:
        """Made when first asked for, once for all runs of a command: a package or a server may be missing."""
        return [make() for name, make in TRACKERS.items() if getattr(self, name)]

    def check(self) -> None:
        """Refuses them now, before anything is said or trained."""
        assert self.trackers is not None

    @property
    def flags(self) -> list[str]:
        """The options as they were typed."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name)]

    def say(self, text: str) -> None:
        """A remark that is no result."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def titled(self, name: str, number: int, of: int) -> str | bool:
        """What the progress of one of several runs is called; False where none is to be seen."""
        return not self.quiet and f"{name} ({number} of {of})"
