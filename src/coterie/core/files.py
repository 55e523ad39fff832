"""Writing that a crash cannot tear: to a temporary name, to the disk, then renamed."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turns what a disk refuses (full, read-only, no permission) into a sentence that names the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write {path} ({reason}): free the disk or its permissions, or choose another --out; "
            "what was saved before is untouched"
        ) from error


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Makes ``path`` what ``write`` writes, or leaves it as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            to_disk(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        to_disk(path.parent)


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """A JSON file, whole or not at all; ``indent`` None: all in one line."""
    text = json.dumps(value, indent=indent, allow_nan=False) + "\n"
    replace(path, lambda temporary: temporary.write_text(text))


def append_line(path: Path, value: Any) -> None:
    """One more line of JSON, there for readers; ``to_disk`` makes it last."""
    with disk(path), path.open("a") as f:
        f.write(json.dumps(value, allow_nan=False) + "\n")


def digest(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
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
