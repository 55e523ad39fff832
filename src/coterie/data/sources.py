"""Where data come from, by name, and the one call that makes a federation of them."""

from collections.abc import Callable
from operator import index

import torch

from ..errors import RequestError, unknown
from ..text import Scalar, parse
from .builtin import digits, synthetic
from .federation import Federation
from .options import bind
from .partition import split, test_split
from .pool import Pool
from .text import text

# A loader takes the seed and its own options, which its signature declares with types and defaults.
SOURCES: dict[str, Callable[..., Pool]] = {
    "digits": digits,
    "synthetic": synthetic,
    "text": text,
}


def federate(
    source: str, clients: int = 20, partition: str = "dirichlet:0.1", seed: int = 0, **options: Scalar
) -> Federation:
    """A source divided among clients; each client's test samples follow its own class proportions.

    Options of the source go into its text or are given by name. ``federate(**fed.origin)`` is the same
    federation, bit for bit.

    >>> federate("digits", clients=5, partition="pathological:2")
    Federation(clients=5, samples=1352, test_samples=445, input_shape=(1, 8, 8), classes=10)
    >>> federate("synthetic:classes=4", clients=3, partition="iid", size=400).sizes.tolist()
    [100, 100, 100]
    """
    clients, seed = index(clients), index(seed)  # plain ones: NumPy's whole numbers are no JSON
    call = parse(source)
    if call.name not in SOURCES:
        raise unknown("source", call.name, SOURCES)
    for name in options.keys() & call.options:
        raise RequestError(f"source {source!r} is given {name} twice: keep one of the two")
    load = SOURCES[call.name]
    call = call._replace(options={**call.options, **options})
    chosen = bind("source", call, load, filled=("seed",))
    pool = load(seed=seed, **chosen)
    labels, test_labels = pool.y.numpy(), pool.test_y.numpy()
    parts = split(partition, labels, clients, seed)
    federation = Federation(
        pool.x,
        pool.y,
        pool.test_x,
        pool.test_y,
        tuple(map(torch.from_numpy, parts)),
        tuple(map(torch.from_numpy, test_split(labels, parts, test_labels, seed))),
        pool.classes,
        {"source": call.name, "clients": clients, "partition": partition, "seed": seed, **chosen},
    )
    return pool.tailor(federation) if pool.tailor else federation
