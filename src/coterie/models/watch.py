"""Seeing the operations a model is made of."""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; without the compiler, which torch would otherwise load first, for a second."""

    supports_higher_order_operators = True
    branches = False  # control flow, which may hide operations, was among them

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, OpOverload):
            return self.see(func, args, kwargs or {})
        self.branches = True
        return func(*args, **(kwargs or {}))

    def see(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Does the operation and gives its result."""
        return func(*args, **kwargs)


class WatchDraws(Watch):
    """Whether random numbers were drawn, even where the generator was put back afterwards."""

    drawn = False

    def see(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Does the operation and gives its result."""
        self.drawn = self.drawn or torch.Tag.nondeterministic_seeded in func.tags
        return super().see(func, args, kwargs)
