"""Tests with a small sample of their cases in every run, and all cases by ``pytest -m exhaustive``."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[tuple[Any, ...]], small: Collection[tuple[Any, ...]]) -> list[Any]:
    """Return all cases as parameters. Those outside of the small sample are marked exhaustive."""
    return [pytest.param(*case, marks=() if case in small else pytest.mark.exhaustive) for case in cases]
