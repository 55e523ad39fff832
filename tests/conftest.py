"""What many files of tests share."""

from collections.abc import Iterator

import pytest

from helpers_cli import Cli


@pytest.fixture(scope="session")
def cli() -> Iterator[Cli]:
    """The command line; starting what forks it takes seconds."""
    with Cli() as started:
        yield started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray's tests come first: one process then runs all of them, where two would each start a cluster."""
    items.sort(key=lambda item: item.path.name != "test_ray.py")
