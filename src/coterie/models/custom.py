"""Models of one's own, typed as ``module:function``."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..core.errors import UserError


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
        raise UserError(
            f"{name}{takes} cannot be called so ({error}): it may take shape and classes; anything else is typed "
            f"behind it, as in {name},width=32"
        ) from error
    module = function(**given)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name} returned {type(module).__name__}: it must return a torch.nn.Module")
    return module
