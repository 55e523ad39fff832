"""The published image data sets, from their original files."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.extras import import_extra
from ...core.files import create_folder
from ..catalog import check_published, located
from ..data_dir import OPTION, convenience
from ..pool import Pool
from ..transform import Transform
from .cifar import CIFAR10, CIFAR100, Labeled, read_cifar
from .packed import check_size, exactly, opened
from .pictures import decoded

PAD = 4  # pixels, as in all papers on these data sets
CACHE = "coterie-arrays"  # the folder of Tiny ImageNet's decoded images, beside its files
_BYTES = 8  # the type code of unsigned bytes in idx files, the only one of these data sets


class ChannelStats(NamedTuple):
    """Mean and deviation of each channel over the training images, and whether images may be mirrored."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool

    def transform(self, augment: bool) -> Transform:
        """Return the normalization, with random crops and flips if they are wanted."""
        return Transform(self.mean, self.std, PAD if augment else 0, self.flip and augment)


def channel_stats(images: NDArray[np.uint8]) -> ChannelStats:
    """Return mean and deviation of every channel, exact and without a copy in floating point."""
    shades = np.arange(256) / 255
    mean, std = [], []
    for channel in range(images.shape[1]):
        counted = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        m = float(counted @ shades)
        mean.append(round(m, 4))
        std.append(round(max(float(counted @ (shades - m) ** 2) ** 0.5, 1 / 255), 4))  # a single shade has none
    return ChannelStats(tuple(mean), tuple(std), flip=True)


_MNIST = ChannelStats((0.1307,), (0.3081,), flip=False)
_FASHION = ChannelStats((0.2860,), (0.3530,), flip=True)
_CIFAR10 = ChannelStats((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), flip=True)
_CIFAR100 = ChannelStats((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), flip=True)
_SVHN = ChannelStats((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), flip=False)
_TINY = ChannelStats((0.5,) * 3, (0.5,) * 3, flip=True)


def mnist(folder: Path, augment: bool = False) -> Pool:
    """Read MNIST: handwritten digits, 28 x 28 gray. augment: random crops of images padded by 4.

    Reference: LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    return _idx_pool("mnist", folder, _MNIST.transform(augment))


def mnist_halves(folder: Path, size: int = 60_000) -> Pool:
    """Read MNIST with two classes, digits 0 to 4 and 5 to 9, and pixels from 0 to 1: for the regression of FedAvg-P.

    size: the number of training images, which are in no order; the default is all of them.
    """
    if not 1 <= size <= 60_000:
        raise UserError(f"size={size} is not possible with 60000 images: ask for 1 to 60000")
    pool = _idx_pool("mnist", folder, Transform((0.0,), (1.0,)))
    return pool._replace(x=pool.x[:size], y=pool.y[:size] // 5, test_y=pool.test_y // 5, classes=2)


def fashion_mnist(folder: Path, augment: bool = False) -> Pool:
    """Read Fashion-MNIST: clothes, 28 x 28 gray. augment: random crops of images padded by 4, and flips.

    Reference: Xiao et al., Fashion-MNIST, 2017.
    """
    return _idx_pool("fashion-mnist", folder, _FASHION.transform(augment))


def cifar10(folder: Path, augment: bool = True) -> Pool:
    """Read CIFAR-10: photographs, 32 x 32. augment: random crops of images padded by 4, and flips.

    Reference: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    (path,) = located("cifar10", folder)
    return _checked_pool(path, *read_cifar(path, CIFAR10), 10, _CIFAR10.transform(augment))


def cifar100(folder: Path, augment: bool = True) -> Pool:
    """Read CIFAR-100 with its 100 fine labels. augment: random crops of images padded by 4, and flips."""
    (path,) = located("cifar100", folder)
    return _checked_pool(path, *read_cifar(path, CIFAR100), 100, _CIFAR100.transform(augment))


def svhn(folder: Path, augment: bool = False) -> Pool:
    """Read SVHN, cropped: house numbers, 32 x 32. augment: random crops of images padded by 4.

    Reference: Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
    """
    train, test = located("svhn", folder)
    return _checked_pool(train.parent, _svhn_part(train), _svhn_part(test), 10, _SVHN.transform(augment))


def _svhn_part(path: Path) -> Labeled:
    """Return the images and labels of one file of MATLAB; SciPy, which is an extra, reads published ones only."""
    files = import_extra("scipy.io", "images", "reading SVHN")
    check_published("svhn", path)
    arrays = files.loadmat(path)
    labels = arrays["y"].ravel().astype(np.int64) % 10  # 10 stands for the digit 0
    return Labeled(np.ascontiguousarray(arrays["X"].transpose(3, 2, 0, 1)), labels)


