"""Files that unpack to more than they announce, or than there is room for: refused while reading, with flat memory."""

import gzip
import io
import pickle
import shutil
import struct
import tarfile
import time
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.data import federate
from coterie.data.custom import npz
from coterie.data.fetch import unzip
from coterie.data.readers import cifar, packed, pictures
from coterie.data.readers.images import read_idx, svhn
from coterie.data.readers.npz import read_npz
from limited import ends

pytestmark = pytest.mark.hostile

MB = 10**6
BOMB = 48 * MB  # what a file of some kilobytes unpacks to
ZEROS = zlib.compress(bytes(BOMB))


@contextmanager
def little_memory(monkeypatch: pytest.MonkeyPatch, free: int = 10 * MB) -> Iterator[None]:
    """A machine with so much memory, of which nobody takes more than a part: a hundredth of a real one."""
    monkeypatch.setattr("coterie.core.memory.free_memory", lambda: free)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 8 * MB
    finally:
        tracemalloc.stop()


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


# idx


def test_an_idx_file_that_announces_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 3, 4000, 4000) + bytes(BOMB)))
    with little_memory(monkeypatch):
        assert "x.gz announces would take 144 MB of memory, and 10 MB are free" in refused(read_idx, path, 3)


def test_an_idx_file_that_holds_more_than_it_announces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10) + bytes(BOMB)))
    with little_memory(monkeypatch):
        assert "more than the 10 bytes of data it announces" in refused(read_idx, path, 1)


# npz


def npy(shape: tuple[int, ...], kind: str = "<f4", data: bytes = b"") -> bytes:
    """An .npy file that announces an array, and holds some data."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def patched(path: Path, change: Any) -> Path:
    """A zip archive whose local headers and directory are changed in place."""
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = content.find(signature)
        while at >= 0:
            change(content, at + offset)
            at = content.find(signature, at + 1)
    path.write_bytes(bytes(content))
    return path


def test_npz_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = npy((4,), "<i8", bytes(32))
    honest = zipped(tmp_path / "a.npz", x=npy((4, BOMB // 16), data=bytes(BOMB)), y=y)
    lies = zipped(tmp_path / "b.npz", x=npy((2 * 10**12,), data=bytes(16)), y=y)
    hidden = zipped(tmp_path / "c.npz", x=npy((4,), data=bytes(BOMB)), y=y)
    unread = zipped(tmp_path / "d.npz", x=npy((4, 2), data=bytes(32)), y=y, other=npy((BOMB,), "|u1", bytes(BOMB)))
    with little_memory(monkeypatch):
        assert "would take 144 MB of memory, and 10 MB are free" in refused(npz, str(honest))
        assert "x.npy announces 8000000000000 bytes of data and has 16" in refused(npz, str(lies))
        assert f"x.npy announces 16 bytes of data and has {BOMB}" in refused(npz, str(hidden))
        assert npz(str(unread)).x.shape == (3, 2)


def test_npz_with_an_endless_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", BOMB) + b" " * BOMB)
    with little_memory(monkeypatch):
        assert f"its header has {BOMB} bytes" in refused(read_npz, path, ["x"])


def test_npz_whose_directory_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory says 16 bytes of data, as the array does; what is packed has 48 million more."""
    whole = npy((4,), data=bytes(BOMB))
    size = len(whole) - BOMB + 16

    def smaller(content: bytearray, at: int) -> None:
        content[at + 22 : at + 26] = struct.pack("<I", size)

    path = patched(zipped(tmp_path / "a.npz", x=whole), smaller)
    with little_memory(monkeypatch):
        assert "no .npz file of plain arrays" in refused(read_npz, path, ["x"])


def test_npz_that_is_encrypted_or_packed_otherwise(tmp_path: Path) -> None:
    def encrypted(content: bytearray, at: int) -> None:
        content[at + 6] |= 1

    x = npy((4,), data=bytes(16))
    assert "x.npy is encrypted" in refused(read_npz, patched(zipped(tmp_path / "a.npz", x=x), encrypted), ["x"])
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", x)
    assert "packed as NumPy does not" in refused(read_npz, tmp_path / "b.npz", ["x"])
    for garbage in (
        b"",
        b"garbage",
        b"\x93NUMPY\x09\x00",
        npy((4,), "|O", bytes(32)),
        b"\x93NUMPY\x01\x00\x20\x00" + b"(" * 32,
    ):
        assert "no .npz file of plain arrays" in refused(read_npz, zipped(tmp_path / "c.npz", x=garbage), ["x"])


