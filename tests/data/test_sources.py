"""Data sets in the files they are published as, read back to the last byte; and files that are damaged or hostile."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import UserError
from coterie.data import Federation, Transform, federate
from coterie.data.readers import images as image_readers
from published import IDX, cifar_batch, images, mat, python2_pickle, tar_gz, write_idx


def ten(count: int) -> np.ndarray:
    """Labels that go round."""
    return np.arange(count) * 7 % 10


def assert_holds(fed: Federation, x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray) -> None:
    """The bytes and labels are those, held once."""
    for found, wanted in ((fed.x, x), (fed.y, y), (fed.test_x, test_x), (fed.test_y, test_y)):
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert (fed.x.dtype, fed.y.dtype) == (torch.uint8, torch.int64)
    assert sorted(torch.cat(fed.train).tolist()) == list(range(len(x)))


# MNIST and its kin


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("torchvision", [True, False])
def test_idx_files(tmp_path: Path, name: str, compressed: bool, torchvision: bool) -> None:
    x, test_x = images(40, 28, 28), images(20, 28, 28, seed=1)
    y, test_y = ten(40).astype(np.uint8), ten(20).astype(np.uint8)
    folder = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}[name] if torchvision else name
    write_idx(tmp_path / folder, [x, y, test_x, test_y], compressed)
    fed = federate(name, clients=3, partition="iid", data_dir=tmp_path)
    assert_holds(fed, x[:, None], y, test_x[:, None], test_y)
    mean, std = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}[name]
    assert fed.transform == Transform((mean,), (std,))
    torch.testing.assert_close(fed.sample(1)[0, 0], (torch.from_numpy(x[0]) / 255 - mean) / std)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A small MNIST."""
    arrays = [images(20, 28, 28), ten(20).astype(np.uint8), images(10, 28, 28), ten(10).astype(np.uint8)]
    write_idx(tmp_path / "mnist", arrays, compressed=True)
    return tmp_path


def test_mnist_in_two_halves(digits: Path) -> None:
    whole, halves = (federate(name, clients=2, partition="iid", data_dir=digits) for name in ("mnist", "mnist-halves"))
    assert halves.classes == 2
    assert torch.equal(halves.y, (whole.y >= 5).long())
    assert torch.equal(halves.test_y, (whole.test_y >= 5).long())
    assert halves.sample(1).min() >= 0
    assert halves.sample(1).max() <= 1
    few = federate("mnist-halves:size=4", clients=2, partition="iid", data_dir=digits)
    assert torch.equal(few.x, halves.x[:4])
    assert torch.equal(few.y, halves.y[:4])
    with pytest.raises(UserError, match="ask for 1 to 60000"):
        federate("mnist-halves:size=0", clients=2, partition="iid", data_dir=digits)


def refuse(data: Path, source: str, *names: str) -> str:
    """The one sentence a source is refused with."""
    with pytest.raises(UserError) as refused:
        federate(source, clients=2, partition="iid", data_dir=data)
    said = str(refused.value)
    assert "\n" not in said
    assert [name for name in names if name not in said] == [], said
    return said


@pytest.mark.hostile
def test_damaged_idx_files(digits: Path) -> None:
    path = digits / "mnist" / f"{IDX[0]}.gz"
    whole = path.read_bytes()
    for spoilt in (whole[:-30], b"no gzip at all", whole[:200] + b"\xff" * 50 + whole[250:]):
        path.write_bytes(spoilt)
        refuse(digits, "mnist", str(path), "fetch it again")
    content = gzip.decompress(whole)
    path.write_bytes(gzip.compress(content[:-1]))
    refuse(digits, "mnist", "15679 bytes", "15680")
    path.write_bytes(gzip.compress(b"\0\0\x0d\x03" + content[4:]))
    refuse(digits, "mnist", "is no idx file of bytes in 3 dimensions")
    path.write_bytes(gzip.compress(content[:7]))
    refuse(digits, "mnist", "is no idx file")


