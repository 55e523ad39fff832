"""Methods of one's own, typed as ``module:function``."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, get_type_hints

from ..core.custom import find, is_own
from ..core.errors import UserError
from .base import Algorithm
from .options import Options

# What says how long and with whom a method trains, not what it is.
SETUP = frozenset({*Options.__annotations__, "topology", "participation"})


def suitable(method: str, setting: str) -> bool:
    """Whether a preset or a recipe may choose this setting: all others of one's own method keep its defaults."""
    return setting in SETUP or not is_own(method)


def builder(name: str) -> Callable[..., Algorithm]:
    """The builder ``module:function``; what it builds has that name, so that its runs say where it comes from."""
    build = find(name, "method")
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
    """Of settings by name, each with its type, which a command needs to understand what is typed."""
    try:
        takes, _ = inspect.signature(build), get_type_hints(build)
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"the settings of {name} cannot be read ({error}): name a function with types") from error
    for key, setting in takes.parameters.items():
        if setting.kind is not setting.VAR_KEYWORD and setting.annotation is setting.empty:
            raise UserError(f"setting {key!r} of {name} has no type: annotate it, as in {key}: float = 0.1")
    return takes
