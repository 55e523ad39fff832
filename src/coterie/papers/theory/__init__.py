"""The papers' theorems beside runs on problems small enough to compute everything they speak of."""

from .outcome import Condition, Constant, Outcome
from .sweep import Point, Sweep, sweep
from .theorems import THEOREMS, examine, theorem_of

__all__ = ["THEOREMS", "Condition", "Constant", "Outcome", "Point", "Sweep", "examine", "sweep", "theorem_of"]
