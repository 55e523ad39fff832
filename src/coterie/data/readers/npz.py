"""Arrays in an .npz file, read only as far as they are needed, and never more than they announce."""

import zipfile
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.memory import check_fits
from .packed import exactly, opened

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_COPIES = 3  # as it is stored, in the type of a federation, and divided into training and test samples
_ENCRYPTED = 1  # the bit of a member's flags
_LONGEST_HEADER = 10_000  # bytes, as for NumPy


class _Header(NamedTuple):
    """What a member says of its array."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return those arrays of a file that have one of the names; refuse what would not fit into memory."""
    try:
        with opened(path) as file:
            if file.read(6) == b"\x93NUMPY":
                raise ValueError("a single array")
            with zipfile.ZipFile(file) as archive:
                members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
                wanted = {name: members[name] for name in names if name in members}
                need = _COPIES * sum(_header(archive, member).size for member in wanted.values())
                check_fits(need, f"to use the arrays of {path}", "save fewer samples, or smaller ones")
                return {name: _array(archive, member) for name, member in wanted.items()}
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): name an .npz file") from error
    except Exception as error:  # what is damaged fails in many ways
        said = str(error) or type(error).__name__
        raise UserError(f"{path} is no .npz file of plain arrays ({said}): write it with numpy.savez") from error


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """Return what a member announces; raise ValueError where it does not hold as much, or is packed in another way."""
    if member.flag_bits & _ENCRYPTED:
        raise ValueError(f"{member.filename} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is packed as NumPy does not")
    with archive.open(member) as file:
        header = _announced(file)
        if header.dtype.hasobject:
            raise ValueError(f"{member.filename} holds objects")
        have = member.file_size - file.tell()
    if have != header.size:
        raise ValueError(f"{member.filename} announces {header.size} bytes of data and has {have}")
    return header


def _announced(file: IO[bytes]) -> _Header:
    """Read what an array says of itself; NumPy would read all of a header, however long, before it refuses it."""
    version = npy.read_magic(file)
    begin = file.tell()
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes")
    file.seek(begin)
    return _Header(*_HEADERS[version](file))


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        header = _announced(file)
        content = exactly(file, header.size)
    return np.ndarray(header.shape, header.dtype, content.data, order="F" if header.fortran else "C")
