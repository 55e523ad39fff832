"""Where clients run: one after another, or many at once."""

from .base import Engine, Grad
from .serial import Serial
from .vectorised import Vectorised

__all__ = ["Engine", "Grad", "Serial", "Vectorised"]
