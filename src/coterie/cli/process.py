"""What a command sets up in its own process before anything heavy is loaded."""

import os
from pathlib import Path


def share_cores() -> None:
    """Makes idle OpenMP threads sleep soon, before torch is loaded.

    Training goes on for long beside other work. Threads that spin while they wait gain little on an empty machine and
    are ruinous on a busy one: 3 rounds on the digits took 5 to 50 s beside two other torch processes, 3 s this way.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def look_in(folder: Path | None) -> None:
    """Makes --data-dir hold for everything in this process: it says where data lie, not what a run is."""
    if folder is not None:
        from ..data.place import VARIABLE

        os.environ[VARIABLE] = str(folder)
