"""Tiny ImageNet, which is decoded once and kept as arrays beside its files."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.errors import UserError
from ...core.files import create_folder
from ..catalog import located
from ..federation import Pool
from ..place import OPTION, convenience
from .images import ChannelStats
from .pictures import decoded

CACHE = "coterie-arrays"
_STATS = ChannelStats((0.5,) * 3, (0.5,) * 3, flip=True)


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
    return Pool(x, y, test_x, test_y, classes, transform=_STATS.transform(augment))


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
        pairs = [line.split("\t")[:2] for line in listed.read_text(encoding="utf-8").splitlines() if line]
        labels = [numbers[kind] for _, kind in pairs]
    except OSError as error:
        raise UserError(f"{listed} cannot be read ({error.strerror}): unpack the archive again") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{listed} names a kind without training images ({error}): unpack it again") from error
    return [folder / "images" / name for name, _ in pairs], np.array(labels, np.int64)
