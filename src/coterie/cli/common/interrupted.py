"""What a command that trains says when it ends before its runs do: what is saved, and the command that goes on."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ... import algorithms
from ...core.custom import is_own, trust_options
from ...core.memory import retain_freed_memory
from ...report.collect import planned_runs
from ...store import RunFolder
from ...training.time_limit import OutOfTime
from .fields import flag
from .options import Output, TrainingOptions
from .typed import INTERRUPTED

PLACE = ("data_dir", "engine", "ray_address", "workers", "gpus_per_worker")  # where a run goes on, as it was typed
OUT_OF_TIME = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, come again later


@contextmanager
def interruptible(folder: Path, options: TrainingOptions, output: Output) -> Iterator[None]:
    """On Ctrl-C, SIGTERM or when the time is over, keep what is saved and print the command that continues."""
    try:
        with retain_freed_memory():  # an option of the process: in Python it is the caller's to choose
            yield
    except KeyboardInterrupt:
        _end(INTERRUPTED, "\ninterrupted; finished rounds are saved", folder, options, output)
    except OutOfTime:
        _end(OUT_OF_TIME, f"stopped in time: {_done(folder)}", folder, options, output)


def _end(status: int, said: str, folder: Path, options: TrainingOptions, output: Output) -> NoReturn:
    command = shlex.join(_continuation(folder, options, output))
    print(f"{said}. Continue with:\n  coterie {command}", file=sys.stderr)
    sys.exit(status)


def _done(folder: Path) -> str:
    """Say what is done and what is left of a run, or of several."""
    runs = planned_runs(folder)
    begun = [run for name in runs or [""] if (run := RunFolder(folder / name)).exists]
    unfinished = [run for run in begun if not run.finished]
    said = []
    if runs:
        finished = len(begun) - len(unfinished)
        said = [f"{finished} of {len(runs)} runs are finished, {_left(len(runs) - finished)}"]
    for run in unfinished:
        done, rounds = len(run.rows()), run.config()["rounds"]
        of = f" of {run.path.name}" if runs else ""
        rest = _left(rounds - done) if done < rounds else "the clients' models are not written yet"
        said.append(f"{done} of {rounds} rounds{of} are done, {rest}")
    return "; ".join(said)


def _left(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'} left"


def _continuation(folder: Path, options: TrainingOptions, output: Output) -> list[str]:
    """Return the words that name the folder alone where a run has begun in it, else the same command once more."""
    if RunFolder(folder).exists:
        named = algorithms.is_method(str(folder)) or is_own(str(folder)) or str(folder).startswith("-")
        config = RunFolder(folder).config()
        longer = options.resume and (options.rounds or 0) > config["rounds"]  # of which nothing is written yet
        typed = [
            word for name in PLACE if (v := getattr(options, name, None)) is not None for word in (flag(name), str(v))
        ]
        limit = [] if options.for_ is None else ["--for", options.for_.text]
        words = ["run", f"./{folder}" if named else str(folder), "--resume"]
        more = ["--rounds", str(options.rounds)] if longer else []
        return [*words, *more, *trust_options(config), *typed, *limit, *output.flags]
    again = [] if options.resume else ["--resume"]
    return [*sys.argv[1:], *([] if options.out else ["--out", str(folder)]), *again]
