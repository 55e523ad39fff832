"""Models of one's own, typed as ``module:function``: what a command has in place of handing a module to ``fit``."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import RequestError, unknown


def find(module: str, function: str) -> Callable[..., Any]:
    """The function (or class) of that name, from the current folder or wherever Python finds the module."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file of the folder must not stand in for a library's
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what is missing is something that it imports
        raise RequestError(
            f"there is no module {module!r} for the model {module}:{function}: go to the folder of {module}.py, or "
            "install it"
        ) from error
    if not callable(found := getattr(home, function, None)):
        defined = [k for k, v in vars(home).items() if callable(v) and getattr(v, "__module__", None) == module]
        raise unknown(f"function of {module}", function, defined)
    return found  # type: ignore[no-any-return]


def call(
    name: str, function: Callable[..., Any], shape: Sequence[int], classes: int, options: Mapping[str, Any]
) -> nn.Module:
    """What the function makes of the shape of a sample and the number of classes, if it asks for them, and options."""
    takes = inspect.signature(function)
    offered = {"shape": tuple(shape), "input_shape": tuple(shape), "classes": classes}
    given = {**{k: v for k, v in offered.items() if k in takes.parameters}, **options}
    try:
        takes.bind(**given)
    except TypeError as error:
        raise RequestError(
            f"{name}{takes} cannot be called so ({error}): it may take shape and classes; anything else is typed "
            f"behind it, as in {name},width=32"
        ) from error
    module = function(**given)
    if not isinstance(module, nn.Module):
        raise RequestError(f"{name} returned {type(module).__name__}: it must return a torch.nn.Module")
    return module
