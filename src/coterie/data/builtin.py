"""The sources that need no files of the user: digits that the package contains, and synthetic classes."""

from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Annotated

import numpy as np
import torch

from ..core import rng
from ..core.annotations import NonNegative, PositiveInt, Range
from ..core.errors import UserError
from ..core.memory import check_fits
from .federation import Federation
from .pool import Pool, quarter

BYTES = 28  # of a number while it is drawn: three times in double precision, once in single
MEAN, STD = 0.305, 0.376  # of a digit's pixels scaled to [0, 1]


def digits(seed: int = 0, noise: NonNegative = 0.0, renamed: Annotated[int, Range(0, 10)] = 0) -> Pool:
    """Load 1,797 handwritten digits, 8 x 8 pixels, standardized; the same quarter is for testing for every seed.

    noise: Gaussian noise on every pixel, in standard deviations of a pixel. renamed: how many of the ten digits every
    client calls by the name of another one, each client in its own way, as sites do that code the same thing
    differently. What a digit looks like is then worth sharing, and what it is called is not.

    >>> pool = digits()
    >>> tuple(pool.x.shape), tuple(pool.test_x.shape)
    ((1352, 1, 8, 8), (445, 1, 8, 8))

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    archive = files(__package__).joinpath("files/digits.npz")
    with archive.open("rb") as file, np.load(file, allow_pickle=False) as data:
        x, y = data["x"], data["y"].astype(np.int64)
    test = torch.from_numpy(quarter(y))
    images = (torch.from_numpy(x).float().unsqueeze(1) / 16 - MEAN) / STD
    if noise:
        images += noise * torch.from_numpy(rng.generator(seed, "noise").standard_normal(images.shape)).float()
    labels = torch.from_numpy(y)
    if renamed == 1:
        raise UserError("renamed=1: one digit alone cannot have the name of another: rename 2 to 10 of them, or none")
    per_client = partial(_rename, count=renamed, seed=seed) if renamed else None
    return Pool(images[~test], labels[~test], images[test], labels[test], 10, per_client)


def _rename(federation: Federation, count: int, seed: int) -> Federation:
    """Let every client call some digits by each other's names."""
    y, federation = federation.y.clone(), _own_tests(federation)
    test_y = federation.test_y
    for client, (mine, tested) in enumerate(zip(federation.train, federation.test, strict=True)):
        some = torch.from_numpy(rng.generator(seed, "digits-renamed", client).permutation(10)[:count])
        names = torch.arange(10)
        names[some] = some.roll(1)  # none keeps its own
        y[mine], test_y[tested] = names[y[mine]], names[test_y[tested]]
    return replace(federation, y=y, test_y=test_y)


def _own_tests(federation: Federation) -> Federation:
    """Give every client test rows of its own, where several test on the same."""
    rows = torch.cat(federation.test)
    test = torch.split(torch.arange(len(rows)), [len(part) for part in federation.test])
    return replace(federation, test_x=federation.test_x[rows], test_y=federation.test_y[rows], test=test)


def synthetic(
    seed: int,
    size: PositiveInt = 2000,
    classes: PositiveInt = 10,
    features: PositiveInt = 20,
    heterogeneity: NonNegative = 0.0,
    noise: NonNegative = 1.5,
) -> Pool:
    """Draw Gaussian classes around prototypes that may differ between clients; a quarter of ``size`` is for testing.

    A sample of class k at client i is common_k + heterogeneity * own_ik + noise * e, with common_k, own_ik and e
    standard normal. With heterogeneity 0 all clients have one distribution; test samples follow the client's own.

    >>> pool = synthetic(seed=0, size=400, classes=4)
    >>> tuple(pool.x.shape), pool.test_y.bincount().tolist()
    ((300, 20), [25, 25, 25, 25])
    """
    if size < 4 * classes:
        raise UserError(f"size={size} is too small for {classes} classes: ask for {4 * classes} or more")
    numbers = size * (features + 2) + classes * features
    check_fits(BYTES * numbers, f"synthetic data of {size:,} x {features:,} numbers", "ask for fewer of them")
    draw = rng.generator(seed, "synthetic")
    common = draw.standard_normal((classes, features))
    y = np.arange(size) % classes
    x = torch.from_numpy(common[y] + noise * draw.standard_normal((size, features))).float()
    test, labels = torch.from_numpy(quarter(y)), torch.from_numpy(y)
    per_client = partial(_add_own_part, amount=heterogeneity, shape=common.shape, seed=seed) if heterogeneity else None
    return Pool(x[~test], labels[~test], x[test], labels[test], classes, per_client)


def _add_own_part(federation: Federation, amount: float, shape: tuple[int, ...], seed: int) -> Federation:
    """Move every sample by its client's own part of the prototype; every client gets test rows of its own."""
    x, federation = federation.x.clone(), _own_tests(federation)
    test_x, test_y = federation.test_x, federation.test_y
    for client, (mine, tested) in enumerate(zip(federation.train, federation.test, strict=True)):
        own = torch.from_numpy(rng.generator(seed, "synthetic-own", client).standard_normal(shape)).float()
        x[mine] += amount * own[federation.y[mine]]
        test_x[tested] += amount * own[test_y[tested]]
    return replace(federation, x=x, test_x=test_x)
