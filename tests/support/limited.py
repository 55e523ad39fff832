"""What may hang without hearing a signal, in a process of its own with a limit."""

import os
import signal
import traceback
from collections.abc import Callable
from time import monotonic, sleep

import pytest

SECONDS = 30.0


def ends(check: Callable[[], object]) -> None:
    """Runs a check in a forked process; fails where it fails, or where it has not ended in time."""
    if not hasattr(os, "fork"):
        pytest.skip("no process can be forked here")
    child = os.fork()
    if not child:
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    end = monotonic() + SECONDS
    while (waited := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("it has not ended")
        sleep(0.01)
    assert os.waitstatus_to_exitcode(waited[1]) == 0