def _idx_pool(name: str, folder: Path, transform: Transform) -> Pool:
    images, labels, test_images, test_labels = located(name, folder)
    train, test = (
        Labeled(read_idx(x, 3)[:, None], read_idx(y, 1).astype(np.int64))
        for x, y in ((images, labels), (test_images, test_labels))
    )
    return _checked_pool(images.parent, train, test, 10, transform)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in a file in MNIST's idx format, compressed or not; it can be written to."""
    try:
        with opened(path) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            head = file.read(4 + 4 * dimensions)
            if head[:4] != bytes((0, 0, _BYTES, dimensions)) or len(head) < 4 + 4 * dimensions:
                raise UserError(
                    f"{path} is no idx file of bytes in {dimensions} dimensions: put the original file there"
                )
            shape = [int(size) for size in np.frombuffer(head, ">u4", dimensions, 4)]
            check_size(path, prod(shape))
            return exactly(file, prod(shape)).reshape(shape)
    except UserError:
        raise
    except (EOFError, zlib.error, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): fetch it again") from error


def _checked_pool(where: Path, train: Labeled, test: Labeled, classes: int, transform: Transform) -> Pool:
    for part, (x, y) in (("training", train), ("test", test)):
        if len(x) != len(y) or not len(x):
            raise UserError(f"{where} has {len(x)} {part} images and {len(y)} labels: fetch it again")
        if y.min() < 0 or y.max() >= classes:
            span = f"{y.min()} to {y.max()}, not 0 to {classes - 1}"
            raise UserError(f"the {part} labels of {where} run from {span}: fetch it again")
    samples, labels, test_samples, test_labels = map(torch.from_numpy, (*train, *test))
    return Pool(samples, labels, test_samples, test_labels, classes, transform=transform)


class Arrays(NamedTuple):
    """The arrays that are kept, one file each."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]


def tiny_imagenet(folder: Path, augment: bool = True) -> Pool:
    """Read Tiny ImageNet: photographs of 200 classes, 64 x 64, tested on its validation images.

    augment: random crops of images padded by 4, and flips. Classes are numbered in the order of their names.

    Reference: Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015.
    """
    (path,) = located("tiny-imagenet", folder)
    arrays = _cached(path / CACHE) or _decoded_and_cached(path)
    x, y, test_x, test_y = map(torch.from_numpy, arrays)
    classes = int(arrays.y.max()) + 1
    return Pool(x, y, test_x, test_y, classes, transform=_TINY.transform(augment))


def _cached(cache: Path) -> Arrays | None:
    """Return the arrays of an earlier call, mapped into memory: pages are read when needed and never written."""
    if not cache.is_dir():
        return None
    try:
        return Arrays(*(np.load(cache / f"{name}.npy", mmap_mode="c") for name in Arrays._fields))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{cache} is damaged ({error}): remove it, and it is made again") from error


def _decoded_and_cached(path: Path) -> Arrays:
    train, y = _training_files(path / "train")
    test, test_y = _validation_files(path / "val", {name: k for k, name in enumerate(_classes(path / "train"))})
    images = decoded([*train, *test], color=True)
    arrays = Arrays(images[: len(train)], y, images[len(train) :], test_y)

    def write(temporary: Path) -> None:
        for name, array in arrays._asdict().items():
            np.save(temporary / f"{name}.npy", array)

    convenience(path / CACHE, lambda: create_folder(path / CACHE, write, OPTION))
    return arrays


def _classes(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    if not names:
        raise UserError(f"{folder} has no folders of images: type `coterie data fetch tiny-imagenet`")
    return names


def _training_files(folder: Path) -> tuple[list[Path], NDArray[np.int64]]:
    files, labels = [], []
    for label, name in enumerate(_classes(folder)):
        mine = sorted((folder / name / "images").glob("*.JPEG"))
        if not mine:
            raise UserError(f"{folder / name / 'images'} has no JPEG images: unpack the archive again")
        files += mine
        labels += [label] * len(mine)
    return files, np.array(labels, np.int64)


def _validation_files(folder: Path, numbers: dict[str, int]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the files that val_annotations.txt lists: each line has a name, a class and a box."""
    listed = folder / "val_annotations.txt"
    try:
        with opened(listed) as file:
            pairs = [line.split("\t")[:2] for line in file.read().decode().splitlines() if line]
        labels = [numbers[kind] for _, kind in pairs]
    except OSError as error:
        raise UserError(f"{listed} cannot be read ({error.strerror}): unpack the archive again") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{listed} names a kind without training images ({error}): unpack it again") from error
    return [folder / "images" / name for name, _ in pairs], np.array(labels, np.int64)
