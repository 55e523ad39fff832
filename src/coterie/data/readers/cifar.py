"""CIFAR's Python pickles, read without running any code in them."""

import io
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, NoReturn, cast

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
        values = ArraysOnly(content, where).load()
        x, y = (_numbers(values[name]) for name in ("data", key))
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{where} is damaged ({type(error).__name__}): fetch it again") from error
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        shapes = f"{x.dtype} {x.shape} and {y.dtype} {y.shape}"
        raise UserError(f"{where} holds {shapes}, not uint8 (N, {PIXELS}) and N labels: put the original file there")
    return Labeled(x.reshape(-1, 3, 32, 32), y.astype(np.int64))


def _numbers(value: object) -> NDArray[Any]:
    """Return an array, or a plain list of integers as one: lists of lists may hold each other, without end."""
    if isinstance(value, PickledArray):
        return value.array
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ValueError("neither an array nor a list of numbers")
    return np.array(value, dtype=np.int64)


_OPERATIONS = (  # those of a published file, or of one that Python 3 has written again; any other is a KeyError
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.BINPERSID),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)


class ArraysOnly(pickle._Unpickler):
    """A reader of what CIFAR's files contain: a dictionary with texts as keys, lists, plain values and NumPy arrays.

    Only texts are hashed, compared or written out: values may hold each other, so that a few hundred bytes stand for
    more of them than can be gone through. The reader is the one written in Python: the one written in C makes room for
    every number of an entry that a file claims to remember, which is gigabytes for a file of ten bytes. Nothing of
    NumPy is handed out: an array that a file makes can hold addresses of its choice.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.where = where

    def load_setitem(self) -> None:
        """Put one value into a dictionary."""
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def load_setitems(self) -> None:
        """Put all values since the mark into a dictionary."""
        self._put(self.pop_mark())

    def _put(self, pairs: Sequence[Any]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][_text(key)] = value

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPERATIONS},
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name that makes an array; refuse others before they are looked up."""
        if (module, name) not in _ALLOWED:
            raise UserError(
                f"{self.where} asks for {module}.{name}, which no data need: it was not run; get the file from its home"
            )
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse references to anything outside the file."""
        raise UserError(f"{self.where} points outside itself: get the file from its home")


def _text(value: Any) -> str:
    """Return a text, which a pickle may have as bytes; refuse everything else before it is looked into."""
    if not isinstance(value, bytes | str):
        raise ValueError(f"{type(value).__name__} in the place of a text")
    return value if isinstance(value, str) else value.decode("ascii")


def _encode(text: str, encoding: str) -> bytes:
    """Encode as Python 3 writes bytes into old pickles; no other codec is allowed."""
    if _text(encoding) != "latin1":
        raise ValueError(encoding)
    return text.encode("latin1")


class PickledType:
    """The type of an array's numbers, as a pickle spells it: integers of some bytes."""

    def __init__(self, code: Any, *ignored: object) -> None:
        self.code = _text(code)
        if not re.fullmatch("[iu][1248]", self.code):
            raise ValueError(f"numbers of type {self.code}")
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        self.order = {"<": "<", ">": ">", "|": "|"}[_text(state[1])]


class PickledArray:
    """An array, as a pickle holds it: its shape, the type of its numbers, and their bytes."""

    def __init__(self, *ignored: object) -> None:
        self.array: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if (
            not isinstance(kind, PickledType)
            or not isinstance(content, bytes)
            or any(type(n) is not int for n in shape)
        ):
            raise ValueError("an array of something else than numbers")
        flat = np.frombuffer(content, f"{kind.order}{kind.code}")
        self.array = flat.reshape(shape, order="F" if fortran else "C")


class PickledCall:
    """A function that a pickle may call, and do nothing else with."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a function has no state")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): PickledCall(PickledArray),
    ("numpy._core.multiarray", "_reconstruct"): PickledCall(PickledArray),
    ("numpy", "ndarray"): "ndarray",  # only named
    ("numpy", "dtype"): PickledCall(PickledType),
    ("_codecs", "encode"): PickledCall(_encode),
    ("codecs", "encode"): PickledCall(_encode),
}
