"""Arrays of numbers in MATLAB files of version 5: SVHN needs no more, and so no SciPy."""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError
from .packed import check_size, opened

HEADER = 128
TAG = 8  # bytes: type and size of an element
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC_CLASSES = range(6, 16)  # double to uint64; others are cells, structures, texts and sparse matrices


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of numbers in a file by name, in MATLAB's shapes and order."""
    try:
        with opened(path) as file:
            check_size(path, path.stat().st_size)
            content = file.read()
        order = {b"IM": "<", b"MI": ">"}[content[126:128]]
        return dict(_arrays(memoryview(content)[HEADER:], order, path))
    except UserError:
        raise
    except (KeyError, ValueError, struct.error, zlib.error, OSError) as error:
        raise UserError(f"{path} is no whole MATLAB file of version 5 ({error}): fetch it again") from error


def _arrays(content: memoryview, order: str, path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    for kind, body in _elements(content, order):
        if kind == _COMPRESSED:
            (kind, body), *others = _elements(_unpacked(body, order, path), order)
            if kind == _COMPRESSED or others:
                raise ValueError("compressed twice, or several together")
        if kind == _MATRIX:
            yield from _matrix(body, order)


def _unpacked(body: memoryview, order: str, path: Path) -> memoryview:
    """Return the one element that a compressed one holds, whose tag says how large it is."""
    stream = zlib.decompressobj()
    tag = stream.decompress(body, TAG)
    size = struct.unpack(f"{order}II", tag)[1]
    check_size(path, size)
    content = stream.decompress(stream.unconsumed_tail, -(-size // 8) * 8) if size else b""  # 0 would be no limit
    if stream.decompress(stream.unconsumed_tail, 1):
        raise ValueError("it holds more than it announces")
    if not stream.eof:  # whose checksum is not checked before
        raise ValueError("it ends too early")
    return memoryview(tag + content)


def _matrix(body: memoryview, order: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Read an array of numbers from its parts: flags, dimensions, name, values."""
    parts = _elements(body, order)
    flags, dimensions, name = (next(parts, (0, memoryview(b"")))[1] for _ in range(3))
    if struct.unpack_from(f"{order}I", flags)[0] & 0xFF not in _NUMERIC_CLASSES:
        return
    kind, values = next(parts, (0, memoryview(b"")))
    if kind not in _NUMBERS:
        raise ValueError(f"values of type {kind}")
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    flat = np.frombuffer(values, f"{order}{_NUMBERS[kind]}")
    if len(flat) != prod(shape):
        raise ValueError(f"{len(flat)} values for shape {shape}")
    yield bytes(name).decode("ascii"), flat.reshape(shape, order="F")


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, bytes), padded to 8 bytes unless compressed; up to four bytes may be in the tag."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        start = at + 8
        if kind >> 16:  # the small format: the upper half is the size
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            at += 8
        else:
            at = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(content):
            raise ValueError("it ends too early")
        yield kind, content[start : start + size]
