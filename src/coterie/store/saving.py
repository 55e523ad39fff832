"""Tensors into a file, whole or not at all."""

import hashlib
from pathlib import Path

from ..core.files import replace
from ..core.tensors import Tensors
from .serialized import serialized


def save_tensors(path: Path, tensors: Tensors, about: dict[str, str] | None = None) -> str:
    """A safetensors file, whole or not at all; returns the SHA-256 of its content."""
    # Not the library's save_file: it writes through a temporary file of its own, under a random name that a kill leaves
    # behind, readable to nobody else, and its errors are no OSErrors. Nor its save: that takes the state twice more.
    seen = hashlib.sha256()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as f:
            for part in serialized(tensors, about):
                seen.update(part)
                f.write(part)

    replace(path, write)
    return seen.hexdigest()
