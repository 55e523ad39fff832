"""What a peer tells of itself: one line of JSON for every event, on the terminal and in its folder."""

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

LOG = "log.jsonl"


class Log:
    """Events, which are shown, and kept in a file as soon as there is a folder for it. Any thread may tell one."""

    def __init__(self, show: TextIO | None) -> None:
        self.show, self.path, self._lock = show, None, Lock()
        self._early: list[str] = []  # lines that wait for the folder

    path: Path | None

    def keep_in(self, folder: Path) -> None:
        """Write all events into a file of this folder, those until now as well."""
        with self._lock:
            self.path = folder / LOG
            early, self._early = self._early, []
            self._write("".join(early))

    def __call__(self, event: str, **fields: Any) -> None:
        """Tell an event."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields})
        with self._lock:
            if self.show is not None:
                print(line, file=self.show, flush=True)
            if self.path is None:
                self._early.append(line + "\n")
            else:
                self._write(line + "\n")

    def _write(self, lines: str) -> None:
        """Append lines; a full disk ends a peer where it saves its state, not where it talks."""
        assert self.path is not None
        try:
            with self.path.open("ab", buffering=0) as file:
                end, content = file.tell(), lines.encode()
                if file.write(content) < len(content):  # the disk is full: half a line would spoil the next one
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if self.show is not None:
                print(f"cannot write {self.path} ({error.strerror}): free the disk", file=self.show, flush=True)
