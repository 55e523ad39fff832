"""Partitions that deal samples to clients, and the parts that all partitions have in common.

``shards``, ``dirichlet_reuse`` and ``pathological_random`` are those of the papers' released code, where it differs
from their text or from ours. The last two use samples again; all others deal every sample once.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.annotations import Positive
from ..core.errors import UserError
from ..core.tensors import Integers
from .pool import rows_by_label

Floats = NDArray[np.float64]
Parts = list[Integers]  # the rows of each client

_ZERO = 1e-12  # weights with a smaller sum count as 0: a division by it would only magnify rounding


def by_class(labels: Integers, rng: np.random.Generator) -> Parts:
    """Return the shuffled members of every class that occurs."""
    return [rng.permutation(rows) for rows in rows_by_label(labels).values()]


def running_sums(weights: Floats, left: NDArray[np.bool_]) -> Floats:
    """Return running sums of the weights that are left; these count equally where they are all about 0."""
    live = weights * left
    live[live.sum(-1) < _ZERO] = left
    return np.cumsum(live, -1)


def sorted_parts(pieces: Iterable[Sequence[Integers]]) -> Parts:
    """Return every client's pieces as one sorted array."""
    return [np.sort(np.concatenate(piece)) for piece in pieces]


def quotas(samples: int, clients: int) -> list[int]:
    """Return sizes that differ by at most one.

    >>> quotas(7, 3)
    [3, 2, 2]
    """
    return [samples // clients + (client < samples % clients) for client in range(clients)]


def check_clients(labels: Integers, clients: int) -> None:
    """Refuse more clients than samples."""
    if not 1 <= clients <= len(labels):
        most = len(labels)
        raise UserError(f"clients={clients} is not possible with {most} samples: ask for 1 to {most}")


def check_classes(labels: Integers, classes: int) -> int:
    """Return the number of classes; refuse more than that per client, or none."""
    kinds = len(np.unique(labels))
    if not 1 <= classes <= kinds:
        raise UserError(f"{classes} classes a client of {kinds} is not possible: ask for 1 to {kinds}")
    return kinds


def iid(labels: Integers, clients: int, rng: np.random.Generator, balanced: bool = False) -> Parts:
    """Deal out a shuffle; sizes differ by at most one, and so does the count of every class if ``balanced``.

    >>> parts = iid(np.repeat([0, 1], 5), 4, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [3, 3, 2, 2]
    """
    check_clients(labels, clients)
    order = rng.permutation(len(labels))
    if balanced:  # class after class, so that the samples of a class go to all clients
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[client::clients]) for client in range(clients)]


def dirichlet(labels: Integers, clients: int, alpha: Positive, rng: np.random.Generator) -> Parts:
    """Draw a class prior per client, p_i ~ Dir(alpha, ..., alpha); sizes differ by at most one.

    Until all samples are dealt, a client is drawn uniformly among those that still lack samples, then a class from its
    prior over the classes that still have samples, and the client gets one unused sample of that class.
    Across clients E p = 1/C and Var p = (1/C)(1 - 1/C)/(C alpha + 1).

    >>> parts = dirichlet(np.arange(100) % 10, 4, 0.3, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [25, 25, 25, 25]

    Reference: Dai et al., DisPFL, ICML 2022; there, a class that has run out is drawn again, to the same law.
    """
    check_clients(labels, clients)
    stock = [members.tolist() for members in by_class(labels, rng)]
    prior = rng.dirichlet(np.full(len(stock), alpha), clients)
    dealt = _deal(stock, prior, quotas(len(labels), clients), rng)
    return sorted_parts([[np.array(part, np.int64)] for part in dealt])


def _deal(stock: Sequence[list[int]], prior: Floats, quota: Sequence[int], rng: np.random.Generator) -> list[list[int]]:
    """Draw for ``dirichlet``, one sample at a time; this empties the stock."""
    left = np.ones(len(stock), bool)
    steps_of = running_sums(prior, left)
    waiting = list(range(len(quota)))
    parts: list[list[int]] = [[] for _ in quota]
    for which, height in rng.random((sum(quota), 2)).tolist():
        place = int(which * len(waiting))
        client = waiting[place]
        steps = steps_of[client]
        k = int(steps.searchsorted(height * steps[-1], "right"))
        parts[client].append(stock[k].pop())
        if not stock[k]:  # this is rare, so the sums are kept between draws
            left[k] = False
            steps_of = running_sums(prior, left)
        if len(parts[client]) == quota[client]:
            waiting[place] = waiting[-1]
            waiting.pop()
    return parts


def pathological(labels: Integers, clients: int, classes: int, rng: np.random.Generator) -> Parts:
    """Give every client exactly ``classes`` labels, and every class to about equally many clients.

    The n c places are spread evenly over the C classes (the largest classes get the remainder), a client takes the
    classes with the most places left, ties at random, and a class is cut evenly among its clients.

    >>> labels = np.arange(60) % 6
    >>> [len(set(labels[part])) for part in pathological(labels, 9, 2, np.random.default_rng(0))]
    [2, 2, 2, 2, 2, 2, 2, 2, 2]

    Reference: McMahan et al., AISTATS 2017, Sec. 3, with places so that no class runs out.
    """
    check_clients(labels, clients)
    pools = by_class(labels, rng)
    places = _places(labels, clients, classes, rng)
    takers: list[list[int]] = [[] for _ in pools]
    # Successive clients get different classes; in a random order, so that neighbors on a ring need not.
    for client in rng.permutation(clients).tolist():
        taken = np.lexsort((rng.random(len(pools)), -places))[:classes]
        places[taken] -= 1
        for k in taken:
            takers[k].append(client)
    pieces: list[Parts] = [[] for _ in range(clients)]
    for members, who in zip(pools, takers, strict=True):
        # The first pieces of an uneven cut are larger, so they go to the clients with the fewest samples.
        who.sort(key=lambda client: sum(map(len, pieces[client])))
        for client, piece in zip(who, np.array_split(members, len(who)), strict=True):
            pieces[client].append(piece)
    return sorted_parts(pieces)


