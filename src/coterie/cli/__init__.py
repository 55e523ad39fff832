"""Commands for people."""

import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

WRONG_REQUEST = 2


def main() -> NoReturn:
    """Run the ``coterie`` command: 0 when done, 2 with one sentence where the request must change.

    The status is 130 when it is interrupted, and 75 when the time of ``--for`` is over and something is left to do.
    Anything else is a defect of ours and ends with a traceback and status 1.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        # Before torch is loaded. Training goes on for long beside other work; OpenMP threads that spin while they wait
        # gain little on an empty machine and are ruinous on a busy one: 3 rounds on the digits took 5 to 50 s beside
        # two other torch processes, 3 s this way.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from ..core.errors import UserError
    from .app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe on Windows has no dots to draw a graph with
    signal.signal(signal.SIGTERM, _interrupt)  # a cluster that takes its machine back gets the same clean end
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _interrupt)  # so does a terminal that is closed
    try:
        app()
    except UserError as error:
        print(f"coterie: {error}", file=sys.stderr)
        sys.exit(WRONG_REQUEST)
    sys.exit(0)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
