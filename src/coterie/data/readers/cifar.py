"""CIFAR's Python pickles, read without running any code in them."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UserError
from .packed import Bounded, Readable, check_size, opened

PIXELS = 3 * 32 * 32


class Labeled(NamedTuple):
    """Images [N, 3, 32, 32] and their labels."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]


class Layout(NamedTuple):
    """The files with the training and the test images, and the key of their labels."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str


CIFAR10 = Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), "labels")
CIFAR100 = Layout(("train",), ("test",), "fine_labels")


def read_cifar(path: Path, layout: Layout) -> tuple[Labeled, Labeled]:
    """Return training and test images of the folder, or of its archive."""
    train, test = _Batches(layout.train), _Batches(layout.test)
    read = _from_folder if path.is_dir() else _from_archive
    for name, content in read(path, (*layout.train, *layout.test)):
        batches = train if name in layout.train else test
        batches.put(name, f"{path}/{name}", _batch(f"{path}/{name}", content, layout.labels))
    missing = sorted(train.missing | test.missing)
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}: fetch it again")
    return train.all, test.all


class _Batches:
    """Batches of equal size end to end; each is copied to its place on arrival, so that only one is stored twice."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.missing = names, set(names)
        self.all = Labeled(np.empty((0, 3, 32, 32), np.uint8), np.empty(0, np.int64))

    def put(self, name: str, where: str, batch: Labeled) -> None:
        """Copy one batch to its place."""
        each = len(batch.y)
        if len(self.missing) == len(self.names):
            total = each * len(self.names)
            self.all = Labeled(np.empty((total, 3, 32, 32), np.uint8), np.empty(total, np.int64))
        if each * len(self.names) != len(self.all.y):
            raise UserError(f"{where} has {each} images, unlike the batches before it: fetch it again")
        rows = slice(self.names.index(name) * each, (self.names.index(name) + 1) * each)
        self.all.x[rows], self.all.y[rows] = batch
        self.missing.discard(name)


def _from_folder(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in wanted:
        if (path / name).is_file():
            with opened(path / name) as file:
                yield name, _whole(path / name, (path / name).stat().st_size, file)


def _from_archive(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Read the archive in one pass: going back would decompress it again."""
    try:
        with opened(path) as raw, GzipFile(fileobj=raw) as unpacked:
            stream = cast(IO[bytes], Bounded(unpacked, path))  # which has what tarfile needs of a file
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    file = archive.extractfile(member) if name in wanted and member.isfile() else None
                    if file is not None:
                        yield name, _whole(path / name, member.size, file)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): fetch it again") from error


def _whole(where: Path, size: int, file: Readable) -> bytes:
    """Return all bytes of a file that announces its size."""
    check_size(where, size)
    return file.read(size)


def _batch(where: str, content: bytes, key: str) -> Labeled:
    """Return the images and labels of one pickle."""
    try:
        values = BatchUnpickler(content, where).load()
        pixels, labels = values["data"].content, values[key]
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError(f"{key} is not a list of integers")
        y = np.array(labels, np.int64)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{where} is damaged ({type(error).__name__}): fetch it again") from error
    if len(pixels) != PIXELS * len(y):
        raise UserError(
            f"{where} has {len(y)} labels and {len(pixels)} bytes of images, not {PIXELS} for each: put the original "
            "file there"
        )
    return Labeled(np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32), y)


_OPERATIONS = (  # those of a published file, or of one that Python 3 has written again; any other is a KeyError
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.BINPERSID),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)


class PickledType:
    """Stands for NumPy's types in a pickle: images are bytes in any case."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class PickledArray(PickledType):
    """Stands for an array in a pickle, of which only the bytes count."""

    content = b""

    def __setstate__(self, state: Any) -> None:
        _, _, _, fortran, content = state
        if fortran is not False or not isinstance(content, bytes):
            raise ValueError("an array of something else than rows of bytes")
        self.content = content


class PickledBytes(bytes):
    """Stands for the function by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: str, encoding: object) -> Self:
        """Encode as that function does for every pickle, whatever codec this one names."""
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise ValueError("bytes have no state")


class Fields(dict[str, Any]):
    """A dictionary in a pickle: only texts are hashed, because values may hold each other without end."""

    def __setitem__(self, key: object, value: Any) -> None:
        if not isinstance(key, bytes | str):
            raise ValueError(f"{type(key).__name__} in the place of a text")
        super().__setitem__(key if isinstance(key, str) else key.decode("ascii"), value)


class BatchUnpickler(pickle._Unpickler):
    """A reader of what CIFAR's files contain: a dictionary with texts as keys, lists, plain values and arrays.

    ``find_class`` alone would not do: a few hundred bytes can stand for more values than can be hashed, and the reader
    written in C makes room for every entry that a file claims to remember, which is gigabytes for a file of ten bytes.
    """

    stack: list[Any]
    classes: ClassVar[dict[tuple[str, str], type]] = {
        ("numpy.core.multiarray", "_reconstruct"): PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): PickledArray,
        ("numpy", "ndarray"): PickledType,  # only named
        ("numpy", "dtype"): PickledType,
        ("_codecs", "encode"): PickledBytes,
        ("codecs", "encode"): PickledBytes,
    }

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.where = where

    def load_empty_dictionary(self) -> None:
        """Begin a dictionary."""
        self.stack.append(Fields())

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPERATIONS},
        pickle.EMPTY_DICT[0]: load_empty_dictionary,
    }

    def find_class(self, module: str, name: str) -> type:
        """Return what stands for a name that makes an array; refuse others before they are looked up."""
        if (module, name) not in self.classes:
            raise UserError(
                f"{self.where} asks for {module}.{name}, which no data need: it was not run; get the file from its home"
            )
        return self.classes[module, name]

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse references to anything outside the file."""
        raise UserError(f"{self.where} points outside itself: get the file from its home")
