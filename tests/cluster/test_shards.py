"""Clients on several shards reach the same results as in one process, for every method and every assignment."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import algorithms, topology
from coterie.cluster.packed import pack, unpack
from coterie.cluster.shard import Shard, outline
from coterie.cluster.shard_thread import SWAP, ShardThread
from coterie.cluster.sharded import Sharded, paths_of
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, rows
from coterie.engines import Serial, Vectorized, base
from coterie.measure.rows import joined
from coterie.training.experiment import Experiment, RunState
from laws import METHODS, build, kind_like
from shards import SHARD_OF, answered, assert_close, close, conduct, put_together, shards_of
from toys import experiment, net, ragged


@cache
def in_one_place(row: str) -> tuple[Experiment, RunState, dict[str, Any]]:
    """What all numbers of shards are compared with: after two rounds, the second one measured."""
    kind = kind_like(row, "batchnorm")
    e = experiment(net(kind), ragged(kind), build(row), Serial(), rounds=8)
    now, _ = e.run_round(e.start(), 0, evaluate=False)
    return e, *e.run_round(now, 1, evaluate=True)


@pytest.mark.parametrize("workers", SHARD_OF)
@pytest.mark.parametrize("row", METHODS)
def test_shards_agree_with_one_place(row: str, workers: int) -> None:
    """States, rows of measurements and final models."""
    e, now, row_ = in_one_place(row)
    shards = shards_of(e, SHARD_OF[workers])
    conduct(shards, "start")
    for t in range(2):
        results = conduct(shards, "run_round", t, t == 1)
    values, there = joined([part for part, _ in results], 1, e.metrics, e.federation, e.program.finetune is not None)
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))
    assert values is not None
    assert now.values is not None
    assert_close(values, now.values)
    assert there.keys() == row_.keys()
    assert all(k.endswith("seconds") or close(there[k], v) for k, v in row_.items()), (there, row_)


def test_shards_measure_training_samples_as_one_place_does() -> None:
    e = experiment(net("mlp"), ragged("mlp"), build("fedper"), Serial()).changed(record=("own-train",))
    now, row = e.run_round(e.start(), 0, evaluate=True)
    shards = shards_of(e, SHARD_OF[2])
    conduct(shards, "start")
    results = conduct(shards, "run_round", 0, True)
    _, there = joined([part for part, _ in results], 0, e.metrics, e.federation, False)
    columns = [k for k in row if k.startswith("personal_accuracy_train_")]
    assert len(columns) == 10
    assert all(close(there[k], row[k]) for k in columns)  # type: ignore[literal-required]
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))


def test_a_round_without_most_shards() -> None:
    """Few of many take part: most shards have nobody."""
    for name in ("fedavg", "scaffold", "ditto", "heterofl", "fedhmv2", "fedrod"):
        settings: dict[str, Any] = (
            {"capacities": "1-0.5"} if name == "heterofl" else {"keep_layers": 1} if name == "fedhmv2" else {}
        )
        algorithm = algorithms.build(name, participation=1, epochs=1, batch_size=4, **settings)
        e = experiment(net("groupnorm"), ragged("groupnorm"), algorithm, Serial())
        shards = shards_of(e, SHARD_OF[5])
        conduct(shards, "start")
        now = e.start()
        for t in range(3):
            now, _ = e.run_round(now, t, evaluate=False)
            results = conduct(shards, "run_round", t, False)
        assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))


def test_a_repeated_round_is_the_same_to_the_last_bit() -> None:
    """A round that is abandoned at an exchange is run again: a lost worker asks that of the others."""
    e = experiment(net("mlp"), ragged("mlp"), build("dfedsam-mgs"), Serial())
    shards = shards_of(e, SHARD_OF[2])
    conduct(shards, "start")
    whole = [saved for _, saved in conduct(shards, "run_round", 0, True)]
    assert all(shard.begin("run_round", 0, True).kind == SWAP for shard in shards)
    again = [saved for _, saved in conduct(shards, "run_round", 0, True)]
    moved = Shard(e, e.engine, SHARD_OF[2], 1, 0, shards[1].saved(0))
    elsewhere = [saved for _, saved in conduct([shards[0], moved], "run_round", 0, True)]
    for one, two, three in zip(whole, again, elsewhere, strict=True):
        for k, v in one.items():
            torch.testing.assert_close([two[k], three[k]], [v, v], rtol=0, atol=0, equal_nan=True)


def test_a_diverging_client_is_named() -> None:
    diverging = algorithms.dfedavg(topology="ring", lr=1e30, epochs=3, clip=None)
    e = experiment(net("mlp", torch.float32), ragged("mlp", torch.float32), diverging)
    shards = shards_of(e, SHARD_OF[5])
    conduct(shards, "start")
    with pytest.raises(UserError, match=r"of client . is not finite any more in round 1"):
        conduct(shards, "run_round", 0, False)


@pytest.mark.parametrize("sparse", [False, True])
def test_only_needed_rows_travel(sparse: bool) -> None:
    """A ring of 6 on two shards of neighbors: the other shard needs two clients of each, whether W is sparse or not."""
    W = topology.build("ring", 6)(0)
    paths = paths_of(W.to_sparse() if sparse else W, np.array([0, 0, 0, 1, 1, 1]), 0)
    assert {d: at.tolist() for d, at in paths.out.items()} == {1: [0, 2]}
    assert paths.needed.tolist() == [0, 1, 2, 3, 5]
    dense = paths.matrix.to_dense()
    assert torch.equal(dense, W[:3][:, paths.needed])


def distance(x: Tensors, y: Tensors) -> Tensor:
    """Not symmetric, so that receivers and senders cannot be taken for each other."""
    return (x["a"] - 2 * y["a"]).square().sum() + (x["b"] * y["b"]).sum()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("graph", ["full", "random-pull:2", "none"])
def test_a_statistic_of_every_link_is_known_everywhere(graph: str, sparse: bool) -> None:
    """Against two loops of NumPy, in one process and on shards, one of which receives from nobody."""
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(5, 2, 3, generator=g), "b": torch.randn(5, 4, generator=g)}
    W = topology.build(graph, 5)(0)
    expected = np.zeros((5, 5))
    for i, j in W.nonzero().tolist():
        (a, b), (c, d) = ((x["a"][k].numpy(), x["b"][k].numpy()) for k in (i, j))
        expected[i, j] = ((a - 2 * c) ** 2).sum() + (b * d).sum()
    W = W.to_sparse() if sparse else W
    found = [Serial().pairwise(distance, W, x), Vectorized(2).pairwise(distance, W, x)]
    for shard_of in SHARD_OF.values():
        threads = [ShardThread() for _ in range(shard_of.max() + 1)]
        engines = [Sharded(Serial(), thread, k, shard_of) for k, thread in enumerate(threads)]
        works = [partial(e.pairwise, distance, W, {k: v[e.local_clients] for k, v in x.items()}) for e in engines]
        found += answered(threads, [t.begin(w) for t, w in zip(threads, works, strict=True)])
    for values in found:
        assert values.is_sparse == sparse
        torch.testing.assert_close(values.to_dense(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


def test_statistics_of_large_models_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    W, x = topology.build("full", 5)(0), {"a": torch.arange(30.0).view(5, 2, 3), "b": torch.ones(5, 4)}
    whole, seen = Serial().pairwise(distance, W, x), []
    monkeypatch.setattr(base, "SIDE_BY_SIDE", 25)
    monkeypatch.setattr(base, "rows", lambda t, at: seen.append(at) or rows(t, at))
    assert torch.equal(Serial().pairwise(distance, W, x), whole)
    assert max(len(at) for at in seen if isinstance(at, Tensor)) == 2


def test_a_message_is_one_block() -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
    tensors: dict[str, Tensor] = {str(d): torch.arange(3).to(d).expand(2, 3) for d in kinds}
    tensors |= {"none": torch.empty(0, 3), "one": torch.tensor(1.5)}
    packed = pack(tensors)
    assert packed.data.ndim == 1
    packed.data.setflags(write=False)  # as the object store hands it out
    for k, v in unpack(packed).items():
        assert v.dtype is tensors[k].dtype
        assert torch.equal(v, tensors[k])
