"""OpenMP's threads spin while they wait, unless the environment says otherwise before torch is loaded.

Training goes on for long beside other work. Threads that spin gain little on an empty machine and are ruinous on a busy
one: 3 rounds on the digits took 5 to 50 s beside two other torch processes, and 3 s without spinning.
"""

import os
import sys

_CHOSEN = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
_TOO_LATE = "torch" in sys.modules and not _CHOSEN


def keep_from_spinning() -> None:
    """Set the environment of a torch that is loaded later, unless a person has chosen."""
    if not _CHOSEN:
        os.environ["GOMP_SPINCOUNT"] = "1000"


def spinning_threads(threads: int) -> str | None:
    """Return what to say on a busy machine where torch, with so many threads, was loaded too early; None: nothing."""
    cores = os.cpu_count() or 1
    if not _TOO_LATE or not hasattr(os, "getloadavg") or os.getloadavg()[0] <= cores or threads == 1:
        return None
    return (
        "other programs use the cores, and torch's threads spin while they wait, because torch was imported before "
        "coterie: import coterie first, or set OMP_WAIT_POLICY=passive in the environment"
    )