def test_labels_out_of_range_and_too_few(digits: Path) -> None:
    path = digits / "mnist" / f"{IDX[1]}.gz"
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:-1] + b"\x0a"))
    refuse(digits, "mnist", "training labels", "to 10, not 0 to 9")
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x13" + content[8:-1]))
    refuse(digits, "mnist", "20 training images and 19 labels")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    wanted = {
        "mnist": "train-images-idx3-ubyte.gz",
        "fashion-mnist": "fashion-mnist",
        "cifar10": "cifar-10-python.tar.gz",
        "cifar100": "cifar-100-python",
        "svhn": "train_32x32.mat",
        "tiny-imagenet": "tiny-imagenet-200",
        "wikitext2": "wikitext-2",
    }
    for name, file in wanted.items():
        refuse(tmp_path / "nowhere", name, file, str(tmp_path / "nowhere"), f"coterie data fetch {name}", "--data-dir")


def test_the_same_again_from_its_origin(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(digits))
    fed = federate("mnist:augment=yes", clients=3, partition="dirichlet:0.3", seed=4)
    assert fed.transform == Transform((0.1307,), (0.3081,), pad=4)  # a mirrored digit is none
    assert str(digits) not in str(fed.origin)
    assert federate(**fed.origin).fingerprint() == fed.fingerprint()


# CIFAR


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir()
    x, y = images(60, 3, 32, 32), ten(60)
    for i in range(6):
        name = f"data_batch_{i + 1}" if i < 5 else "test_batch"
        (folder / name).write_bytes(cifar_batch(x[10 * i : 10 * i + 10], y[10 * i : 10 * i + 10]))
    return x, y


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", [".", "cifar10"])
def test_cifar10(tmp_path: Path, packed: bool, below: str) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    folder = (tmp_path if packed else tmp_path / below) / "cifar-10-batches-py"
    x, y = write_cifar10(folder)
    if packed:
        tar_gz(tmp_path / below / "cifar-10-python.tar.gz", folder)
        folder.rename(tmp_path / "elsewhere")
    fed = federate("cifar10", clients=3, partition="iid", data_dir=tmp_path)
    assert_holds(fed, x[:50], y[:50], x[50:], y[50:])
    assert fed.transform == Transform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), pad=4, flip=True)
    plain = federate("cifar10:augment=no", clients=3, partition="iid", data_dir=tmp_path).transform
    assert plain == Transform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    x, y = images(30, 3, 32, 32), np.arange(30) * 3
    for name, rows in (("train", slice(20)), ("test", slice(20, 30))):
        both = {b"coarse_labels": (y[rows] % 20).tolist(), b"fine_labels": y[rows].tolist()}
        (folder / name).write_bytes(python2_pickle({**both, b"data": x[rows].reshape(-1, 3072)}))
    fed = federate("cifar100", clients=2, partition="iid", data_dir=tmp_path)
    assert_holds(fed, x[:20], y[:20], x[20:], y[20:])
    assert fed.classes == 100


