"""Divisions as the papers' released code makes them, where it does otherwise than their text or than we do."""

from collections.abc import Sequence

import numpy as np

from ..core.errors import UserError
from .dealing import Floats, Ints, by_class, check_alpha, check_classes, check_clients, joined, ladder, quotas


def shards(labels: Ints, clients: int, shards: int, rng: np.random.Generator) -> list[Ints]:
    """The samples in the order of their labels, cut into n s equal pieces, ``shards`` = s of them for every client.

    A client may get two pieces of one class, and a piece may lie across two.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> parts = shards(labels, 3, 2, np.random.default_rng(0))
    >>> [len(part) for part in parts], sorted(np.concatenate(parts).tolist()) == list(range(12))
    ([4, 4, 4], True)

    Reference: McMahan et al., AISTATS 2017, Sec. 3. The code of HeteroFL and FedLMT cuts every class by itself, which
    is the same where all classes are equally large and n s is a multiple of their number.
    """
    check_clients(labels, clients)
    if not 1 <= shards <= len(labels) // clients:
        most = len(labels) // clients
        raise UserError(f"{shards} shards a client of {len(labels)} samples is not possible: ask for 1 to {most}")
    order = np.concatenate(by_class(labels, rng))
    pieces = np.array_split(order, clients * shards)
    dealt = rng.permutation(len(pieces)).reshape(clients, shards)
    return joined([pieces[piece] for piece in own] for own in dealt)


def dirichlet_reuse(labels: Ints, clients: int, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """As ``dirichlet``, but a class that has run out is used again: mixtures stay as drawn, samples are shared.

    Some samples go to several clients or twice to one, others to nobody.

    >>> parts = dirichlet_reuse(np.arange(100) % 10, 4, 0.05, np.random.default_rng(0))
    >>> [len(part) for part in parts], len(np.unique(np.concatenate(parts))) < 100
    ([25, 25, 25, 25], True)

    Reference: the released code of DFedPGP.
    """
    check_clients(labels, clients)
    check_alpha(alpha)
    pools = by_class(labels, rng)
    return _deal_again(pools, rng.dirichlet(np.full(len(pools), alpha), clients), quotas(len(labels), clients), rng)


def pathological_random(labels: Ints, clients: int, classes: int, rng: np.random.Generator) -> list[Ints]:
    """``classes`` labels drawn for every client by itself, each sample of one of them; who runs out is used again.

    A class may be held by many or by nobody; sizes are equal.

    >>> labels = np.arange(60) % 6
    >>> parts = pathological_random(labels, 6, 2, np.random.default_rng(0))
    >>> [len(part) for part in parts], max(len(set(labels[part])) for part in parts)
    ([10, 10, 10, 10, 10, 10], 2)

    Reference: the released code of DisPFL and DFedPGP; that of the latter has one half for 1/classes.
    """
    check_clients(labels, clients)
    kinds = check_classes(labels, classes)
    pools = by_class(labels, rng)
    prior = np.zeros((clients, kinds))
    for own in prior:
        own[rng.choice(kinds, classes, replace=False)] = 1 / classes
    return _deal_again(pools, prior, quotas(len(labels), clients), rng)


def _deal_again(pools: Sequence[Ints], prior: Floats, quota: Sequence[int], rng: np.random.Generator) -> list[Ints]:
    """Samples from the end of each class; one that has run out begins again somewhere, and a class is drawn anew."""
    left = [len(pool) for pool in pools]
    steps = ladder(prior, np.ones(len(pools), bool))
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
