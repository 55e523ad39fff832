"""One writer of a folder at a time.

The system releases the lock when the process that holds it ends, however it ends. The file that is locked is removed by
a writer that ends well, so one that lies there with nobody holding it tells of one that did not. Network file systems
lock among machines where their servers do; where there are no locks at all, a sentence says so.
"""

import errno
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from ..core.errors import FolderError
from ..core.files import disk

LOCK = ".lock"
LONGEST = 200  # bytes of it that are read
PATIENCE = 1.0  # seconds for those who look who writes
_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
_OWNER = re.compile(r"process \d{1,10} on [\w.-]{1,99}", re.ASCII)
_OPENED = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # somebody else's folder may have a link there


@dataclass
class Lock:
    """A lock that is held."""

    killed: bool  # whether an earlier writer was killed
    stays: bool = False  # whether its file tells from now on that this one did not end well


@contextmanager
def sole_writer(folder: Path, say: Callable[[str], object]) -> Iterator[Lock]:
    """Keep other processes from writing into a folder meanwhile.

    An error leaves it as it was: the file of a kill stays, and a folder in which nothing was begun goes.
    """
    path = folder / LOCK
    with disk(folder):
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        lock = Lock(path.exists())
        folder.mkdir(parents=True, exist_ok=True)
        handle, before = _acquired(path, say)
    try:
        yield lock
    except Exception:
        if lock.killed:
            lock.stays = True
            _write(handle, before)
        raise
    finally:
        _release(handle, path, lock.stays)
        with suppress(OSError):  # one that is not empty
            for each in new:
                each.rmdir()


def writer_of(folder: Path) -> str | None:
    """Return who writes into a folder now, as in "process 12 on a-host"; None: nobody does."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"cannot read {folder / LOCK} ({error.strerror}): ask as whoever writes there") from error
    try:
        _look(handle)  # until it is closed
        return None
    except OSError:
        return _owner(handle)
    finally:
        os.close(handle)


def _owner(handle: int) -> str:
    """Return whom a file names that somebody else has locked."""
    owner = os.read(handle, LONGEST).decode(errors="replace")
    return owner if _OWNER.fullmatch(owner) else "another process"


def _acquired(path: Path, say: Callable[[str], object]) -> tuple[int, bytes]:
    """Return the handle of the file, locked, and what was in it.

    Whoever looks who writes there holds it for a moment, which is waited for.
    """
    end = monotonic() + PATIENCE
    while True:
        handle = os.open(path, _OPENED, 0o666)
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _HELD:
                who, looked_at = _owner(handle), _only_looked_at(handle)
                os.close(handle)
                if looked_at and monotonic() < end:
                    sleep(0.01)
                    continue
                raise FolderError(
                    f"{path.parent} is being written by {who}: wait until it has ended, or choose another --out"
                ) from None
            say(f"the file system of {path.parent} has no locks ({error.strerror}): start no second command there")
        if _is_there(handle, path):
            break
        os.close(handle)  # whoever held it has removed it in between
    before = os.read(handle, LONGEST)
    _write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return handle, before


def _write(handle: int, content: bytes) -> None:
    os.truncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, content)


def _is_there(handle: int, path: Path) -> bool:
    """Return whether a file has still its name, for only then others would find it locked."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _release(handle: int, path: Path, stays: bool) -> None:
    """Let go of the file; remove it while it is still locked, where the system allows that."""
    if sys.platform == "win32":
        os.close(handle)
    if not stays:
        with suppress(OSError):
            path.unlink()
    if sys.platform != "win32":
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 2**20, os.SEEK_SET)  # what is locked cannot be read: not the owner's name
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

    _look = _lock  # it has no other locks

    def _only_looked_at(handle: int) -> bool:
        return True  # as far as one can tell: the holder is waited for, whoever it is

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _look(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at a time

    def _only_looked_at(handle: int) -> bool:
        try:
            _look(handle)
        except OSError:
            return False
        return True
