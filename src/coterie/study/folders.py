"""The folder of several runs: a comparison, a tuning, or those of a recipe."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core.checked_json import read_json
from ..core.errors import UserError
from ..core.files import write_json, write_text
from ..core.schema_several import Plan
from ..measure.compare import TARGET
from ..report.collect import COMMAND, PLAN
from ..store.folder import CONFIG, METRICS, UNBEGUN
from ..store.lock import LOCK, sole_writer

# What there is before the first round of the first run: of all runs, and of one.
BEFORE, OF_A_RUN = {COMMAND, PLAN, LOCK, f".{COMMAND}.tmp", f".{PLAN}.tmp"}, {CONFIG, LOCK, UNBEGUN}


def fresh_folder(name: str) -> Path:
    """Return a folder under runs/ that does not exist yet."""
    numbers = (Path("runs") / f"{name}-{i}" for i in range(1, 1_000_000))
    return next(path for path in numbers if not path.exists())


def check_free(folder: Path) -> None:
    """Refuse a folder that exists, unless all it has is of a command that was killed before its first round."""
    if folder.exists() and not (folder.is_dir() and (folder / LOCK).exists() and _is_unbegun(folder)):
        raise UserError(f"{folder} already exists: choose another --out, or continue it with --resume")


def _is_unbegun(folder: Path) -> bool:
    runs = [path for path in folder.iterdir() if path.name not in BEFORE]
    return all(run.is_dir() and {path.name for path in run.iterdir()} <= OF_A_RUN for run in runs)


def plan_of(runs: Sequence[str], target: float | None = TARGET) -> Plan:
    """Return the plan of runs in these folders; ``target``: what rounds are counted to."""
    return {"runs": list(runs), "target": target}


@contextmanager
def several_runs(folder: Path, plan: Plan, resume: bool, command: str | None = None) -> Iterator[None]:
    """Write, before the first of several runs, the command that makes them, and what it plans.

    A page of the folder, and its watcher, read it. No other command writes into it meanwhile. After an error before
    the first round there is nothing but runs that failed, in whose place the next command can begin.
    """
    with sole_writer(folder, lambda text: print(text, file=sys.stderr)) as lock:
        if not resume:
            _clear(folder)
        said = {path: path.read_text() for name in (COMMAND, PLAN) if (path := folder / name).exists()}
        rounds = _rounds(folder)
        if command is not None:
            write_text(folder / COMMAND, f"{command}\n")
        write_json(folder / PLAN, plan)
        try:
            yield
        except Exception:
            if _rounds(folder) == rounds:  # nothing was done, so that the folder is still what the command before said
                for path, text in said.items():
                    write_text(path, text)
            if _is_unbegun(folder):
                lock.stays = any(path.is_dir() for path in folder.iterdir())
                if not lock.stays:
                    _clear(folder)
            raise


def _rounds(folder: Path) -> dict[Path, int]:
    """Return how long the files of all rounds in a folder are."""
    return {path: path.stat().st_size for path in folder.glob(f"**/{METRICS}")}


def write_notes(folder: Path, notes: Sequence[str]) -> None:
    """Keep what is to be said beside the results, for a page of them."""
    if notes:
        write_json(folder / PLAN, {**read_json(folder / PLAN, Plan), "notes": list(notes)})


def _clear(folder: Path) -> None:
    """Remove what there is before the first round."""
    if not _is_unbegun(folder):
        raise UserError(f"{folder} already exists: choose another --out, or continue it with --resume")
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before it
        if path.is_dir():
            path.rmdir()
        elif path != folder / LOCK:
            path.unlink()
