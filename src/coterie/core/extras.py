"""Packages that only some uses need: each is imported at its first use, or a sentence names what to install."""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import UserError


def import_extra(module: str, extra: str, purpose: str, instead: str = "") -> Any:
    """Import an optional module; ``extra``: of Coterie, "" for none; ``instead``: what works without it.

    >>> import_extra("no_such.module", "tables", "a frame", "run.history")
    Traceback (most recent call last):
    coterie.core.errors.UserError: a frame needs no_such: run pip install 'coterie[tables]', or take run.history
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        install = f"run pip install 'coterie[{extra}]'" if extra else f"run pip install {package}"
        raise UserError(f"{purpose} needs {package}: {install}{instead and f', or take {instead}'}") from error


def frames(instead: str) -> Any:
    """Return pandas; ``instead``: what has the same numbers without it."""
    return import_extra("pandas", "tables", "a frame", instead)


def warn_without_frames(instead: str) -> None:
    """Warn before anything is trained that there will be no frames."""
    if find_spec("pandas") is None:
        said = f"pandas is not installed, so {instead}; pip install 'coterie[tables]' is for frames"
        warnings.warn(said, UserWarning, stacklevel=4)
