"""Partitions: which training samples go to which client, and the test samples that match.

Every partition takes ``(labels, clients, argument, rng)`` and returns a sorted array of row numbers a client.
The arrays are disjoint and together hold every sample, but for the two of ``released`` that use samples again.
``dirichlet`` and ``dirichlet_by_class`` are different laws: results for the same alpha are not comparable.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core import rng as rng
from ..core.errors import UserError, unknown
from ..core.spec import parse
from .dealing import Floats, Ints, by_class, check_alpha, check_classes, check_clients, joined, ladder, quotas
from .options import bind
from .pool import Natural
from .released import dirichlet_reuse, pathological_random, shards


def iid(labels: Ints, clients: int, rng: np.random.Generator, balanced: bool = False) -> list[Ints]:
    """A shuffle, dealt out; sizes differ by at most one, and so does every class's count when ``balanced``.

    >>> parts = iid(np.repeat([0, 1], 5), 4, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [3, 3, 2, 2]
    """
    check_clients(labels, clients)
    order = rng.permutation(len(labels))
    if balanced:  # dealt class after class, so that every run of equal labels is spread over all clients
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[client::clients]) for client in range(clients)]


def dirichlet(labels: Ints, clients: int, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """A class prior per client, p_i ~ Dir(alpha, ..., alpha), and equal sizes (they differ by at most one).

    Until all samples are dealt, a client is drawn uniformly among those that still lack samples, a class from
    its prior restricted to the classes that still have some, and one unused sample of that class goes to it.
    Across clients E p = 1/C and Var p = (1/C)(1 - 1/C)/(C alpha + 1).

    >>> parts = dirichlet(np.arange(100) % 10, 4, 0.3, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [25, 25, 25, 25]

    Reference: Dai et al., DisPFL, ICML 2022; there, a class that has run out is drawn again, to the same law.
    """
    check_clients(labels, clients)
    check_alpha(alpha)
    stock = [members.tolist() for members in by_class(labels, rng)]
    prior = rng.dirichlet(np.full(len(stock), alpha), clients)
    dealt = _deal(stock, prior, quotas(len(labels), clients), rng)
    return joined([[np.array(part, np.int64)] for part in dealt])


def _deal(stock: Sequence[list[int]], prior: Floats, quota: Sequence[int], rng: np.random.Generator) -> list[list[int]]:
    """The draws of ``dirichlet``, one sample at a time; empties the stock."""
    left = np.ones(len(stock), bool)
    steps_of = ladder(prior, left)
    waiting = list(range(len(quota)))
    parts: list[list[int]] = [[] for _ in quota]
    for which, height in rng.random((sum(quota), 2)).tolist():
        place = int(which * len(waiting))
        client = waiting[place]
        steps = steps_of[client]
        k = int(steps.searchsorted(height * steps[-1], "right"))
        parts[client].append(stock[k].pop())
        if not stock[k]:  # rare, so the sums are kept between the draws
            left[k] = False
            steps_of = ladder(prior, left)
        if len(parts[client]) == quota[client]:
            waiting[place] = waiting[-1]
            waiting.pop()
    return parts


def dirichlet_by_class(
    labels: Ints,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance: bool = True,
    min_size: int = 10,
    max_tries: int = 100,
) -> list[Ints]:
    """Every class k is cut among the clients by its own p_k ~ Dir(alpha, ..., alpha) over them; sizes differ.

    With ``balance`` a client that already holds N/n samples gets none of the classes that follow. Everything
    is drawn again until each client has ``min_size`` samples, at most ``max_tries`` times.

    >>> parts = dirichlet_by_class(np.arange(400) % 10, 4, 0.5, np.random.default_rng(0))
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (400, True)

    Reference: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019.
    """
    return _by_shares(labels, clients, alpha, rng, balance, min_size, max_tries)[0]


def tests_by_shares(
    labels: Ints, test_labels: Ints, clients: int, rng: np.random.Generator, own: np.random.Generator, **chosen: Any
) -> list[Ints]:
    """Test samples cut by the very p_k that ``dirichlet_by_class`` has drawn from ``rng``, balanced anew.

    Nobody shares test samples; a client may have none. ``own``: shuffles them.

    Reference: the released code of FedLMT.
    """
    shares, balance = _by_shares(labels, clients, rng=rng, **chosen)[1], chosen["balance"]
    pools = [own.permutation(np.flatnonzero(test_labels == k)) for k in np.unique(labels)]
    return _cut_classes(pools, shares, balance)


def _by_shares(
    labels: Ints,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance: bool,
    min_size: int,
    max_tries: int,
) -> tuple[list[Ints], Floats]:
    """The parts of ``dirichlet_by_class``, and [classes, n] the p_k that they were cut by."""
    check_clients(labels, clients)
    check_alpha(alpha)
    if clients * min_size > len(labels):
        fewer = f"ask for fewer clients or for min_size={len(labels) // clients} at most"
        raise UserError(f"{len(labels)} samples cannot give {clients} clients {min_size} each: {fewer}")
    for _ in range(max_tries):
        pools = by_class(labels, rng)
        shares = np.stack([rng.dirichlet(np.full(clients, alpha)) for _ in pools])
        parts = _cut_classes(pools, shares, balance)
        if min(map(len, parts)) >= min_size:
            return parts, shares
    raise UserError(
        f"dirichlet-by-class with alpha={alpha:g} never gave each of {clients} clients {min_size} samples in "
        f"{max_tries} tries: raise alpha or max_tries, or lower min_size or the number of clients"
    )


def _cut_classes(pools: Sequence[Ints], shares: Floats, balance: bool) -> list[Ints]:
    """Every class cut by its shares; with ``balance`` whoever has enough gets none of those that follow."""
    clients = shares.shape[1]
    fair = sum(map(len, pools)) / clients
    held = np.zeros(clients)
    pieces: list[list[Ints]] = [[] for _ in range(clients)]
    for members, share in zip(pools, shares, strict=True):
        steps = ladder(share, (held < fair) | (not balance))
        cuts = (steps[:-1] / steps[-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            pieces[client].append(piece)
            held[client] += len(piece)
    return joined(pieces)


def pathological(labels: Ints, clients: int, classes: int, rng: np.random.Generator) -> list[Ints]:
    """Exactly ``classes`` labels for every client, and every class for about equally many clients.

    The n c places are spread over the C classes evenly (the largest classes take what is left over), a client
    takes the classes with most places left, ties at random, and a class is cut evenly among its takers.

    >>> labels = np.arange(60) % 6
    >>> [len(set(labels[part])) for part in pathological(labels, 9, 2, np.random.default_rng(0))]
    [2, 2, 2, 2, 2, 2, 2, 2, 2]

    Reference: McMahan et al., AISTATS 2017, Sec. 3, with places dealt so that no class runs out.
    """
    check_clients(labels, clients)
    pools = by_class(labels, rng)
    places = _places(labels, clients, classes, rng)
    takers: list[list[int]] = [[] for _ in pools]
    # Clients served in succession get different classes; at random, so that neighbors in a ring need not.
    for client in rng.permutation(clients).tolist():
        taken = np.lexsort((rng.random(len(pools)), -places))[:classes]
        places[taken] -= 1
        for k in taken:
            takers[k].append(client)
    pieces: list[list[Ints]] = [[] for _ in range(clients)]
    for members, who in zip(pools, takers, strict=True):
        # The first pieces of an uneven cut are the larger, so they go to those who hold least.
        who.sort(key=lambda client: sum(map(len, pieces[client])))
        for client, piece in zip(who, np.array_split(members, len(who)), strict=True):
            pieces[client].append(piece)
    return joined(pieces)


def _places(labels: Ints, clients: int, classes: int, rng: np.random.Generator) -> Ints:
    """How many clients each class is cut among; refuses what cannot be dealt."""
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


PARTITIONS: dict[str, Callable[..., list[Ints]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-by-class": dirichlet_by_class,
    "pathological": pathological,
    "shards": shards,
    "dirichlet-reuse": dirichlet_reuse,
    "pathological-random": pathological_random,
    "dirichlet-by-class-tests": dirichlet_by_class,
}
TESTS: dict[str, Callable[..., list[Ints]]] = {"dirichlet-by-class-tests": tests_by_shares}
"""Where tests are cut by the draws of the training, and not in each client's own proportions."""


def split(text: str, labels: Ints, clients: int, seed: int) -> list[Ints]:
    """The partition a text names, like ``iid``, ``pathological:2`` or ``dirichlet-by-class:0.5,min_size=5``.

    >>> [part.tolist() for part in split("iid", np.zeros(3, np.int64), 1, seed=0)]
    [[0, 1, 2]]
    """
    function, chosen = _named(text)
    return function(labels=labels, clients=clients, rng=rng.generator(seed, "partition"), **chosen)


def test_parts(text: str, labels: Ints, parts: Sequence[Ints], test_labels: Ints, seed: int) -> list[Ints]:
    """The test samples of clients that were divided so."""
    cut = TESTS.get(parse(text).name)
    if cut is None:
        return test_split(labels, parts, test_labels, seed)
    draws = rng.generator(seed, "partition"), rng.generator(seed, "test-split")
    return cut(labels, test_labels, len(parts), *draws, **_named(text)[1])


def _named(text: str) -> tuple[Callable[..., list[Ints]], dict[str, Any]]:
    """The function that a text names, and its arguments."""
    call = parse(text)
    if call.name not in PARTITIONS:
        raise unknown("partition", call.name, (*PARTITIONS, NATURAL))
    function = PARTITIONS[call.name]
    return function, dict(bind("partition", call, function, filled=("labels", "clients", "rng")))


NATURAL = "natural"  # the division the data come with: a partition by name, but none of the labels


def natural_split(natural: Natural | None, source: str, clients: int | None) -> tuple[list[Ints], list[Ints] | None]:
    """The training rows of the first so many clients that a source knows, and their test rows where it has them.

    >>> pair = Natural(("ann", "ben"), (np.array([0, 2]), np.array([1])))
    >>> [rows.tolist() for rows in natural_split(pair, "notes", clients=None)[0]]
    [[0, 2], [1]]
    """
    if natural is None:
        others = ", ".join(PARTITIONS)
        raise UserError(f"{source} does not know whose its samples are: choose a partition of {others}")
    known = len(natural.names)
    if clients is not None and not 1 <= clients <= known:
        raise UserError(f"{source} knows {known} clients, not {clients}: ask for 1 to {known}, or for no number")
    return list(natural.train[:clients]), None if natural.test is None else list(natural.test[:clients])


def test_split(train_labels: Ints, train_parts: Sequence[Ints], test_labels: Ints, seed: int) -> list[Ints]:
    """Test samples in each client's own proportions, drawn independently for every client.

    Client i gets min(ceil(q_ik M), size of k) test samples of class k: q_i are its training class fractions
    and M = ceil(N_test / n). Nothing is drawn twice within a client; different clients may share samples.

    >>> train, test = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> parts = test_split(train, [np.array([0, 1]), np.array([2, 3])], test, seed=0)
    >>> [test[part].tolist() for part in parts]
    [[0, 0], [1, 1]]
    """
    kinds = int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1
    members = [np.flatnonzero(test_labels == k) for k in range(kinds)]
    available = [len(rows) for rows in members]
    M = -(-len(test_labels) // len(train_parts))
    parts = []
    for client, part in enumerate(train_parts):
        draw = rng.generator(seed, "test-split", client)
        counts = np.bincount(train_labels[part], minlength=kinds)
        wanted = -(-counts * M // max(len(part), 1))  # in whole numbers: rounding must not push a ceiling up
        wanted = np.minimum(wanted, available)
        drawn = [draw.choice(members[k], wanted[k], replace=False) for k in np.flatnonzero(wanted)]
        parts.append(np.sort(np.concatenate([np.empty(0, np.int64), *drawn])))
    return parts
