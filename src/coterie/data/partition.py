"""Partitions by name and the draws they are made of: each client's training samples, and test samples that match.

Every partition takes ``(labels, clients, argument, rng)`` and returns one sorted array of row numbers per client.
``dirichlet`` and ``dirichlet_by_class`` are different laws: results for the same alpha are not comparable.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ..core.annotations import Positive, Range
from ..core.custom import import_function, own_name
from ..core.errors import UserError, unknown
from ..core.rng import generator
from ..core.spec import Spec, bind, parameters, parse
from ..core.tensors import Integers
from .pool import Natural, rows_by_label

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


def dirichlet_by_class(
    labels: Integers,
    clients: int,
    alpha: Positive,
    rng: np.random.Generator,
    balance: bool = True,
    min_size: Annotated[int, Range()] = 10,
    max_tries: Annotated[int, Range(1, 10_000)] = 100,
) -> Parts:
    """Cut every class k among the clients by its own p_k ~ Dir(alpha, ..., alpha) over the clients; sizes differ.

    With ``balance`` a client that already has N/n samples gets none of the classes that follow. All draws are repeated
    until each client has ``min_size`` samples, at most ``max_tries`` times.

    >>> parts = dirichlet_by_class(np.arange(400) % 10, 4, 0.5, np.random.default_rng(0))
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (400, True)

    Reference: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019.
    """
    return _by_shares(labels, clients, alpha, rng, balance, min_size, max_tries)[0]


def tests_by_shares(
    labels: Integers,
    test_labels: Integers,
    clients: int,
    rng: np.random.Generator,
    own: np.random.Generator,
    **chosen: Any,
) -> Parts:
    """Cut the test samples by the same p_k that ``dirichlet_by_class`` draws from ``rng``, and balance them again.

    Clients share no test samples; a client may have none. ``own`` shuffles them.

    Reference: the released code of FedLMT.
    """
    shares, balance = _by_shares(labels, clients, rng=rng, **chosen)[1], chosen["balance"]
    tests = rows_by_label(test_labels)
    pools = [own.permutation(tests[k]) for k in np.unique(labels).tolist()]
    return _cut_classes(pools, shares, balance)


def _by_shares(
    labels: Integers, clients: int, alpha: float, rng: np.random.Generator, balance: bool, min_size: int, max_tries: int
) -> tuple[Parts, Floats]:
    """Return the parts of ``dirichlet_by_class``, and [classes, n] the p_k."""
    check_clients(labels, clients)
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


def _cut_classes(pools: Parts, shares: Floats, balance: bool) -> Parts:
    """Cut every class by its shares; with ``balance`` a client that has enough gets none of the classes that follow."""
    clients = shares.shape[1]
    fair = sum(map(len, pools)) / clients
    sizes = np.zeros(clients)
    pieces: list[Parts] = [[] for _ in range(clients)]
    for members, share in zip(pools, shares, strict=True):
        steps = running_sums(share, (sizes < fair) | (not balance))
        cuts = (steps[:-1] / steps[-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return sorted_parts(pieces)


IID = "iid"  # the one partition that needs no classes
PARTITIONS: dict[str, Callable[..., Parts]] = {
    IID: iid,
    "dirichlet": dirichlet,
    "dirichlet-by-class": dirichlet_by_class,
    "pathological": pathological,
    "shards": shards,
    "dirichlet-reuse": dirichlet_reuse,
    "pathological-random": pathological_random,
    "dirichlet-by-class-tests": dirichlet_by_class,
}
# Partitions whose test samples are cut by the draws of the training samples, not in each client's proportions.
TESTS: dict[str, Callable[..., Parts]] = {"dirichlet-by-class-tests": tests_by_shares}


def split(text: str, labels: Integers, clients: int, seed: int) -> Parts:
    """Divide by the partition of a text, like ``iid``, ``pathological:2`` or ``dirichlet-by-class:0.5,min_size=5``.

    >>> [part.tolist() for part in split("iid", np.zeros(3, np.int64), 1, seed=0)]
    [[0, 1, 2]]
    """
    function, chosen = _bound(text)
    return function(labels=labels, clients=clients, rng=generator(seed, "partition"), **chosen)


def test_parts(text: str, labels: Integers, parts: Parts, test_labels: Integers, seed: int) -> Parts:
    """Return the test samples of clients that a partition has divided."""
    cut = TESTS.get(parse(text).name)
    if cut is None:
        return test_split(labels, parts, test_labels, seed)
    draws = generator(seed, "partition"), generator(seed, "test-split")
    return cut(labels, test_labels, len(parts), *draws, **_bound(text)[1])


def _bound(text: str) -> tuple[Callable[..., Parts], dict[str, Any]]:
    """Return the function that a text names, and its arguments."""
    spec = parse(text)
    if spec.name not in PARTITIONS and (name := own_name(text)) is not None:
        return _of_function(name, spec)
    if spec.name not in PARTITIONS:
        raise unknown("partition", spec.name, (*PARTITIONS, NATURAL))
    function = PARTITIONS[spec.name]
    takes = parameters(function, filled=("labels", "clients", "rng"))
    return function, {k: p.default for k, p in takes.items()} | bind("partition", spec, takes)


def _of_function(name: str, spec: Spec) -> tuple[Callable[..., Parts], dict[str, Any]]:
    """Return a partition of one's own, a function of labels, clients and rng, and its arguments."""
    make = import_function(name, "partition")
    takes = parameters(make)
    filled = [key for key in ("labels", "clients", "rng") if key in takes]
    if filled[:2] != ["labels", "clients"]:
        raise UserError(f"{name} does not take labels and clients: write it as a function of labels, clients and rng")
    free = {key: p for key, p in takes.items() if key not in filled}

    def checked(**given: Any) -> Parts:
        chosen = {
            key: value for key, value in given.items() if key in filled or key not in ("labels", "clients", "rng")
        }
        return _own_parts(name, make(**chosen), len(given["labels"]), given["clients"])

    return checked, bind("partition", Spec(name, spec.args[1:], spec.options), free)


