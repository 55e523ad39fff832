"""What a peer tells of itself: one line of JSON for every event, on the terminal and in its folder.

Times are UTC. A line has no numbers of models and no samples: what is no short text, number or list of such is named by
its type alone.
"""

import json
import math
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from ...store.folder import LOG

LARGEST = 10 * 2**20  # bytes of a file, before the next one is begun
KEPT = 4  # older files, log.jsonl.1 the newest of them
LONGEST = 500  # characters of a text
MOST = 1000  # names in a list


class Log:
    """Events, which are shown, and kept in a file as soon as there is a folder for it. Any thread may tell one."""

    def __init__(self, show: TextIO | None) -> None:
        self.show, self.path, self._lock = show, None, Lock()
        self._early: list[str] = []  # lines that wait for the folder
        self._lost = 0  # lines that the disk did not take

    path: Path | None

    def keep_in(self, folder: Path) -> None:
        """Write all events into a file of this folder, those until now as well."""
        with self._lock:
            self.path = folder / LOG
            early, self._early = self._early, []
            self._write("".join(early))

    def __call__(self, event: str, **fields: Any) -> None:
        """Tell an event."""
        line = _line(event, fields)
        with self._lock:
            self._print(line)
            if self.path is None:
                self._early.append(line)
            else:
                self._write(line)

    def _print(self, line: str) -> None:
        """Show a line; a terminal that is gone is none to mind."""
        try:
            if self.show is not None:
                self.show.write(line)
                self.show.flush()
        except (OSError, ValueError):
            self.show = None

    def _write(self, lines: str) -> None:
        """Append lines; a full disk ends a peer where it saves its state, not where it talks.

        That it is full is shown once, and the file tells later how many lines it lacks.
        """
        assert self.path is not None
        told = _line("gap", {"lines": self._lost}) if self._lost else ""
        try:
            _append(self.path, (told + lines).encode())
            self._lost = 0
        except OSError as error:
            if not self._lost:
                self._print(_line("warning", {"text": f"cannot write {self.path} ({error.strerror}): free the disk"}))
            self._lost += lines.count("\n")


def _line(event: str, fields: dict[str, Any]) -> str:
    """Return an event in one line of JSON, which has nothing that a terminal would act on."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "event": event, **{k: _plain(v) for k, v in fields.items()}}) + "\n"


def _plain(value: Any) -> Any:
    """Return a value as a line may have it.

    >>> _plain(["a", 1, None, float("nan"), b"bytes"]), len(_plain("long" * 1000))
    (['a', 1, None, None, 'bytes'], 500)
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in list(value)[:MOST]]
    return type(value).__name__


def _append(path: Path, content: bytes) -> None:
    """Append whole lines or nothing; a file that is large enough becomes an older one first."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.lseek(handle, size - 1, os.SEEK_SET) >= 0 and os.read(handle, 1) != b"\n":
            content = b"\n" + content  # a machine that lost its power left half a line
        try:
            while content:
                content = content[os.write(handle, content) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(handle, size)
            raise
        size = os.fstat(handle).st_size
    finally:
        os.close(handle)
    if size >= LARGEST:
        with suppress(OSError):  # it is tried again with the next line
            _rotate(path)


def _rotate(path: Path) -> None:
    """Begin a new file, and let go of the oldest."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1))]
    for newer, older in zip(names[-2::-1], names[:0:-1], strict=True):
        if newer.exists():
            newer.replace(older)
