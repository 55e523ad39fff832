"""What a person sees of several runs while they train."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Remarks:
    """Remarks on the standard error, and a title for the progress of each run; quiet: neither."""

    quiet: bool = False

    def say(self, text: str) -> None:
        """Print a remark that is not a result."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def titled(self, name: str, number: int, of: int) -> str | bool:
        """Return the title of the progress of one of several runs; False where no progress is shown."""
        return not self.quiet and f"{name} ({number} of {of})"
