"""What many files of tests share."""

from collections.abc import Iterator

import pytest

from helpers_cli import Cli


@pytest.fixture(scope="session")
def cli() -> Iterator[Cli]:
    """The command line; starting what forks it takes seconds."""
    with Cli() as started:
        yield started
