"""Safetensors files, written some MiB at a time: nothing is held twice.

A file is the length of its header (8 bytes, little-endian), the header (JSON, filled up with spaces), and the tensors'
bytes one after another, in the order of the library: wide types first, so that all of them lie aligned.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.files import replace
from ..core.tensors import Tensors, size_in_bytes

PIECE = 16 * 2**20  # bytes copied, hashed and written at a time
ALIGNED = 8

NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {dtype: place for place, dtype in enumerate(NAMES)}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # types of every width that numpy knows


class TensorInfo(TypedDict):
    """What a header says of one tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]  # the first of its bytes and the one after the last, counted behind the header


def save_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file, whole or not at all, and return the SHA-256 of its content."""
    # Not the library's save_file: it writes through a temporary file of its own, under a random name that a kill leaves
    # behind, readable to nobody else, and its errors are no OSErrors. Nor its save: that takes the state twice more.
    sha = hashlib.sha256()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as f:
            for part in serialize(tensors, metadata):
                sha.update(part)
                f.write(part)

    replace(path, write)
    return sha.hexdigest()


def serialize(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Yield the content of a file, piece by piece."""
    described = describe({name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()})
    yield _header(described, metadata)
    for name in described:
        for piece in pieces(tensors[name].detach()):
            # Copied only where the bytes do not lie in order in this machine's memory. By numpy, not torch, which would
            # take threads of its own for it, beside those of the training.
            bits = piece.cpu().view(_BITS[piece.element_size()]).numpy()
            yield np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data


def describe(announced: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, TensorInfo]:
    """Return what a header says of tensors of these types and shapes, in the order of their bytes.

    >>> describe({"b": (torch.float32, (2, 3)), "a": (torch.float32, ())})["b"]
    {'dtype': 'F32', 'shape': [2, 3], 'data_offsets': [4, 28]}
    """
    for name, (dtype, _) in announced.items():
        if dtype not in NAMES:
            raise UserError(f"{name} cannot be saved as {dtype}: use a type that safetensors files know")
    described: dict[str, TensorInfo] = {}
    end = 0
    for name, (dtype, shape) in sorted(announced.items(), key=lambda item: (_ORDER[item[1][0]], item[0])):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        described[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    return described


def _header(described: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None) -> bytes:
    """Return the header, with the length before it."""
    about = {} if metadata is None else {"__metadata__": dict(metadata)}
    text = json.dumps({**about, **described}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def pieces(value: Tensor) -> Iterator[Tensor]:
    """Yield the same numbers in the same order, in views of at most PIECE bytes.

    >>> [tuple(p.shape) for p in pieces(torch.zeros(1).expand(3, 2**21))]
    [(2, 2097152), (1, 2097152)]
    """
    size = size_in_bytes([value])
    if size <= PIECE:
        yield from [value] if size else []
    elif value.is_contiguous() and value.dim() > 1:
        yield from pieces(value.view(-1))
    elif len(value) == 1:
        yield from pieces(value[0])
    else:
        step = max(1, PIECE * len(value) // size)
        for first in range(0, len(value), step):
            yield from pieces(value[first : first + step])
