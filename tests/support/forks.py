"""A process that has imported everything and forks for every request: importing PyTorch takes seconds, a fork none.

Whoever asks has a ``ForkServer``; the process is the file that it names, which calls ``serve``.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NoReturn, Self

BESIDE = Path(sys.executable).parent  # where the coterie script lies
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS ends forks of a process that has loaded its frameworks
    "PATH": f"{BESIDE}{os.pathsep}{os.environ['PATH']}",
}


class ForkServer:
    """Asks the process that forks; use it in a ``with`` statement."""

    def __init__(self, file: str) -> None:
        if not hasattr(os, "fork"):
            import pytest  # here: the process that forks needs none

            pytest.skip("commands run in forks, which this system has not")
        self.file = file
        self.logs = TemporaryDirectory()

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process finds in its environment."""
        return ENVIRONMENT

    def __enter__(self) -> Self:
        self.server = subprocess.Popen(
            [sys.executable, self.file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.communicate()  # the end of its input ends it
        self.logs.cleanup()

    def ask(self, request: Mapping[str, Any]) -> int:
        """One question to the process that forks, one number back."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


# What follows runs in the process that forks.


def serve(command: Callable[..., None]) -> None:
    """Answers requests until the input ends: a process's end, or the number of a new one that runs ``command``.

    It has imported, but never computed: threads would not survive a fork.
    """
    gc.freeze()  # or every fork would go through all that was imported, and copy it
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _in_fork(command, **request)
        print(answer, file=answers, flush=True)


def _in_fork(command: Callable[..., None], log: str, **request: Any) -> NoReturn:
    """Runs a command to its end; its exit status is the process's."""
    status = 0
    try:
        for number, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{log}.{suffix}", os.O_WRONLY | os.O_CREAT), number)
        # Whoever started us in the background may have had them ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        command(log=log, **request)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the ordinary end takes a quarter of a second to free what is freed anyway
