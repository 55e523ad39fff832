"""Modules are built under a watch: a tensor that would not fit into memory is refused before it is made.

In a container the system ends a process that takes too much, without a word. Building on the meta device first would
tell the size as well, but it imports sympy, which takes a second.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core.memory import check_fits

_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
NOTICED = 2**24  # bytes; asking how much is free takes a millisecond


class AllocationCheck(TorchFunctionMode):
    """Counts the tensors that are made within a ``with`` statement, and refuses the one that would be too much.

    >>> with AllocationCheck("this"):
    ...     torch.nn.Linear(10**8, 10**8)
    Traceback (most recent call last):
    coterie.core.errors.UserError: this would take at least 40 PB of memory, and ... are free: take a smaller one
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.taken = what, 0
        self.needed = torch.get_default_device().type != "meta"  # where tensors have no values

    def __torch_function__(  # type: ignore[no-untyped-def]  # as torch declares it
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ):
        """Count what a function would make, then call it."""
        given = kwargs or {}
        if self.needed and func in _MAKERS and str(given.get("device")) != "meta":
            self.taken += _bytes(args, given)
            if self.taken > NOTICED:
                check_fits(self.taken, self.what, "take a smaller one", "at least ")
        return func(*args, **given)


def _bytes(args: Sequence[Any], given: dict[str, Any]) -> int:
    """Return the bytes of a tensor of the size that is the first of some arguments, or all of them."""
    first = args[0] if args else given.get("size", ())
    size = args if isinstance(first, int) else first
    width: int = (given.get("dtype") or torch.get_default_dtype()).itemsize
    return math.prod(int(n) for n in size) * width
