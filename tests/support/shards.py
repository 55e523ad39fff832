"""Clients on several shards, conducted in one thread as a cluster does it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from coterie.cluster.packed import pack, unpack
from coterie.cluster.shard import Shard, tree
from coterie.cluster.shard_thread import DONE, FAILED, SWAP, TOTAL, Request, ShardThread
from coterie.core.tensors import Tensors, add
from coterie.training.experiment import Experiment

SHARD_OF = {
    1: np.zeros(5, np.int64),
    2: np.array([1, 0, 1, 1, 0]),
    5: np.array([2, 0, 4, 1, 3]),
}


def conduct(shards: Sequence[Shard], name: str, *args: Any) -> list[tuple[Any, Tensors]]:
    """What a cluster does, in one thread: every shard to its next exchange, then what they have for each other."""
    return answered([shard.thread for shard in shards], [shard.begin(name, *args) for shard in shards])


def answered(threads: Sequence[ShardThread], requests: list[Request]) -> list[Any]:
    """The results of the shards' tasks."""
    while not all(r.kind == DONE for r in requests):
        for r in requests:
            if r.kind == FAILED:
                raise r.result
        if all(r.kind == SWAP for r in requests):
            answers: list[Any] = [
                {i: unpack(pack(r.messages[d])) for i, r in enumerate(requests) if d in r.messages}
                for d in range(len(requests))
            ]
        else:
            assert all(r.kind == TOTAL for r in requests)
            answers = [tree([r.messages[0] for r in requests], lambda i, x, y: add(x, y))] * len(requests)
        requests = [thread.proceed(answer) for thread, answer in zip(threads, answers, strict=True)]
    return [r.result for r in requests]


def shards_of(e: Experiment, shard_of: Any) -> list[Shard]:
    return [Shard(e, e.engine, shard_of, number) for number in range(shard_of.max() + 1)]


def put_together(shards: Sequence[Shard], saved: Sequence[Tensors], rows: frozenset[str]) -> Tensors:
    order = torch.from_numpy(np.argsort(np.concatenate([s.experiment.local_clients for s in shards])))
    return {k: torch.cat([one[k] for one in saved])[order] if k in rows else v for k, v in saved[0].items()}


def assert_close(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for k, v in right.items():
        torch.testing.assert_close(left[k], v, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m, k=k: f"{k}: {m}")


def close(left: Any, right: Any) -> bool:
    return left == right or bool(left == pytest.approx(right, rel=1e-5, abs=1e-6))
