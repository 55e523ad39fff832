"""Seeing the operations a model is made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operation on; without the compiler, which torch would otherwise load first, for a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class WatchDraws(Watch):
    """Whether random numbers were drawn, even where the generator was put back afterwards."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn = self.drawn or draws(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether an operation draws random numbers; fused attention is marked so even where it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, known in enumerate(func._schema.arguments):
        if known.name == "dropout_p":
            p: float = args[place] if place < len(args) else kwargs.get(known.name, known.default_value)
            return p > 0
    return True
