"""The second formula: what happens when models meet.

x_i  <-  sum_j W[i, j] x_j          synchronous: every right-hand side is from before the exchange
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from .engines.base import Engine
from .tensors import Tensors, add, floating, sub


def gossip(engine: Engine, Ws: Sequence[Tensor], x: Tensors) -> Tensors:
    """One exchange after another; integer buffers keep the receiver's value."""
    mixed = floating(x)
    for W in Ws:
        mixed = engine.mix(W, mixed)
    return x | mixed


def together(exchange: Callable[[Tensors], Tensors], *parts: Tensors) -> list[Tensors]:
    """Several sets of tensors through one exchange: between machines that is one message, not several.

    >>> import torch
    >>> together(lambda x: {k: 2 * v for k, v in x.items()}, {"a": torch.tensor(1)}, {"a": torch.tensor(2)})
    [{'a': tensor(2)}, {'a': tensor(4)}]
    """
    answer = exchange({f"{i}/{k}": v for i, part in enumerate(parts) for k, v in part.items()})
    return [{k: answer[f"{i}/{k}"] for k in part} for i, part in enumerate(parts)]


def outer(x: Tensors, y: Tensors, lr: float) -> Tensors:
    """x + lr (y - x), and ``y`` itself, to the last bit, for lr = 1."""
    if lr == 1:
        return y
    return y | add(floating(x), sub(floating(y), floating(x)), lr)
