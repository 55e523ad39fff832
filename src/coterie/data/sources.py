"""The sources of data by name, and the call that makes a federation of one of them."""

from collections.abc import Callable
from inspect import signature
from operator import index
from pathlib import Path

import torch

from ..core.errors import UserError, unknown
from ..core.spec import Call, Scalar, parse
from .builtin import digits, synthetic
from .custom import image_folder, npz
from .dealing import Parts
from .federation import Federation, Pool
from .options import bind
from .partition import NATURAL, natural_split, split, test_parts, test_split
from .place import data_dir as found_data_dir
from .readers.images import cifar10, cifar100, fashion_mnist, mnist, mnist_halves, svhn
from .readers.text import text, wikitext2
from .readers.tiny import tiny_imagenet

CLIENTS = 20  # unless it is given, or the data know their clients

# A loader takes the seed and the data folder if it needs them, and the options that its signature declares.
SOURCES: dict[str, Callable[..., Pool]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "mnist-halves": mnist_halves,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "tiny-imagenet": tiny_imagenet,
    "image-folder": image_folder,
    "npz": npz,
    "text": text,
    "wikitext2": wikitext2,
}


def federate(
    source: str,
    clients: int | None = None,
    partition: str = "dirichlet:0.1",
    seed: int = 0,
    data_dir: str | Path | None = None,
    **options: Scalar,
) -> Federation:
    """Divide a source among clients; each client's test samples follow its own class proportions.

    Options of the source are part of its text or are given by name. The partition "natural" is the one that the data
    come with; ``clients`` is then how many of its clients take part, by default all of them, and otherwise 20.
    data_dir: the folder of the published data sets; by default COTERIE_DATA, else the folder chosen by
    ``coterie data dir``, else ./data. ``federate(**fed.origin)`` is the same federation, bit for bit.

    >>> federate("digits", clients=5, partition="pathological:2")
    Federation(clients=5, samples=1352, test_samples=445, input_shape=(1, 8, 8), classes=10)
    >>> federate("synthetic:classes=4", clients=3, partition="iid", size=400).sizes.tolist()
    [100, 100, 100]
    """
    seed = index(seed)  # a plain int: JSON has no NumPy integers
    call = _request(source, options)
    pool, chosen = _loaded(call, seed, data_dir)
    parts, test = _divided(pool, call.name, None if clients is None else index(clients), partition, seed)
    federation = Federation(
        pool.x,
        pool.y,
        pool.test_x,
        pool.test_y,
        tuple(map(torch.from_numpy, parts)),
        tuple(map(torch.from_numpy, test)),
        pool.classes,
        {"source": call.name, "clients": len(parts), "partition": partition, "seed": seed, **chosen},
        pool.transform,
    )
    return pool.per_client(federation) if pool.per_client else federation


def _request(source: str, options: dict[str, Scalar]) -> Call:
    """Return the source with all its options; refuse one that is given twice."""
    call = parse(source)
    if call.name not in SOURCES:
        raise unknown("source", call.name, SOURCES)
    typed = {name.replace("-", "_"): value for name, value in call.options.items()}
    for name in options.keys() & typed:
        raise UserError(f"source {source!r} is given {name} twice: keep one of the two")
    return call._replace(options={**typed, **options})


def _loaded(call: Call, seed: int, data_dir: str | Path | None) -> tuple[Pool, dict[str, Scalar]]:
    """Return the samples, and all options that they were loaded with."""
    load = SOURCES[call.name]
    takes = signature(load).parameters
    chosen = bind("source", call, load, filled=("seed", "folder"))
    given = {"seed": seed} if "seed" in takes else {}
    place = {"folder": found_data_dir(data_dir).path} if "folder" in takes else {}
    return load(**given, **place, **chosen), chosen


def _divided(pool: Pool, source: str, clients: int | None, partition: str, seed: int) -> tuple[Parts, Parts]:
    """Return the training and the test rows of every client."""
    labels, test_labels = pool.y.numpy(), pool.test_y.numpy()
    if parse(partition).name == NATURAL:
        parts, test = natural_split(pool.natural, source, clients)
        return parts, test or test_split(labels, parts, test_labels, seed)
    parts = split(partition, labels, CLIENTS if clients is None else clients, seed)
    return parts, test_parts(partition, labels, parts, test_labels, seed)