LABELS = {
    "of another shape": ({"x": np.float32(3), "y": np.zeros(4, int)}, "() and int64 (4,)"),
    "of nothing": ({"x": np.zeros((4, 0)), "y": np.zeros(4, int)}, "samples of shape (0,)"),
    "of none": ({"x": np.zeros((4, 2)), "y": np.int64(3)}, "int64 ()"),
    "whose owner is one": ({"x": np.zeros((4, 2)), "y": np.zeros(4, int), "client": np.int64(3)}, "1 clients for 4"),
    "of 2**31 classes": ({"x": np.zeros((4, 2)), "y": np.array([0, 1, 2, 2**31])}, "the label 2147483648"),
    "of 10 million": ({"x": np.zeros((4, 2)), "y": np.array([0, 1, 2, 10**7])}, "more classes than samples"),
    "of 64 bits": (
        {"x": np.zeros((4, 2)), "y": np.array([2**64 - 1] * 4, np.uint64)},
        "the label 18446744073709551615",
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_beyond_reason(name: str, tmp_path: Path) -> None:
    arrays, told = LABELS[name]
    np.savez(tmp_path / "a.npz", **arrays)
    began = time.process_time()
    assert told in refused(federate, f"npz:{tmp_path / 'a.npz'}", 2)
    assert time.process_time() - began < 1


def test_many_classes_are_divided_at_once(tmp_path: Path) -> None:
    labels = np.arange(20_000) * 40
    np.savez(tmp_path / "a.npz", x=np.zeros((20_000, 1), np.float32), y=labels)
    began = time.process_time()
    assert federate(f"npz:{tmp_path / 'a.npz'}", 4, "iid").classes == 20_000 * 40 - 39
    assert time.process_time() - began < 3


# mat


def test_mat_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy would unpack all of it, so it never sees a file that is not the published one."""
    pytest.importorskip("scipy.io")
    packed_element = zlib.compress(struct.pack("<II", 14, BOMB) + bytes(BOMB))
    begin = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    for name in ("train", "test"):
        path = tmp_path / f"{name}_32x32.mat"
        path.write_bytes(begin + struct.pack("<II", 15, len(packed_element)) + packed_element)
    with little_memory(monkeypatch):
        assert "not e26dedcc434d2e4c54c9b2d4a06d8373 of the published file" in refused(svhn, tmp_path)


# CIFAR's archives and pickles


def archive_with(path: Path, header: tarfile.TarInfo, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(header, io.BytesIO(content))
    return path


def test_tar_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LARGEST", 4 * MB)
    path = tmp_path / "cifar-10-python.tar.gz"
    batch, other, long = (tarfile.TarInfo(f"cifar/{name}") for name in ("data_batch_1", "readme", "x" * 200))
    batch.size = other.size = BOMB
    for header, told in (
        (batch, "data_batch_1 announces 48 MB, and 4 MB are the most"),
        (other, "where 4 MB are the most"),
    ):
        archive_with(path, header, bytes(BOMB))
        with little_memory(monkeypatch):
            assert told in refused(cifar.read_cifar, path, cifar.CIFAR10)
    content = bytearray(long.tobuf(tarfile.GNU_FORMAT))
    content[124:136] = f"{BOMB:011o}\0".encode()  # a name of 48 MB
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:512]):06o}\0 ".encode()
    path.write_bytes(gzip.compress(bytes(content[:512]) + bytes(BOMB)))
    with little_memory(monkeypatch):
        assert "48 MB where 4 MB are the most" in refused(cifar.read_cifar, path, cifar.CIFAR10)


class Made:
    """What a pickle holds instead of numbers."""

    def __init__(self, *how: Any) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return self.how


_RECONSTRUCT = np.empty(0).__reduce__()[0]
PICKLES = {
    "an array at an address": [Made(np.ndarray, ((1,), Made(np.dtype, ("O",)), b"AAAAAAAA"))],
    "an array of objects": Made(
        np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (1,), np.dtype("O"), False, [3])
    ),
    "a type of objects": Made(np.dtype, ("O",)),
    "a large array": Made(np.ndarray, ((2**40,),)),
    "a state of a function": Made(np.dtype, ("u1",), (3, "O")),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_makes_no_array_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps({b"data": PICKLES[name], b"labels": [0]}, protocol=2)
    with little_memory(monkeypatch):
        assert "is damaged" in refused(cifar._batch, "test_batch", content, "labels")


def test_a_pickle_of_lists_that_hold_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hundred bytes, of which an array would be a billion numbers."""
    nested: list[Any] = [0, 0]
    for _ in range(30):
        nested = [nested, nested]
    pixels = np.zeros((1, cifar.PIXELS), np.uint8)
    for data, labels in ((nested, [0]), (pixels, nested)):
        with little_memory(monkeypatch):
            said = refused(cifar._batch, "x", pickle.dumps({b"data": data, b"labels": labels}), "labels")
        assert "x is damaged" in said


def shared_pairs(pair: bytes, pop: bytes = b"0") -> bytes:
    """A hundred pairs, each twice in the next one: 2^99 things to go through."""
    begin = b"\x80\x02" + pair.replace(b"first", b")").replace(b"second", b")") + b"q\x00" + pop
    before = (b"h" + bytes([i - 1]) for i in range(1, 100))
    again = (pair.replace(b"first", last).replace(b"second", last) for last in before)
    return begin + b"".join(each + b"q" + bytes([i]) + pop for i, each in enumerate(again, 1))


TUPLES, LISTS = b"firstsecond\x86", b"](firstseconde"
TYPE = b"cnumpy\ndtype\n"
ENDLESS = {
    "as a key": shared_pairs(TUPLES) + b"}hcK\x01s.",
    "as one of several keys": shared_pairs(TUPLES) + b"}(hcK\x01u.",
    "as a type": shared_pairs(LISTS) + TYPE + b"hc\x85R.",
    "as the order of a type": shared_pairs(LISTS) + TYPE + b"U\x02u1\x85R(K\x03hctb.",
    "as a codec": shared_pairs(LISTS) + b"c_codecs\nencode\nX\x01\x00\x00\x00ahc\x86R.",
    "as a key, left on the stack": shared_pairs(TUPLES, b"") + b"}hcK\x01s.",
    "as a type, left on the stack": shared_pairs(LISTS, b"") + TYPE + b"hc\x85R.",
    "as a shape": shared_pairs(LISTS, b"")
    + (b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01hc" + TYPE + b"U\x02u1\x85R\x89U\x01atb."),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_pickle_of_endless_pairs_is_refused_at_once(name: str) -> None:
    """A hash in C hears no signal but SIGKILL."""

    def check() -> None:
        said = refused(cifar._batch, "test_batch", ENDLESS[name], "labels")
        assert "test_batch is damaged" in said
        assert "fetch it again" in said

    ends(check)


def test_a_pickle_reserves_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bytes that number an entry twenty million; the reader of C would make room for all before it."""
    with little_memory(monkeypatch):
        said = refused(cifar._batch, "test_batch", b"\x80\x02]r" + struct.pack("<I", 2 * 10**7) + b".", "labels")
    assert "test_batch is damaged" in said


# Images


def test_image_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        image.new("L", (3000, 3000)).save(tmp_path / f"{name}.png")
    files = sorted(tmp_path.glob("*.png"))
    with little_memory(monkeypatch):
        assert "2 images of 3,000 x 3,000 would take 36 MB of memory, and 10 MB" in refused(pictures.decoded, files)
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 8_000_000)
    with little_memory(monkeypatch), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "a.png is too large" in refused(pictures.decoded, files)
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 4_000_000)
    with little_memory(monkeypatch):
        assert "a.png cannot be read (DecompressionBombError)" in refused(pictures.decoded, files)


# Texts, and what is no file


def test_a_text_whose_tokens_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"a b c " * 200_000)
    with little_memory(monkeypatch):
        assert "would take 14.4 MB of memory, and 10 MB are free" in refused(federate, f"text:{tmp_path / 'a.txt'}", 2)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device here")
@pytest.mark.parametrize("source", ["text", "npz"])
def test_a_device_has_no_end(source: str) -> None:
    assert "it is no ordinary file" in refused(federate, f"{source}:/dev/zero", 2)


def test_an_archive_that_would_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("words/a", bytes(BOMB))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=10 * MB))
    assert "unpacks to 48 MB, and 10 MB are free" in refused(unzip, tmp_path / "a.zip", tmp_path / "words")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
