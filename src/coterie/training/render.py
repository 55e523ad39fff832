"""How a run is shown. Reports stand above training: ``coterie/__init__.py``, above both, puts their functions here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

write: Callable[[Sequence[Any], str | Path], Path]  # the page of some runs
card: Callable[[Any], str]  # one run in a notebook
