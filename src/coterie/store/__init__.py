"""Run folders that survive interruption."""

from .checkpoint import flatten, unflatten
from .folder import RunFolder, client_file, read_json
from .writer import Writer

__all__ = ["RunFolder", "Writer", "client_file", "flatten", "read_json", "unflatten"]
