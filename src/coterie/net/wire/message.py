"""What one peer sends to another: a safetensors file, whose metadata say which exchange of which run it belongs to.

A message may come from anybody who holds a certificate, so nothing of it is believed: it has exactly the names, types
and shapes that the receiver expects, laid out in the one order in which they are written, or it is refused.
"""

import json
import math
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch

from ...core.errors import UserError, in_one_line
from ...core.tensors import Tensors
from ...store.safetensors import ALIGNED, TensorInfo, describe, serialize

CHUNK = 2**20  # bytes that are sent, received or checked at a time
LONGEST_HEADER = CHUNK  # bytes, with the length before it: some 8,000 tensors
LONGEST_WORD = 128  # characters of a name or a digest
SHOWN = 60  # characters of what somebody else has written that a sentence repeats

Reason = Literal[
    "early", "late", "duplicate", "sender", "federation", "settings", "shapes", "values", "size", "format",
    "certificate", "revoked", "cut", "disk", "error",
]  # fmt: skip
Announced = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""The types and shapes of one exchange's message, by name."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_WRONG: dict[torch.dtype, tuple[str, int]] = {  # an integer as wide, and the bits that are all 1 in NaN and infinity
    torch.float64: ("<u8", 0x7FF0_0000_0000_0000),
    torch.complex64: ("<u4", 0x7F80_0000),
    torch.float32: ("<u4", 0x7F80_0000),
    torch.bfloat16: ("<u2", 0x7F80),
    torch.float16: ("<u2", 0x7C00),
    torch.float8_e4m3fn: ("u1", 0x7F),  # it has NaN alone
    torch.float8_e5m2: ("u1", 0x7C),
    torch.bool: ("u1", 0),
}


class Header(NamedTuple):
    """Which message it is."""

    federation: str
    digest: str  # of the method and its settings
    kind: str  # "copy", "transfer", ...
    round: int
    step: int  # which exchange of the round
    sender: str


