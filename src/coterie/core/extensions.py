"""Packages on top of the library, which add commands and sections of a page. The library knows none of them."""

from importlib import import_module
from types import ModuleType

EXTENSIONS: list[str] = []  # full names: a name costs nothing where nobody needs the package


def extended(part: str) -> list[ModuleType]:
    """Import a part of every extension.

    ``commands`` has ``add_groups(app)`` and ``add_commands(app)``; ``page`` has ``of_setup(...)`` and ``of_page(...)``,
    which return what a page adds to a set-up and at its end.
    """
    return [import_module(f"{name}.{part}") for name in EXTENSIONS]
