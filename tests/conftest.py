"""What many files of tests share."""

import os
from collections.abc import Iterator

import pytest

from helpers_cli import Cli
from peer_processes import PeerServer

# The compiler tries for eight seconds what vector instructions a CPU has. Programs for one are compiled here alone.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")


@pytest.fixture(scope="session")
def cli() -> Iterator[Cli]:
    """The command line; starting what forks it takes seconds."""
    with Cli() as started:
        yield started


@pytest.fixture(scope="session")
def peer_forks() -> Iterator[PeerServer]:
    """What forks peers; starting it takes seconds."""
    with PeerServer() as started:
        yield started


@pytest.fixture
def peer_server(peer_forks: PeerServer) -> Iterator[PeerServer]:
    """Peers in processes of their own, which end with the test."""
    yield peer_forks
    peer_forks.end_all()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray's tests come first: one process then runs all of them, where two would each start a cluster."""
    items.sort(key=lambda item: item.path.name != "test_ray.py")
