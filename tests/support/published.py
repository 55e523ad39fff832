"""Writers of the formats data sets are published in, by their specifications and not with the library's readers."""

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def images(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes at random."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    """Two zeros, the type, the number of dimensions, their sizes as big-endian words, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: list[NDArray[np.uint8]], compressed: bool) -> None:
    """The four files of MNIST."""
    folder.mkdir(parents=True)
    for name, array in zip(IDX, arrays, strict=True):
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(idx(array)) if compressed else idx(array))


class _Python2(pickle._Pickler):  # type: ignore[name-defined]
    """Protocol 2 as Python 2 wrote it: byte strings are the strings, and NumPy's core has its old name."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, value: bytes) -> None:
        short = len(value) < 256
        self.write(b"U" + bytes([len(value)]) + value if short else b"T" + struct.pack("<i", len(value)) + value)

    dispatch[bytes] = save_bytes

    def save_text(self, value: str) -> None:
        self.save_bytes(value.encode("ascii"))

    dispatch[str] = save_text

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(b"c" + f"{module}\n{name or value.__qualname__}\n".encode())

    dispatch[type] = save_global
    dispatch[type(np.empty(0).__reduce__()[0])] = save_global


def python2_pickle(value: Any) -> bytes:
    """The bytes Python 2 would have written."""
    out = io.BytesIO()
    _Python2(out, protocol=2).dump(value)
    return out.getvalue()


def cifar_batch(x: NDArray[np.uint8], y: NDArray[np.int64], key: bytes = b"labels") -> bytes:
    """One batch: the images in rows of 3,072 bytes, red, green and blue."""
    names = [b"image_%d.png" % i for i in range(len(y))]
    rows = x.reshape(len(x), -1)
    return python2_pickle({b"batch_label": b"a batch", key: y.tolist(), b"data": rows, b"filenames": names})


def tar_gz(path: Path, folder: Path) -> None:
    """The folder as an archive."""
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)


def _element(kind: int, body: bytes) -> bytes:
    """A tag and its bytes, padded to eight; up to four bytes sit inside the tag."""
    if 0 < len(body) <= 4:
        return struct.pack("<HH", kind, len(body)) + body.ljust(4, b"\0")
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def mat(arrays: dict[str, NDArray[np.uint8]], compressed: bool = True) -> bytes:
    """A MATLAB file of version 5 with arrays of unsigned bytes."""
    out = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    for name, array in arrays.items():
        body = _element(6, struct.pack("<II", 9, 0))
        body += _element(5, struct.pack(f"<{array.ndim}i", *array.shape))
        body += _element(1, name.encode()) + _element(2, array.tobytes(order="F"))
        matrix = struct.pack("<II", 14, len(body)) + body
        packed = zlib.compress(matrix)
        out += struct.pack("<II", 15, len(packed)) + packed if compressed else matrix
    return out
