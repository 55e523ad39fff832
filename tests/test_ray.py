"""The same runs on a Ray cluster: results, errors, lost workers and machines, checkpoints, memory."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from coterie.cluster.conductor import Conductor
from coterie.cluster.spread import Spread, luggage, shards_of
from coterie.cluster.start import Hired, hired
from coterie.cluster.wanted import Wanted
from coterie.engines import Serial
from coterie.experiment import Experiment
from test_engines import METHODS, build, kind_like
from test_shards import assert_close, close
from toys import experiment, net, ragged

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]'")

STORE = 100 * 2**20
FIVE = Wanted(workers=5)
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # nobody but this test reaches the cluster


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Hired]]:
    """Five workers for all runs of this file."""
    ray.init(
        address="local",
        num_cpus=5,
        object_store_memory=STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield hired(ray, FIVE, 5)
    ray.shutdown()


def spread_on(e: Experiment, hands: list[Hired], engine: str = "auto") -> Spread:
    """An experiment on workers that are there."""
    conductor = Conductor(ray, FIVE, list(hands), *shards_of(e, len(hands)), say=lambda text: None)
    conductor.prepare(*luggage(e, FIVE), engine)
    return Spread(e, conductor)


def of(row: str) -> Experiment:
    kind = kind_like(row, "batchnorm")
    return experiment(net(kind), ragged(kind), build(row), Serial(), rounds=8)


def play(player: Any, rounds: int = 2) -> tuple[Any, dict[str, Any]]:
    """(where it ends, its last row); the last round is measured."""
    now, row = player.start(), {}
    for t in range(rounds):
        now, row = player.play(now, t, evaluate=t + 1 == rounds)
    return now, row


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[Any, dict[str, Any]]]:
    """What every method comes to on the serial engine."""
    return {}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_method_comes_to_the_same(count: int, workers: list[Hired], alone: dict[str, Any]) -> None:
    for row in METHODS:
        e = of(row)
        if row not in alone:
            now, measured = play(e)
            alone[row] = e.saved(now), measured
        state, measured = alone[row]
        player = spread_on(e, workers[:count])
        now, there = play(player)
        assert_close(now.state.gathered(), state)
        wrong = {k: (there[k], v) for k, v in measured.items() if k != "seconds" and not close(there[k], v)}
        assert not wrong, (row, wrong)
