"""Where clients run: one after another, many at once, or through a recorded program."""

from .base import Engine, Grad, Step
from .graphed import Graphed
from .serial import Serial
from .vectorized import Vectorized

__all__ = ["Engine", "Grad", "Graphed", "Serial", "Step", "Vectorized"]
