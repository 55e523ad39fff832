"""Files in the idx format of MNIST, compressed or not."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError

_BYTES = 8  # the type code of unsigned bytes, the only one these data sets have


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in a file; it can be written to."""
    content = _content(path)
    start = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, _BYTES, dimensions)) or len(content) < start:
        raise UserError(f"{path} is no idx file of bytes in {dimensions} dimensions: put the original file there")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, 4)]
    if len(content) - start != prod(shape):
        have = len(content) - start
        raise UserError(f"{path} has {have} bytes of data, not the {prod(shape)} it announces: fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytearray:
    try:
        raw = path.read_bytes()
        return bytearray(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): fetch it again") from error