def _places(labels: Integers, clients: int, classes: int, rng: np.random.Generator) -> Integers:
    """Return how many clients share each class; refuse what is not possible."""
    names, sizes = np.unique(labels, return_counts=True)
    total, kinds = clients * classes, check_classes(labels, classes)
    if total < kinds:
        fix = f"ask for {-(-kinds // clients)} or more classes each, or {-(-kinds // classes)} or more clients"
        raise UserError(f"{clients} clients of {classes} classes each cannot hold all {kinds}: {fix}")
    places = np.full(kinds, total // kinds, np.int64)
    places[np.lexsort((rng.random(kinds), -sizes))[: total % kinds]] += 1
    for name, size, wanted in zip(names, sizes, places, strict=True):
        if size < wanted:
            fix = "ask for fewer clients or fewer classes a client"
            raise UserError(f"class {name} has {size} samples for {wanted} clients that need one: {fix}")
    return places


def shards(labels: Integers, clients: int, shards: int, rng: np.random.Generator) -> Parts:
    """Cut the samples in the order of their labels into n s equal pieces; each client gets ``shards`` = s of them.

    A client may get two pieces of one class, and a piece may contain two classes.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> parts = shards(labels, 3, 2, np.random.default_rng(0))
    >>> [len(part) for part in parts], sorted(np.concatenate(parts).tolist()) == list(range(12))
    ([4, 4, 4], True)

    Reference: McMahan et al., AISTATS 2017, Sec. 3. The code of HeteroFL and FedLMT cuts every class
    separately, which is the same where all classes are equally large and n s is a multiple of their number.
    """
    check_clients(labels, clients)
    if not 1 <= shards <= len(labels) // clients:
        most = len(labels) // clients
        raise UserError(f"{shards} shards a client of {len(labels)} samples is not possible: ask for 1 to {most}")
    order = np.concatenate(by_class(labels, rng))
    pieces = np.array_split(order, clients * shards)
    dealt = rng.permutation(len(pieces)).reshape(clients, shards)
    return sorted_parts([pieces[piece] for piece in own] for own in dealt)


def dirichlet_reuse(labels: Integers, clients: int, alpha: Positive, rng: np.random.Generator) -> Parts:
    """Divide as ``dirichlet`` does, but use a class again that has run out: mixtures stay as they were drawn.

    Some samples go to several clients or twice to one, others to no client.

    >>> parts = dirichlet_reuse(np.arange(100) % 10, 4, 0.05, np.random.default_rng(0))
    >>> [len(part) for part in parts], len(np.unique(np.concatenate(parts))) < 100
    ([25, 25, 25, 25], True)

    Reference: the released code of DFedPGP.
    """
    check_clients(labels, clients)
    pools = by_class(labels, rng)
    return _deal_again(pools, rng.dirichlet(np.full(len(pools), alpha), clients), quotas(len(labels), clients), rng)


def pathological_random(labels: Integers, clients: int, classes: int, rng: np.random.Generator) -> Parts:
    """Draw ``classes`` labels for each client independently; a class that has run out is used again.

    Many clients or none may hold a class; sizes are equal.

    >>> labels = np.arange(60) % 6
    >>> parts = pathological_random(labels, 6, 2, np.random.default_rng(0))
    >>> [len(part) for part in parts], max(len(set(labels[part])) for part in parts)
    ([10, 10, 10, 10, 10, 10], 2)

    Reference: the released code of DisPFL and DFedPGP; DFedPGP's has one half in place of 1/classes.
    """
    check_clients(labels, clients)
    kinds = check_classes(labels, classes)
    pools = by_class(labels, rng)
    prior = np.zeros((clients, kinds))
    for own in prior:
        own[rng.choice(kinds, classes, replace=False)] = 1 / classes
    return _deal_again(pools, prior, quotas(len(labels), clients), rng)


def _deal_again(pools: Sequence[Integers], prior: Floats, quota: Sequence[int], rng: np.random.Generator) -> Parts:
    """Take samples from the end of each class; a class that has run out begins again at a random place."""
    left = [len(pool) for pool in pools]
    steps = running_sums(prior, np.ones(len(pools), bool))
    waiting = list(range(len(quota)))
    parts: list[list[int]] = [[] for _ in quota]
    while waiting:
        place = int(rng.integers(len(waiting)))
        client = waiting[place]
        k = int(steps[client].searchsorted(rng.random() * steps[client][-1], "right"))
        if not left[k]:
            left[k] = int(rng.integers(1, len(pools[k]))) if len(pools[k]) > 1 else 1
            continue
        left[k] -= 1
        parts[client].append(int(pools[k][left[k]]))
        if len(parts[client]) == quota[client]:
            waiting[place] = waiting[-1]
            waiting.pop()
    return [np.sort(np.array(part, np.int64)) for part in parts]
