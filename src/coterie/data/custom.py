"""The user's own data in files: arrays in an .npz file, or folders of images."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.files import user_path
from ..core.tensors import Integers
from .federation import MOST_CLASSES
from .inputs import Shape, array_names, names_of
from .pool import Natural, Pool, quarter, rows_by_label
from .readers.images import channel_stats
from .readers.npz import read_npz
from .readers.pictures import SUFFIXES, decoded

_NAMES = {  # what each array may be called
    "x": ("x", "x_train", "train_x"),
    "y": ("y", "y_train", "train_y"),
    "test_x": ("test_x", "x_test"),
    "test_y": ("test_y", "y_test"),
    "client": ("client", "client_train", "train_client"),
    "test_client": ("test_client", "client_test"),
}


class RawSamples(NamedTuple):
    """Inputs, targets, and the client of each sample if it is known."""

    x: NDArray[Any]
    y: NDArray[Any]  # integers are classes, others are numbers that are learned
    client: NDArray[Any] | None

    def at(self, rows: slice | NDArray[np.bool_]) -> "RawSamples":
        """Return some of the samples."""
        return RawSamples(self.x[rows], self.y[rows], None if self.client is None else self.client[rows])


def npz(path: str, augment: bool = False) -> Pool:
    """Read an .npz file: x, y, test_x, test_y (or x_train, ...), and the client of each sample: client, test_client.

    A target y is a integer class, or several: a mask of an image, classes of tokens. Floating targets are numbers
    that are learned, and truth values are many labels, 0 and 1. Without test arrays, every fourth sample of a class is
    for testing, or every fourth of a client where samples have no single class. Bytes (N, H, W), (N, H, W, C) or
    (N, C, H, W) are images, normalized by their own mean and deviation; augment: random crops of images padded by 4,
    and flips.
    """
    arrays = read_npz(user_path(path), [name for names in _NAMES.values() for name in names])
    found = {key: next((arrays[n] for n in names if n in arrays), None) for key, names in _NAMES.items()}
    train = _samples(path, "x", found["x"], found["y"], found["client"])
    if found["test_x"] is None and found["test_y"] is None:
        return _raw_pool(path, *_with_tests(train), augment)
    test = _samples(path, "test_x", found["test_x"], found["test_y"], found["test_client"])
    return _raw_pool(path, train, test, augment)


def new_samples(path: str, shape: Shape = None) -> Any:
    """Return the samples of an .npz file without their targets: x, in the form in which ``npz`` has them.

    ``shape``: that of one sample. Several inputs are arrays by their names, or as numpy.savez names those in order.
    """
    names = array_names(shape)
    arrays = read_npz(user_path(path), names)
    lacking = next((name for name in names if name not in arrays), None)
    if lacking is not None:
        call = "first, second" if isinstance(shape, tuple) and names_of(shape) else ", ".join(f"{n}=..." for n in names)
        raise UserError(f"{path} has no {lacking}: save the samples in it, as in numpy.savez(FILE, {call})")
    for name in names:
        if not prod(arrays[name].shape) or not arrays[name].ndim > 1:
            given = f"{name} of {path} has the shape {arrays[name].shape}"
            raise UserError(f"{given}: give it one row per sample, and at least one")
    if not names_of(shape):
        return _inputs(path, names[0], arrays[names[0]])
    _check_rows(path, {name: len(arrays[name]) for name in names})
    return dict(arrays) if isinstance(shape, dict) else tuple(arrays[name] for name in names)


def _check_rows(path: str, counts: Mapping[str, int]) -> None:
    """Refuse inputs of unequal numbers of samples."""
    if len({*counts.values()}) > 1:
        have = ", ".join(f"{name} {rows:,}" for name, rows in counts.items())
        raise UserError(f"the arrays of {path} have unequal numbers of rows ({have}): give each one row per sample")


def image_folder(path: str, augment: bool = False, clients_by: str = "") -> Pool:
    """Read images of one size, one folder per class: PATH/class/*.png, or PATH/train/class and PATH/test/class.

    clients_by: "folder" if there is one folder per client above those of the classes, as in PATH/client/class/*.png;
    the partition "natural" then gives each client its own. Without a test folder, every fourth image of a class is for
    testing. augment: random crops of images padded by 4, and flips.
    """
    if clients_by not in ("", "folder"):
        raise UserError(f"clients_by={clients_by} is not known: write clients_by=folder, or leave it out")
    root = user_path(path)
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    apart = bool(tests) and (root / "train").is_dir()
    train = _images(root / "train" if apart else root, bool(clients_by))
    test = _images(tests[0], bool(clients_by)) if apart else []
    images = decoded([image.file for image in train + test])
    labels = np.unique([image.label for image in train + test], return_inverse=True)[1].astype(np.int64)
    owners = np.array([image.client for image in train + test]) if clients_by else None
    samples, cut = RawSamples(images, labels, owners), len(train)
    pair = (samples.at(slice(cut)), samples.at(slice(cut, None))) if apart else _with_tests(samples)
    return _raw_pool(path, *pair, augment)


def image_classes(path: str) -> list[str]:
    """Return the classes in a folder of images, in the order in which ``image_folder`` numbers them."""
    root = user_path(path)
    parts = [root / name for name in ("train", "test", "val") if (root / name).is_dir()]
    apart = len(parts) > 1 and parts[0].name == "train"
    return sorted({image.label for part in (parts[:2] if apart else [root]) for image in _images(part, False)})


class Image(NamedTuple):
    """A file, its class and its client."""

    client: str
    label: str
    file: Path


def _images(root: Path, clients: bool) -> list[Image]:
    """Return all images below a folder."""
    images = []
    for owner in _folders(root) if clients else [root]:
        if clients and any(file.suffix.lower() in SUFFIXES for file in owner.iterdir()):
            raise UserError(
                f"{owner} holds images, and nobody knows whose they are: with clients_by=folder they belong into "
                f"{owner.parent / 'CLIENT' / owner.name}, those for testing, too"
            )
        mine = [
            Image(owner.name, label.name, file)
            for label in _folders(owner)
            for file in sorted(label.iterdir())
            if file.suffix.lower() in SUFFIXES
        ]
        if not mine:
            what = "the client" if clients else "the folder"
            raise UserError(f"{what} {owner} has no images: put some into {owner}/CLASS, or remove it")
        images += mine
    return images


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: name one with a folder of images a class")
    found = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UserError(f"{root} has no folders: it needs one a class, with the images in it")
    return found


def _samples(path: str, key: str, x: Any, y: Any, client: Any) -> RawSamples:
    """Return arrays that belong together, in the types of a federation."""
    label_key = key.replace("x", "y")
    for name, array in ((key, x), (label_key, y)):
        if array is None:
            raise UserError(f"{path} has no {name}: save it with x and y, and test_x and test_y if there are any")
    if x.ndim and y.ndim and len(x) != len(y):
        counts = f"{len(x)} samples in {key} and {len(y)} targets in {label_key}"
        raise UserError(f"{path} has {counts}: give as many of both")
    if not y.ndim or y.dtype.kind not in "iubf" or x.shape[:1] != y.shape[:1]:
        shapes = f"{x.shape} and {y.dtype} {y.shape}"
        raise UserError(f"{key} and {label_key} of {path} are {shapes}: give one target of numbers a sample")
    if not prod(y.shape[1:]):
        raise UserError(f"{label_key} of {path} has targets of shape {y.shape[1:]}: give each at least one number")
    if not prod(x.shape[1:]):
        raise UserError(f"{key} of {path} has samples of shape {x.shape[1:]}: give each at least one number")
    if client is not None and client.shape != y.shape[:1]:
        raise UserError(f"{path} names {client.size} clients for {len(y)} samples of {key}: give one a sample")
    return RawSamples(_inputs(path, key, x), _targets(path, label_key, y), client)


def _targets(path: str, key: str, y: NDArray[Any]) -> NDArray[Any]:
    """Return classes as int64; numbers and truth values as float32, in one column where there is only one."""
    if y.dtype.kind in "bf":
        return _floats(path, key, y if y.ndim > 1 else y[:, None])
    if y.size and y.min() < 0:
        raise UserError(f"{key} of {path} has the label {y.min()}: count classes from 0")
    if y.size and y.max() >= max(MOST_CLASSES, len(y)):
        raise UserError(
            f"{key} of {path} has the label {y.max()}, which makes more classes than samples: count them from 0, "
            "as numpy.unique(y, return_inverse=True)[1] does"
        )
    return y.astype(np.int64)


def _inputs(path: str, key: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images as [N, C, H, W] bytes, floating numbers as float32, integers as int64."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else x
        last = x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if last else x)
    if x.dtype == np.uint8:
        return x.astype(np.float32) / 255
    if x.dtype.kind not in "fiu":
        raise UserError(f"{key} of {path} is of type {x.dtype}: save numbers")
    return _floats(path, key, x) if x.dtype.kind == "f" else x.astype(np.int64)


def _floats(path: str, key: str, numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers in single precision; refuse those that would become infinite."""
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    if (np.isinf(narrow) & np.isfinite(numbers)).any():
        raise UserError(f"{key} of {path} has numbers beyond 3.4e38, which single precision does not hold: scale them")
    return narrow


def _with_tests(samples: RawSamples) -> tuple[RawSamples, RawSamples]:
    """Set every fourth sample of each class, and of each client if clients are known, apart for testing."""
    # Samples without a single class are of one kind.
    groups = samples.y if _classified(samples.y) else np.zeros(len(samples.y), np.int64)
    if samples.client is not None:
        numbers = np.unique(samples.client, return_inverse=True)[1]
        groups = numbers * (int(groups.max(initial=0)) + 1) + groups
    test = quarter(groups)
    return samples.at(~test), samples.at(test)


def _classified(y: NDArray[Any]) -> bool:
    return y.ndim == 1 and y.dtype.kind == "i"


def _raw_pool(path: str, train: RawSamples, test: RawSamples, augment: bool) -> Pool:
    if not len(train.y):
        raise UserError(f"{path} has no training samples: add some")
    x, y, test_x, test_y = map(torch.from_numpy, (train.x, train.y, test.x, test.y))
    classes = None if train.y.dtype.kind == "f" else int(max(train.y.max(), test.y.max(initial=0))) + 1
    images = train.x.dtype == np.uint8
    if augment and not images:
        raise UserError(f"{path} holds no images of bytes: leave augment out")
    transform = channel_stats(train.x).transform(augment) if images else None
    return Pool(x, y, test_x, test_y, classes, None, transform, _natural(path, train, test))


def _natural(path: str, train: RawSamples, test: RawSamples) -> Natural | None:
    if train.client is None:
        if test.client is not None:
            raise UserError(f"{path} names clients for the test samples only: save client beside x, too")
        return None
    names = np.unique(train.client)
    strangers = np.setdiff1d(names if test.client is None else test.client, names)
    if len(strangers):
        raise UserError(f"client {strangers[0]} of {path} has test samples but none to train on: give it some")
    tests = None if test.client is None else _rows_of(names, test.client)
    return Natural(tuple(map(str, names)), _rows_of(names, train.client), tests)


def _rows_of(names: NDArray[Any], client: NDArray[Any]) -> tuple[Integers, ...]:
    """Return the rows of every client, in the order of their names."""
    found = rows_by_label(np.searchsorted(names, client))
    return tuple(found[i] for i in range(len(names)))
