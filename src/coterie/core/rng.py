"""Every random draw, keyed by what it is for.

A draw depends on (seed, purpose, round, client, ...) and on nothing else: not on the order in which clients are
processed, not on the engine, not on what was drawn before. That is why a resumed run continues bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Draw = Callable[[np.random.Generator, str, NDArray[Any]], object]
"""Fills the memory of a tensor of this name from a generator."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TORCH = RLock()  # of torch's generators, which all threads of a process share


def key(seed: int, purpose: str, *where: int) -> int:
    """Return a 64-bit key; any change in any part gives an unrelated one.

    >>> key(0, "batches", 3) == key(0, "batches", 3), key(0, "batches", 3) == key(0, "sample", 3)
    (True, False)
    """
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return a generator of its own for one draw."""
    return np.random.default_rng(key(seed, purpose, *where))


def draw_each(generators: Sequence[np.random.Generator], stacked: Mapping[str, torch.Tensor], draw: Draw) -> None:
    """Fill stacked tensors, whose rows belong to one generator each, by ``draw(generator, name, row)``.

    Several rows are filled at a time, since numpy lets go of Python's lock meanwhile: a number for every weight of a
    hundred clients may be a billion draws, and a GPU would wait for them.

    >>> stacked = {"w": torch.empty(2, 3)}
    >>> each = [generator(0, "mask", i) for i in range(2)]
    >>> draw_each(each, stacked, lambda g, name, out: g.random(out=out, dtype=np.float32))
    >>> stacked["w"][1].tolist() == generator(0, "mask", 1).random(3, np.float32).tolist()
    True
    """

    def fill(place: int) -> None:
        for name, rows in stacked.items():
            draw(generators[place], name, rows[place].view(-1).numpy())

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(len(generators))))


def counters(root: int, *axes: NDArray[np.int64]) -> Keys:
    """Draw independent uniform 64-bit numbers for every combination of the (broadcast) integer coordinates.

    Each coordinate passes through the output function of splitmix64 (Steele, Lea, Flood 2014). Drawing this way costs
    no generator object per client, so the batches of 100,000 clients are one array operation.
    """
    with np.errstate(over="ignore"):
        h: Keys = np.asarray(root, np.uint64)
        for axis in axes:
            h = h + (axis.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            h = h ^ (h >> np.uint64(31))
    return h


@contextmanager
def torch_draws(seed: int | None = None, device: torch.device | None = None) -> Iterator[Callable[[int], object]]:
    """Let torch draw meanwhile, from this seed if it is given, and put its generators back; yield what seeds them.

    Other threads wait as long: their draws would be taken from this seed, and ours from theirs.

    >>> with torch_draws(3):
    ...     first = torch.rand(2)
    >>> with torch_draws(3):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    gpu = device is not None and device.type == "cuda"
    # torch.manual_seed seeds all GPUs, too, and where none is meant nobody puts their generators back.
    give = torch.manual_seed if gpu else torch.default_generator.manual_seed
    with _TORCH, torch.random.fork_rng(devices=[device] if gpu else []):
        if seed is not None:
            give(seed)
        yield give
