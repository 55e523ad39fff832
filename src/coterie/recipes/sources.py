"""The shapes of the published data sets, to size a model before the files are there."""

from typing import NamedTuple

from ..errors import unknown


class Source(NamedTuple):
    """What a data set looks like."""

    classes: int
    shape: tuple[int, ...]  # of one sample
    train: int  # how many samples


SOURCES = {
    "mnist": Source(10, (1, 28, 28), 60_000),
    "mnist-halves": Source(2, (1, 28, 28), 60_000),
    "fashion-mnist": Source(10, (1, 28, 28), 60_000),
    "cifar10": Source(10, (3, 32, 32), 50_000),
    "cifar100": Source(100, (3, 32, 32), 50_000),
    "svhn": Source(10, (3, 32, 32), 73_257),
    "tiny-imagenet": Source(200, (3, 64, 64), 100_000),
    "wikitext2": Source(33_279, (64,), 32_600),  # tokens, and chunks of 64 in 100 rows
}


def source(text: str) -> Source:
    """The data set a text names; its options do not change the shape.

    >>> source("cifar100").classes
    100
    """
    name = text.partition(":")[0]
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]