def _own_parts(name: str, found: Any, samples: int, clients: int) -> Parts:
    """Return the rows that a partition of one's own gives each client; refuse what are none."""
    try:
        parts = [np.sort(np.asarray(part, np.int64).reshape(-1)) for part in found]
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} returns no lists of row numbers ({error}): return one per client") from error
    if len(parts) != clients:
        raise UserError(
            f"{name} returns rows for {len(parts)} clients, and {clients} were asked for: return one list each"
        )
    if any(len(part) and (part[0] < 0 or part[-1] >= samples) for part in parts):
        raise UserError(f"{name} returns rows outside of the {samples} samples: count them from 0")
    return parts


NATURAL = "natural"  # the division that the data come with, which takes no labels


def natural_split(natural: Natural | None, source: str, clients: int | None) -> tuple[Parts, Parts]:
    """Return the training rows of the first ``clients`` of a source, and their test rows.

    Test samples that are nobody's are refused: dealt out, they would be those of other sites.

    >>> pair = Natural(("ann", "ben"), (np.array([0, 2]), np.array([1])), (np.array([0]), np.array([1])))
    >>> [rows.tolist() for rows in natural_split(pair, "notes", clients=None)[0]]
    [[0, 2], [1]]
    """
    if natural is None:
        others = ", ".join(PARTITIONS)
        raise UserError(f"{source} does not know whose its samples are: choose a partition of {others}")
    known = len(natural.names)
    if clients is not None and not 1 <= clients <= known:
        raise UserError(f"{source} knows {known} clients, not {clients}: ask for 1 to {known}, or for no number")
    if natural.test is None:
        raise UserError(
            f"{source} says whose the training samples are, but not whose the test samples are: save test_client "
            "beside test_x and test_y, or leave these two out, and a quarter of every client's samples is for testing"
        )
    return list(natural.train[:clients]), list(natural.test[:clients])


def test_split(train_labels: Integers, train_parts: Parts, test_labels: Integers, seed: int) -> Parts:
    """Draw test samples in each client's own proportions, independently for every client.

    Client i gets min(ceil(q_ik M), size of k) test samples of class k, where q_i are its training class fractions and
    M = ceil(N_test / n). No client gets a sample twice; different clients may share samples.

    >>> train, test = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> parts = test_split(train, [np.array([0, 1]), np.array([2, 3])], test, seed=0)
    >>> [test[part].tolist() for part in parts]
    [[0, 0], [1, 1]]
    """
    members = rows_by_label(test_labels)
    M = -(-len(test_labels) // len(train_parts))
    parts = []
    for client, part in enumerate(train_parts):
        draw = generator(seed, "test-split", client)
        kinds, counts = np.unique(train_labels[part], return_counts=True)
        wanted = -(-counts * M // max(len(part), 1))  # integers: rounding must not raise a ceiling
        each = zip(map(members.__getitem__, kinds.tolist()), wanted.tolist(), strict=True)
        drawn = [draw.choice(rows, min(most, len(rows)), replace=False) for rows, most in each if most and len(rows)]
        parts.append(np.sort(np.concatenate([np.empty(0, np.int64), *drawn])))
    return parts
