"""Run folders that survive interruption."""

from .checkpoint import flatten, unflatten
from .folder import RunFolder, Writer
from .models import client_file

__all__ = ["RunFolder", "Writer", "client_file", "flatten", "unflatten"]
