"""Methods of one's own, typed as ``module:function``."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, get_type_hints

from ..core.custom import import_function, is_own
from ..core.errors import UserError
from .base import Algorithm
from .options import Options

# The settings that say how long and with which clients a method trains, not what it is.
SETUP = frozenset({*Options.__annotations__, "topology", "participation"})


def suitable(method: str, setting: str) -> bool:
    """Tell whether a preset or a recipe may choose this setting: the others of one's own method keep their defaults."""
    return setting in SETUP or not is_own(method)


def custom_builder(name: str) -> Callable[..., Algorithm]:
    """Return the builder ``module:function``; its algorithms have that name, so that runs say where they come from."""
    build = import_function(name, "method")
    takes = _signature(name, build)

    @wraps(build)
    def named(**settings: Any) -> Algorithm:
        try:
            takes.bind(**settings)
        except TypeError as error:
            raise UserError(
                f"{name}{takes} cannot be called with its settings alone ({error}): give every one of them a default"
            ) from error
        algorithm = build(**settings)
        if not isinstance(algorithm, Algorithm):
            raise UserError(f"{name} returned {type(algorithm).__name__}: it must return a coterie.method.Algorithm")
        return replace(algorithm, name=name)

    return named


def _signature(name: str, build: Callable[..., Any]) -> inspect.Signature:
    """Return the signature: settings by name, each with a type, which a command needs to read what is typed."""
    try:
        takes, _ = inspect.signature(build), get_type_hints(build)
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"the settings of {name} cannot be read ({error}): name a function with types") from error
    for key, setting in takes.parameters.items():
        if setting.kind is not setting.VAR_KEYWORD and setting.annotation is setting.empty:
            raise UserError(f"setting {key!r} of {name} has no type: annotate it, as in {key}: float = 0.1")
    return takes
