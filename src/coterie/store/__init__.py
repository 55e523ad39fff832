"""Run folders that survive interruption."""

from .checkpoint import flatten, unflatten
from .folder import RunFolder, Writer

__all__ = ["RunFolder", "Writer", "flatten", "unflatten"]
