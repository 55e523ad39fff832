"""CIFAR's Python pickles, read without running anything that is in them."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError

PIXELS = 3 * 32 * 32


class Batches(NamedTuple):
    """Images [N, 3, 32, 32] and their labels."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]


class Layout(NamedTuple):
    """Which files of a folder hold the training and the test images, and under which key their labels are."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: bytes


CIFAR10 = Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), b"labels")
CIFAR100 = Layout(("train",), ("test",), b"fine_labels")


def read_cifar(path: Path, layout: Layout) -> tuple[Batches, Batches]:
    """Training and test images of the folder, or of the archive it is packed in."""
    wanted = (*layout.train, *layout.test)
    read = _from_folder if path.is_dir() else _from_archive
    batches = {name: _batch(f"{path}/{name}", content, layout.labels) for name, content in read(path, wanted)}
    missing = [name for name in wanted if name not in batches]
    if missing:
        raise RequestError(f"{path} lacks {', '.join(missing)}: fetch it again")
    return _joined([batches[name] for name in layout.train]), _joined([batches[name] for name in layout.test])


def _joined(batches: Sequence[Batches]) -> Batches:
    if len(batches) == 1:
        return batches[0]
    return Batches(np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches]))


def _from_folder(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in wanted:
        if (path / name).is_file():
            yield name, (path / name).read_bytes()


def _from_archive(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """One pass over the archive: going back would decompress it again."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                file = archive.extractfile(member) if name in wanted and member.isfile() else None
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise RequestError(f"{path} cannot be unpacked ({error}): fetch it again") from error


def _batch(where: str, content: bytes, key: bytes) -> Batches:
    """The images and labels of one pickle."""
    try:
        values = ArraysOnly(content, where).load()
        x, y = np.asarray(values[b"data"]), np.asarray(values[key])
    except RequestError:
        raise
    except Exception as error:  # a damaged pickle raises whatever it happens to meet
        raise RequestError(f"{where} is damaged ({type(error).__name__}): fetch it again") from error
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        shapes = f"{x.dtype} {x.shape} and {y.dtype} {y.shape}"
        raise RequestError(f"{where} holds {shapes}, not uint8 (N, {PIXELS}) and N labels: put the original file there")
    return Batches(x.reshape(-1, 3, 32, 32), y.astype(np.int64))


class ArraysOnly(pickle.Unpickler):
    """Plain values and NumPy arrays; whatever else a pickle names is refused before it is looked up."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.where = where

    def find_class(self, module: str, name: str) -> Any:
        """One of the four things that make up an array."""
        if (module, name) not in _ALLOWED:
            raise RequestError(
                f"{self.where} asks for {module}.{name}, which no data need: it was not run; get the file from its home"
            )
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        """Nothing lies outside the file."""
        raise RequestError(f"{self.where} points outside itself: get the file from its home")


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickles; other codecs are none of ours."""
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(encoding)
    return text.encode("latin1")


# What builds an array, asked of an array: its module has other names in other versions.
_reconstruct: Any = np.empty(0).__reduce__()[0]

_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    ("codecs", "encode"): _encode,
}
