"""Divisions as released code makes them: sizes, laws, and who shares what."""

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.core.rng import generator
from coterie.data import federate, partition
from partitions import assert_cover, balanced_labels, fractions

Ints = NDArray[np.int64]


def counts(labels: Ints, parts: list[Ints], classes: int = 10) -> Ints:
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def assert_used_again_only_when_used_up(labels: Ints, parts: list[Ints]) -> None:
    """A class has a sample twice only if every one of its samples is used; at least one class is so here."""
    used = np.bincount(np.concatenate(parts), minlength=len(labels))
    again = [k for k in np.unique(labels) if (used[labels == k] > 1).any()]
    assert again
    assert all((used[labels == k] > 0).all() for k in again)


@pytest.mark.parametrize(("clients", "each"), [(20, 2), (5, 6), (100, 1)])
def test_shards_are_equal_pieces_of_the_sorted_samples(clients: int, each: int) -> None:
    """With equal classes and n s a multiple of their number, as cut class by class: whole pieces, n s / C a class."""
    labels = generator(0, "order").permutation(balanced_labels(600, 10))
    parts = partition.split(f"shards:{each}", labels, clients, seed=1)
    assert_cover(parts, 600)
    pieces = counts(labels, parts) / (600 / (clients * each))
    np.testing.assert_array_equal(pieces, pieces.round())
    np.testing.assert_array_equal(pieces.sum(0), clients * each / 10)
    np.testing.assert_array_equal(pieces.sum(1), each)


def test_shards_of_unequal_classes_cover_everything() -> None:
    labels = np.repeat([0, 3, 7], [50, 3, 14])
    parts = partition.split("shards:3", labels, 4, seed=0)
    assert_cover(parts, 67)
    assert max(map(len, parts)) - min(map(len, parts)) <= 3
    assert sum(len(set(labels[part])) for part in parts) < 12


def test_a_piece_is_dealt_to_anybody() -> None:
    """Over many seeds client 0 gets every class equally often."""
    labels = balanced_labels(100, 10)
    got = sum(counts(labels, partition.split("shards:2", labels, 10, seed))[0] for seed in range(400)) / 5
    assert np.abs(got - 80).max() < 5 * np.sqrt(800 * 0.1 * 0.9)


def test_mixtures_stay_as_they_were_drawn() -> None:
    """alpha -> 0 is one class a client, however many want the same one; without reuse some must take what is left."""
    labels = balanced_labels(2000, 10)
    parts = partition.split("dirichlet-reuse:1e-3", labels, 20, seed=0)
    assert [len(part) for part in parts] == [100] * 20
    assert fractions(labels, parts, 10).max(1).mean() > 0.97
    assert fractions(labels, partition.split("dirichlet:1e-3", labels, 20, seed=0), 10).max(1).mean() < 0.9
    assert_used_again_only_when_used_up(labels, parts)


def test_the_spread_of_the_mixtures() -> None:
    """Var p = (1/C)(1 - 1/C)/(C alpha + 1), plus that of 200 draws from it."""
    labels = balanced_labels(40_000, 10)
    shares = fractions(labels, partition.split("dirichlet-reuse:0.3", labels, 200, seed=2), 10)
    law = 0.09 / 4
    assert shares.mean() == pytest.approx(0.1)
    assert shares.var() == pytest.approx(law + (0.09 - law) / 200, rel=0.12)


def test_classes_are_drawn_for_every_client_by_itself() -> None:
    labels = balanced_labels(20_000, 10)
    parts = partition.split("pathological-random:2", labels, 200, seed=0)
    own = counts(labels, parts)
    assert [len(part) for part in parts] == [100] * 200
    assert ((own > 0).sum(1) == 2).all()
    takers = (own > 0).sum(0)  # 40 each on average, but not 40 each
    assert takers.std() > 2
    assert np.abs(takers - 40).max() < 5 * np.sqrt(200 * 0.2 * 0.8)
    assert own[own > 0].std() == pytest.approx(5, rel=0.25)  # halves of 100
    assert_used_again_only_when_used_up(labels, parts)
    alone = partition.split("pathological-random:1", np.repeat([0, 1], [1, 9]), 5, seed=1)  # a class of one sample
    assert all(len(part) == 2 for part in alone)


@pytest.mark.parametrize("balance", ["true", "false"])
def test_tests_are_cut_by_the_draws_of_the_training(balance: str) -> None:
    labels = generator(0, "order").permutation(np.repeat(np.arange(10), np.arange(1, 11) * 40))
    options = f"0.5,balance={balance}"
    parts = partition.split(f"dirichlet-by-class-tests:{options}", labels, 8, seed=4)
    plain = partition.split(f"dirichlet-by-class:{options}", labels, 8, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(parts, plain, strict=True))
    text = f"dirichlet-by-class-tests:{options}"
    same = partition.test_parts(text, labels, parts, labels, seed=4)
    np.testing.assert_array_equal(counts(labels, same), counts(labels, parts))  # as many tests: the same cuts
    test_labels = np.repeat(np.arange(10), np.arange(1, 11) * 8)
    fewer = partition.test_parts(text, labels, parts, test_labels, seed=4)
    assert_cover(fewer, len(test_labels))
    if balance == "false":
        shares = counts(labels, parts) / np.bincount(labels)
        few = counts(test_labels, fewer) / np.bincount(test_labels)
        assert (np.abs(shares - few) <= 1 / np.bincount(test_labels) + 1 / np.bincount(labels)).all()


def test_a_federation_has_them() -> None:
    fed = federate("synthetic:size=400", clients=5, partition="dirichlet-by-class-tests:1.0")
    assert sum(map(len, fed.test)) == len(fed.test_y) == len(set(np.concatenate([t.numpy() for t in fed.test])))
    again = federate("synthetic:size=400", clients=5, partition="dirichlet-by-class-tests:1.0")
    assert fed.fingerprint() == again.fingerprint()
