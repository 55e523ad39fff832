"""Writing that a crash cannot tear: to a temporary name, to the disk, then renamed."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FolderError, UserError

LONGEST_NAME, LONGEST_PATH = 255, 3000  # bytes: systems have 255 and 4,096, and a run has files within its folder
DEEPEST = 200  # folders within each other


def path_problem(path: str | Path) -> str:
    """Say why no system takes a path, or nothing: its names or all of it are too long, or it is too deep.

    >>> path_problem("a" * 300)
    "the path 'aaaaaaaaaaaaaaaaaaaa...' has a name of 300 bytes, and 255 are the most"
    """
    parts = Path(path).parts
    longest, whole = (max(map(len, map(os.fsencode, texts)), default=0) for texts in (parts, [str(path)]))
    for count, most, has in (
        (longest, LONGEST_NAME, "has a name of {:,} bytes"),
        (whole, LONGEST_PATH, "has {:,} bytes"),
        (len(parts), DEEPEST, "has {:,} levels"),
    ):
        if count > most:
            return f"the path '{str(path)[:20]}...' {has.format(count)}, and {most:,} are the most"
    return ""


def user_path(path: str | Path) -> Path:
    """Return a path as a person has named it, with ``~`` replaced; refuse one that no system takes."""
    if problem := path_problem(path):
        raise UserError(f"{problem}: name another file or folder")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"nobody's home folder is known for {path}: write the whole path") from error


@contextmanager
def disk(path: Path, option: str = "--out") -> Iterator[None]:
    """Turn what a disk refuses (full, read-only, no permission) into a sentence that names the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise FolderError(
            f"cannot write {path} ({reason}): free the disk or its permissions, or choose another {option}; "
            "what was saved before is untouched"
        ) from error


def replace(path: Path, write: Callable[[Path], object], option: str = "--out", shared: bool = False) -> None:
    """Make ``path`` what ``write`` writes, or leave it as it was; ``option``: the one that chooses its folder.

    The temporary name is the same in every process: a run that continues after a crash replaces what was left of it.
    ``shared``: several processes may write this file at the same time, so each has a temporary name of its own.
    """
    if not path.name or (os.path.lexists(path) and not path.is_file()):  # renaming would put a file in a device's place
        raise FolderError(f"{path} is no ordinary file: choose another {option}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    with disk(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(temporary):  # in a folder of somebody else it may be a link to another file
            temporary.unlink()
        try:
            write(temporary)
            to_disk(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        to_disk(path.parent)


def write_text(path: Path, text: str, option: str = "--out", shared: bool = False) -> None:
    """Write a text file, whole or not at all, as ``replace`` does."""
    replace(path, lambda temporary: temporary.write_bytes(text.encode()), option, shared)


def write_json(path: Path, value: Any, indent: int | None = 2) -> str:
    """Write a JSON file, whole or not at all, and return the SHA-256 of it; ``indent`` None: all in one line."""
    text = json_text(value, indent)
    write_text(path, text)
    return text_digest(text)


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, which is that of its file."""
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def private() -> Iterator[None]:
    """Let nobody but this user read what is written meanwhile, by any thread of this process."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def create_folder(path: Path, write: Callable[[Path], object], option: str) -> None:
    """Create the folder ``path`` with what ``write`` writes into it, whole or not at all, unless it is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk(path, option):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            write(temporary)
            if not path.exists():  # another process may have been faster
                temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def append_line(path: Path, value: Any) -> None:
    """Append one line of JSON, which readers see at once; ``to_disk`` makes it last."""
    with disk(path), path.open("a") as f:
        f.write(json.dumps(value, allow_nan=False) + "\n")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32":  # which opens no folders, and flushes only what could be written
        if path.is_dir():
            return
        handle = os.open(path, os.O_RDWR | os.O_BINARY)
    else:
        handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def config_folder() -> Path:
    """Return the folder for what a user has chosen or measured, where each system has such folders."""
    return _user_folder("XDG_CONFIG_HOME", "APPDATA", "AppData/Roaming", "Library/Application Support", ".config")


def cache_folder() -> Path:
    """Return the folder for what can be made again, where each system has such folders."""
    return _user_folder("XDG_CACHE_HOME", "LOCALAPPDATA", "AppData/Local", "Library/Caches", ".cache")


def _user_folder(variable: str, on_windows: str, windows: str, mac: str, other: str) -> Path:
    """Return our folder in the one that a variable names, else in the usual one of this system."""
    usual = {"win32": windows, "darwin": mac}.get(sys.platform, other)
    named = os.environ.get(variable) or (os.environ.get(on_windows) if sys.platform == "win32" else None)
    return Path(named or Path.home() / usual) / "coterie"