class Refused(Exception):  # noqa: N818
    """A message that is not taken, with the reason as one of a few words, for counting, and as a sentence."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason: Reason = reason
        self.round: int | None = None  # of the message, once it is known


class Outgoing:
    """A message to any number of receivers; its tensors are not copied, so nobody may change them until it is sent.

    ``lasts``: whether it is sent until it is taken; else it is given up when its round is over or it is refused.
    """

    def __init__(self, header: Header, tensors: Tensors, lasts: bool = False) -> None:
        self.header, self._tensors, self.lasts = header, tensors, lasts
        first = len(next(serialize(tensors, self._metadata())))
        if first > LONGEST_HEADER:
            raise UserError(f"{len(tensors):,} tensors are too many for one message: share fewer")
        self.size = first + sum(v.numel() * v.element_size() for v in tensors.values())

    def _metadata(self) -> dict[str, str]:
        return {k: str(v) for k, v in self.header._asdict().items()}

    def chunks(self, size: int = CHUNK) -> Iterator[bytes | memoryview]:
        """Yield all of it, at most ``size`` bytes at a time."""
        for part in serialize(self._tensors, self._metadata()):
            for first in range(0, len(part), size):
                yield part[first : first + size]


def read_header(first: bytes) -> Header | None:
    """Return the header at the beginning of a message, or None if there must be more of it."""
    length = int.from_bytes(first[:8], "little")
    if len(first) >= 8 and (length > LONGEST_HEADER - 8 or length % ALIGNED):
        raise Refused("format", "its header has a length that no message has")
    if len(first) < 8 or len(first) < 8 + length:
        return None
    return _header_in(_parsed(first[8 : 8 + length]))


def open_message(path: Path, announced: Announced, most: float = math.inf) -> Tensors:
    """Return the tensors of a message as ``map_message`` does; refuse values that nobody can compute with.

    ``most``: values of more than twice as much are refused, too, whatever their sign.

    Values are checked through a small buffer, so that checking takes no memory: pages of a file that are mapped and
    read would be counted as this process's own.
    """
    expected = describe(announced)
    with path.open("rb") as f:
        start = _check_header(f, announced, expected, os.fstat(f.fileno()).st_size)
        _check_values(f, start, announced, expected, most)
    return map_message(path, announced)


def map_message(path: Path, announced: Announced) -> Tensors:
    """Return the tensors of a message, mapped into memory when they are used; refuse others than those announced."""
    expected = describe(announced)
    with path.open("rb") as f:
        start = _check_header(f, announced, expected, os.fstat(f.fileno()).st_size)
        mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(name: str) -> torch.Tensor:
        dtype, shape = announced[name]
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        at = start + expected[name]["data_offsets"][0]
        return torch.frombuffer(mapped, dtype=dtype, count=math.prod(shape), offset=at).view(shape)

    return {name: view(name) for name in announced}


def _check_header(f: BinaryIO, announced: Announced, expected: Mapping[str, TensorInfo], size: int) -> int:
    """Return where the values begin; refuse a file that does not describe exactly what was announced."""
    length = int.from_bytes(f.read(8), "little")
    if size < 8 or length > LONGEST_HEADER - 8 or length % ALIGNED or size < 8 + length:
        raise Refused("format", "its header is not whole")
    found = _parsed(f.read(length))
    _header_in(found)
    del found["__metadata__"]
    for name in (*announced, *found):
        _check_tensor(name, found.get(name), expected.get(name))
    values = max((info["data_offsets"][1] for info in expected.values()), default=0)
    if size != 8 + length + values:
        raise Refused("size", f"it has {size - 8 - length:,} bytes of values, and {values:,} were announced")
    return 8 + length


def _check_tensor(name: str, found: Any, expected: TensorInfo | None) -> None:
    """Refuse what a header says of a tensor, unless it is what is expected."""
    shown = shorten(name)
    if expected is None:
        raise Refused("shapes", f"it has a tensor {shown} that was not announced")
    if found is None:
        raise Refused("shapes", f"it has no tensor {shown}")
    if not isinstance(found, dict) or set(found) != set(expected) or not _integers(found["shape"]):
        raise Refused("format", f"its header does not describe {shown} as it should")
    if (found["dtype"], found["shape"]) != (expected["dtype"], expected["shape"]):
        wanted = f"{expected['dtype']} of shape {expected['shape']}"
        raise Refused("shapes", f"its tensor {shown} is not {wanted}, which was announced")
    if not _integers(found["data_offsets"]) or found["data_offsets"] != expected["data_offsets"]:
        raise Refused("format", f"its tensor {shown} is not where it should be")


def _check_values(
    f: BinaryIO, start: int, announced: Announced, expected: Mapping[str, TensorInfo], most: float
) -> None:
    """Refuse NaN, infinity and what is too large, and truth values that are neither 0 nor 1."""
    buffer = memoryview(bytearray(CHUNK))
    for dtype, same in groupby(expected, lambda name: announced[name][0]):  # those of a type lie side by side
        places = {name: expected[name]["data_offsets"] for name in same}
        if dtype not in _WRONG:
            continue
        begins = {begin: name for name, (begin, _) in places.items()}  # of several at one place the last is not empty
        first, end = min(begins), max(end for _, end in places.values())
        f.seek(start + first)
        for at in range(first, end, CHUNK):
            piece = buffer[: min(CHUNK, end - at)]
            if f.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise Refused("size", "it became shorter while it was read")
            if (place := _wrong_value(piece, dtype, most)) is not None:
                name = begins[max(begin for begin in begins if begin <= at + place)]
                large = "" if most == math.inf else ", or far too large"
                kind = "neither 0 nor 1" if dtype is torch.bool else f"not finite{large}"
                raise Refused("values", f"its tensor {shorten(name)} has a value that is {kind}")


def _wrong_value(piece: memoryview, dtype: torch.dtype, most: float) -> int | None:
    """Return the byte at which the first value begins that nobody can compute with, if there is any."""
    kind, mask = _WRONG[dtype]
    bits = np.frombuffer(piece, kind)
    if dtype is torch.bool:
        wrong = bits > 1
    else:  # exponents are compared, whose bits are ordered as the values are
        limit = torch.tensor([most], dtype=torch.float32 if dtype is torch.complex64 else dtype).view(torch.uint8)
        largest = min(int(np.frombuffer(limit.numpy(), kind)[0]) & mask, mask - 1)
        wrong = (bits & bits.dtype.type(mask)) > largest
    return int(wrong.argmax()) * bits.itemsize if wrong.any() else None


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the object that a header is; no key may come twice, as readers would differ in which of them counts."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError
        return found

    try:
        value = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise Refused("format", "its header is no JSON object with every key once") from None
    if not isinstance(value, dict):
        raise Refused("format", "its header is no JSON object with every key once")
    return value


def _header_in(found: Mapping[str, Any]) -> Header:
    """Return which message it is, from what its header says."""
    about = found.get("__metadata__")
    if not isinstance(about, dict) or set(about) != set(Header._fields):
        raise Refused("format", f"its metadata are not {', '.join(Header._fields)}")
    for key, value in about.items():
        if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD or not value.isprintable():
            raise Refused("format", f"its {key} is no short text")
    if not (_NUMBER.fullmatch(about["round"]) and _NUMBER.fullmatch(about["step"])):
        raise Refused("format", "its round or its step is no number")
    return Header(**{**about, "round": int(about["round"]), "step": int(about["step"])})


def _integers(values: Any) -> bool:
    """Tell whether it is a list of integers: to Python, 1.0 and true equal 1 as well."""
    return isinstance(values, list) and all(type(value) is int for value in values)


def shorten(text: str, most: int = SHOWN) -> str:
    """Return what somebody else has written as a sentence may repeat it."""
    plain = in_one_line(text[: most + 1])
    return plain if len(plain) <= most else f"{plain[:most]}..."