def test_a_batch_pickled_again_by_python_3(tmp_path: Path) -> None:
    x, y = write_cifar10(tmp_path / "cifar-10-batches-py")
    for protocol in (2, 4):
        again = pickle.dumps({b"data": x[:10].reshape(10, -1), b"labels": y[:10].tolist()}, protocol=protocol)
        (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(again)
        fed = federate("cifar10", clients=3, partition="iid", data_dir=tmp_path)
        assert_holds(fed, x[:50], y[:50], x[50:], y[50:])


class Trap:
    """Runs something when it is unpickled by the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


HOSTILE = {
    "os.system": b"cos\nsystem\n(S'touch TRAP'\ntR.",
    "posix.system": b"cposix\nsystem\n(S'touch TRAP'\ntR.",
    "builtins.eval": b"\x80\x02cbuiltins\neval\nX\x0a\x00\x00\x00open('TRAP'\x85R.",
    "__builtin__.getattr": b"c__builtin__\ngetattr\n.",
    "numpy.load": b"cnumpy\nload\n.",
    "numpy.core.multiarray.scalar": b"cnumpy.core.multiarray\nscalar\n.",
    "outside": b"\x80\x02U\x01aQ.",
}


@pytest.mark.hostile
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pickle_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(HOSTILE[what])
    refuse(tmp_path, "cifar10", "data_batch_3", what, "get the file from its home")
    assert not (tmp_path / "TRAP").exists()


@pytest.mark.hostile
def test_a_trap_beside_good_data_is_not_sprung(tmp_path: Path) -> None:
    x, y = write_cifar10(tmp_path / "cifar-10-batches-py")
    batch = {b"data": x[:10].reshape(10, -1), b"labels": y[:10].tolist(), b"note": Trap(tmp_path / "sprung")}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    refuse(tmp_path, "cifar10", "test_batch", "it was not run")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.hostile
def test_damaged_cifar(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    x, y = write_cifar10(folder)
    whole = (folder / "data_batch_2").read_bytes()
    for spoilt in (whole[: len(whole) // 2], whole[:-1], b"", b"plain text", python2_pickle([1, 2])):
        (folder / "data_batch_2").write_bytes(spoilt)
        refuse(tmp_path, "cifar10", "data_batch_2 is damaged", "fetch it again")
    (folder / "data_batch_2").write_bytes(cifar_batch(x[:10, :, :16], y[:10]))
    refuse(tmp_path, "cifar10", "10 labels and 15360 bytes of images, not 3072 for each")
    (folder / "data_batch_2").write_bytes(cifar_batch(x[:10], y[:10] + 1))
    refuse(tmp_path, "cifar10", "to 10, not 0 to 9")
    (folder / "data_batch_2").write_bytes(cifar_batch(x[:9], y[:9]))
    refuse(tmp_path, "cifar10", "data_batch_2 has 9 images", "fetch it again")
    (folder / "data_batch_2").unlink()
    refuse(tmp_path, "cifar10", "lacks data_batch_2")
    tar_gz(tmp_path / "whole.tar.gz", folder)
    folder.rename(tmp_path / "elsewhere")
    packed = (tmp_path / "whole.tar.gz").read_bytes()
    for spoilt in (packed[: len(packed) // 2], packed[:100], b"no archive"):
        (tmp_path / "cifar-10-python.tar.gz").write_bytes(spoilt)
        refuse(tmp_path, "cifar10", "cannot be unpacked", "fetch it again")


# SVHN


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn(tmp_path: Path, compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy.io")
    monkeypatch.setattr("coterie.data.readers.images.check_published", lambda name, path: None)
    (tmp_path / "svhn").mkdir()
    x, y = images(32, 32, 3, 30), (np.arange(30) % 10 + 1).astype(np.uint8)[:, None]
    parts = {"train": slice(20), "test": slice(20, 30)}
    for name, rows in parts.items():
        arrays = {"X": x[..., rows], "y": y[rows]}
        (tmp_path / "svhn" / f"{name}_32x32.mat").write_bytes(mat(arrays, compressed))
    fed = federate("svhn", clients=2, partition="iid", data_dir=tmp_path)
    wanted, labels = np.moveaxis(x, (3, 2), (0, 1)), y[:, 0] % 10
    assert_holds(fed, wanted[:20], labels[:20], wanted[20:], labels[20:])
    assert fed.y[9] == 0  # written as 10


def test_svhn_of_other_files(tmp_path: Path) -> None:
    """SciPy reads no file whose md5 is another than the published one."""
    pytest.importorskip("scipy.io")
    for content in (mat({"X": images(32, 32, 3, 4), "y": np.ones((4, 1), np.uint8)}), b""):
        for name in ("train", "test"):
            (tmp_path / f"{name}_32x32.mat").write_bytes(content)
        refuse(
            tmp_path, "svhn", "train_32x32.mat has the md5", "not e26dedcc434d2e4c54c9b2d4a06d8373", "fetch it again"
        )


def test_channels_are_normalized_by_numbers_that_shades_from_0_to_1_can_have() -> None:
    known = [v for v in vars(image_readers).values() if isinstance(v, image_readers.ChannelStats)]
    assert len(known) == 6
    for stats in known:
        assert len(stats.mean) == len(stats.std) in (1, 3)
        for mean, std in zip(stats.mean, stats.std, strict=True):
            assert 0 < std**2 <= mean * (1 - mean)  # the largest variance of such shades is that of 0 and 1 alone
