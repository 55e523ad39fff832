"""Commands for people."""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

WRONG_REQUEST = 2
_NO_MEMORY = ("can't allocate memory", "CUDA out of memory")  # of torch, on a CPU and on a GPU


def main() -> NoReturn:
    """Run the ``coterie`` command: 0 when done, 2 with one sentence where the request must change.

    The status is 130 when it is interrupted, and 75 when the time of ``--for`` is over and something is left to do.
    Anything else is a defect of ours and ends with a traceback and status 1.
    """
    try:
        from ..core.errors import UserError, in_one_line
        from .app import app
        from .common.typed import refuse_empty
    except KeyboardInterrupt:  # nothing has begun
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe on Windows has no dots to draw a graph with
    signal.signal(signal.SIGTERM, _interrupt)  # a cluster that takes its machine back gets the same clean end
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, partial(_hang_up, [number for number in (1, 2) if os.isatty(number)]))
    try:
        refuse_empty(sys.argv[1:])
        app()
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        said = str(error) if isinstance(error, UserError) else _of_the_system(error)
        if said is None:
            raise
        print(f"coterie: {in_one_line(said)}", file=sys.stderr)
        sys.exit(WRONG_REQUEST)
    sys.exit(0)


def _of_the_system(error: Exception) -> str | None:
    """Say what the system has refused: a file, or memory; None: something else."""
    if isinstance(error, OSError):
        return f"{error.filename} cannot be used ({error.strerror}): name another one" if error.filename else None
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        why = (str(error).splitlines() or ["no more is given"])[0][:200]
        return f"the memory is full ({why}): take a smaller model, less data or fewer clients, or a larger machine"
    return None


def _hang_up(terminals: Sequence[int], signum: int, frame: FrameType | None) -> None:
    """Get the same clean end where a terminal is closed; it takes no more words, and errors would cut the end short."""
    for number in terminals:
        if not os.isatty(number):  # any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    raise KeyboardInterrupt


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
