"""Files that are packed, read with flat memory: no more than they announce, and no more than there is room for."""

import errno
import stat
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.memory import check_fits
from ...core.spec import scaled

CHUNK = 2**20  # bytes that are unpacked at a time
LARGEST = 2**30  # bytes of one part of a published data set; the largest real one has 225 MB
COPIES = 3  # as it is unpacked, as it is read from there, and as images with their channels first


class Readable(Protocol):
    """A stream of bytes, unpacked or not."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, or fewer."""


class NotOrdinaryError(OSError):
    """A file that is a pipe, a socket or a device."""


def opened(path: Path) -> BufferedReader:
    """Open a file to read it; refuse a pipe or a device, which may have no end."""
    check_ordinary(path)
    return path.open("rb")


def check_ordinary(path: Path) -> None:
    """Refuse a pipe or a device, as opening one may wait for ever; a folder cannot be opened anyway."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise NotOrdinaryError(errno.EINVAL, "it is no ordinary file", str(path))


def check_size(where: Path, size: int) -> None:
    """Refuse what announces more bytes than a part of a published data set has, or than there is room for."""
    if size > LARGEST:
        most = f"{scaled(size, 'B')}, and {scaled(LARGEST, 'B')} are the most"
        raise UserError(f"{where} announces {most}: put the original file there")
    check_fits(COPIES * size, f"what {where} announces", "free some memory, or fetch it again")


def exactly(file: Readable, count: int) -> NDArray[np.uint8]:
    """Return so many bytes of a file, which can be written to; raise ValueError where it has fewer, or more."""
    content, have = np.empty(count, np.uint8), 0
    while have < count and (piece := file.read(min(CHUNK, count - have))):
        content[have : have + len(piece)] = np.frombuffer(piece, np.uint8)
        have += len(piece)
    if have < count:
        raise ValueError(f"it has {have} bytes of data, not the {count} it announces")
    if file.read(1):
        raise ValueError(f"it has more than the {count} bytes of data it announces")
    return content


class Bounded:
    """An unpacked stream as ``tarfile`` reads it, which refuses to go too far, or to give too much at a time."""

    def __init__(self, file: GzipFile, where: Path) -> None:
        self.file, self.where = file, where

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        self._check(size)
        return self.file.read(size)

    def seek(self, position: int) -> int:
        """Go to a place, which means unpacking all before it."""
        self._check(position // 4)  # all files together may be some times as large as one
        return self.file.seek(position)

    def tell(self) -> int:
        """Return the place."""
        return self.file.tell()

    def _check(self, size: int) -> None:
        if size > LARGEST:
            most = f"{scaled(size, 'B')} where {scaled(LARGEST, 'B')} are the most"
            raise UserError(f"{self.where} unpacks to {most}: it is no published archive, fetch it again")
