"""Packages on top of the library, which add commands and sections of a page. The library knows none of them."""

from importlib import import_module
from types import ModuleType

EXTENSIONS: list[str] = []  # full names: a name costs nothing where nobody needs the package


def extended(part: str) -> list[ModuleType]:
    """Import a part of every extension: ``commands`` or ``page``."""
    return [import_module(f"{name}.{part}") for name in EXTENSIONS]
