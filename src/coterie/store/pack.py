"""Packing runs to carry them elsewhere: all but what is large and of no use for going on.

That is every client's model, and the state of a run that is finished. A run that is not has its newest checkpoint in
the pack, unless that is left out as well; a peer's messages, which are models of others, belong to its state.

``tar --exclude`` does not replace this: what a run needs depends on whether it is finished, and a run without its
checkpoint would silently begin again where it is unpacked.
"""

import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError
from ..core.files import replace
from .checkpoint import LEFT_OUT, newest_files
from .chosen import CHOSEN
from .folder import CHECKPOINT, CONFIG, INBOX, OUTBOX, RunFolder
from .lock import LOCK
from .models import MODELS

BOXES = (INBOX, OUTBOX)


class PackContents(NamedTuple):
    """What a pack holds; sizes in bytes."""

    finished: int  # runs
    unfinished: int
    checkpoints: int  # size of the states of unfinished runs, in the pack or not
    left_out: int  # size of all that is not in the pack
    size: int  # of the pack


def pack(folders: Sequence[Path], out: Path, checkpoints: bool = True) -> PackContents:
    """Write run folders, or those of several runs, into one archive; ``checkpoints``: of runs that are to go on."""
    if not out.name.endswith((".tar", ".tar.gz", ".tgz")):
        raise UserError(f"a pack is an archive of tar: write it to {out.name}.tar.gz instead of {out.name}")
    if out.exists():
        raise UserError(f"{out} already exists: choose another --out")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError(f"two of the folders have one name ({', '.join(sorted(names))}): pack them one by one")
    runs = [run for folder in folders for run in _runs(folder)]
    newest = {run: [] if run.finished else newest_files(run.path / CHECKPOINT) for run in runs}
    states = {path for run, files in newest.items() for path in (*files, *_beside(run))}
    files = {folder: [p for p in sorted(folder.rglob("*")) if p.is_file()] for folder in folders}
    taken = {f: [p for p in each if (p in states and checkpoints) or not _is_large(p)] for f, each in files.items()}

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w" if out.suffix == ".tar" else "w:gz") as archive:
            for folder, paths in taken.items():
                for path in paths:
                    archive.add(path, folder.resolve().name / path.relative_to(folder), filter=_nobodys)
                for run in runs if not checkpoints else ():
                    if newest[run] and run.path.is_relative_to(folder):
                        there = folder.resolve().name / run.path.relative_to(folder) / CHECKPOINT / LEFT_OUT
                        archive.addfile(tarfile.TarInfo(there.as_posix()), BytesIO())

    replace(out, write)
    sizes = {p: p.stat().st_size for each in files.values() for p in each}
    held = sum(sizes[p] for each in taken.values() for p in each)
    finished = sum(run.finished for run in runs)
    states_size = sum(sizes[p] for p in states)
    return PackContents(finished, len(runs) - finished, states_size, sum(sizes.values()) - held, out.stat().st_size)


def _runs(folder: Path) -> list[RunFolder]:
    """Return the runs of a folder: itself, or those in it, of which trials of settings are a level deeper."""
    found = [RunFolder(path.parent) for path in sorted(folder.rglob(CONFIG))]
    if not found:
        raise UserError(f"{folder} holds no run: give a run folder, or that of a comparison or a recipe's runs")
    return found


def _beside(run: RunFolder) -> list[Path]:
    """Return what a run that is not finished needs beside its checkpoint."""
    kept = [] if run.finished else [(CHOSEN, "round-*"), *((box, "*") for box in BOXES)]
    return [path for place, which in kept for path in (run.path / place).glob(which)]


def _is_large(path: Path) -> bool:
    """Return whether a file is a client's model or part of a state, or what a kill left of some file."""
    of_run = path.parent.name in (CHECKPOINT, CHOSEN, MODELS, *BOXES) and (path.parent.parent / CONFIG).exists()
    return of_run or path.name == LOCK or (path.name.startswith(".") and path.name.endswith(".tmp"))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose files they were: names of people, which mean nothing elsewhere."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
