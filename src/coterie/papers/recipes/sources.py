"""The shapes of the published data sets, to size a model before the files are there, and of the digits."""

from typing import NamedTuple

from ...core.errors import unknown
from ...core.spec import parse


class Source(NamedTuple):
    """What a data set looks like."""

    classes: int
    shape: tuple[int, ...]  # of one sample
    train: int  # how many samples
    test: int


SOURCES = {
    "digits": Source(10, (1, 8, 8), 1_352, 445),
    "mnist": Source(10, (1, 28, 28), 60_000, 10_000),
    "mnist-halves": Source(2, (1, 28, 28), 60_000, 10_000),
    "fashion-mnist": Source(10, (1, 28, 28), 60_000, 10_000),
    "cifar10": Source(10, (3, 32, 32), 50_000, 10_000),
    "cifar100": Source(100, (3, 32, 32), 50_000, 10_000),
    "svhn": Source(10, (3, 32, 32), 73_257, 26_032),
    "tiny-imagenet": Source(200, (3, 64, 64), 100_000, 10_000),
    "wikitext2": Source(33_279, (64,), 32_600, 3_800),  # tokens, and chunks of 64 in 100 rows
}


def source(text: str) -> Source:
    """Return the data set that a text names; of its options only ``size`` matters here.

    >>> source("cifar100").classes, source("mnist-halves:size=2000").train
    (100, 2000)
    """
    call = parse(text)
    if call.name not in SOURCES:
        raise unknown("data set", call.name, SOURCES)
    known = SOURCES[call.name]
    return known._replace(train=int(call.options.get("size", known.train)))
