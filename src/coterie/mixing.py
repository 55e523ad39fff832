"""The second formula: what happens when models meet.

x_i  <-  sum_j W[i, j] x_j          synchronous: every right-hand side is from before the exchange
"""

from torch import Tensor

from .engines.base import Engine
from .tensors import Tensors, add, floating, sub


def gossip(engine: Engine, W: Tensor, x: Tensors, times: int = 1) -> Tensors:
    """``times`` exchanges over the same graph; integer buffers keep the receiver's value."""
    mixed = floating(x)
    for _ in range(times):
        mixed = engine.mix(W, mixed)
    return x | mixed


def outer(x: Tensors, y: Tensors, lr: float) -> Tensors:
    """x + lr (y - x), and ``y`` itself, to the last bit, for lr = 1."""
    if lr == 1:
        return y
    return y | add(floating(x), sub(floating(y), floating(x)), lr)
