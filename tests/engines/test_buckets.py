"""Which clients run side by side: each exactly once, with equally many steps and little padding, to the same result."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie as ct
from coterie.core.tensors import Integers
from coterie.data import partition
from coterie.data.batches import Amount, Batches, Samples
from coterie.engines import Serial, Vectorized
from coterie.engines.buckets import buckets
from toys import experiment, models, net, ragged


def owning(sizes: list[int]) -> Samples:
    x = torch.arange(sum(sizes))
    return Samples(x, x, torch.split(x, sizes))


def waste(batches: Batches, groups: list[Integers]) -> float:
    """Padded entries for every real one, read off the blocks as an engine gets them."""
    entries = sum(len(which) * sum(batches.block(which).widths) for which in groups)
    return entries / max(batches.seen, 1) - 1


@pytest.mark.parametrize("batch_size", [10, 50, 128])
@pytest.mark.parametrize("clients", [20, 100, 1000])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5])
def test_unequal_clients_waste_less_than_a_fifth(alpha: float, clients: int, batch_size: int) -> None:
    parts = partition.split(f"dirichlet-by-class:{alpha},min_size=0", np.arange(60_000) % 10, clients, 0)
    batches = Batches(owning([len(p) for p in parts]), np.arange(clients), Amount(epochs=1), batch_size, key=1)
    groups = buckets([batches], exact=False)
    assert waste(batches, groups) < 0.2
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(clients))
    assert len(groups) <= len(set(batches.steps.tolist())) + 10  # and not by many small groups


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
    sizes_of_batches=st.lists(st.one_of(st.none(), st.integers(1, 9)), min_size=1, max_size=2),
    amount=st.one_of(
        st.integers(0, 3).map(lambda e: Amount(epochs=e)),
        st.integers(1, 5).map(lambda s: Amount(steps=s)),
        st.just(Amount(epochs=(1, 2))),
    ),
    exact=st.booleans(),
)
def test_every_client_once_with_equal_steps(
    sizes: list[int], sizes_of_batches: list[int | None], amount: Amount, exact: bool
) -> None:
    samples, clients = owning(sizes), np.arange(len(sizes))
    together = [Batches(samples, clients, amount, size, key=7) for size in sizes_of_batches]
    groups = buckets(together, exact)
    assert sorted(np.concatenate(groups).tolist()) == clients.tolist()
    for batches in together:
        assert all(len(set(batches.steps[which].tolist())) == 1 for which in groups)
        assert not exact or all(batches.block(which).mask is None for which in groups)
    real = sum(batches.seen for batches in together)
    entries = sum(len(which) * sum(b.block(which).widths) for b in together for which in groups)
    assert 100 * entries <= real * (115 if not exact else 100)  # in whole numbers, because 180 * 1.15 is below 207


def test_equal_clients_stay_one_group_in_their_order() -> None:
    batches = Batches(owning([6] * 9), np.arange(9), Amount(epochs=2), 4, key=1)
    assert [which.tolist() for which in buckets([batches], exact=False)] == [list(range(9))]


def test_an_exact_group_needs_equal_batches_not_equal_clients() -> None:
    batches = Batches(owning([9, 13, 3]), np.arange(3), Amount(steps=2), 4, key=1)
    assert [sorted(which.tolist()) for which in buckets([batches], exact=True)] == [[0, 1], [2]]


@pytest.mark.parametrize("chunk", [2, 30])
@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_many_unequal_clients_equal_one_after_another(kind: str, chunk: int) -> None:
    """Equal sizes among them too, some of which make more epochs than others."""
    sizes = [3, 17, 8, 8, 1, 12, 9, 17, 4, 10, 11, 8, 2, 16, 3, 5]
    alg = ct.algorithms.dfedavg(topology="ring", epochs=(1, 2), batch_size=4, lr=0.05)
    slow, fast = (
        models(experiment(net(kind), ragged(kind, sizes=sizes), alg, engine), 2)
        for engine in (Serial(), Vectorized(chunk, exact=kind == "batchnorm"))
    )
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-10, atol=1e-10)
