"""The command line in this process: the entry point of the console script, in no time."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from coterie.cli import main


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one sentence of a refusal."""
        lines = self.err.splitlines()
        assert self.status == 2, self
        assert [line for line in lines if line.startswith("coterie: ")] == lines[-1:], self.err
        return lines[-1]


@contextmanager
def _as_typed(words: tuple[str, ...], cwd: Path) -> Iterator[None]:
    """The state of a process that a shell has started; what was before is put back."""
    argv, here = sys.argv, Path.cwd()
    handlers = {number: signal.getsignal(number) for number in ((1, 15) if os.name != "nt" else ())}
    sys.argv = ["coterie", *words]
    os.chdir(cwd)
    try:
        yield
    finally:
        sys.argv = argv
        os.chdir(here)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def answer(*words: str, cwd: Path) -> Answer:
    """Runs ``coterie WORDS`` in a folder; an exception that would be a traceback is raised."""
    out, err = io.StringIO(), io.StringIO()
    with _as_typed(words, cwd), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Answer(status, out.getvalue(), err.getvalue())
