"""The second formula: what happens when models are mixed.

    x_i  <-  (sum_j W[i, j] m_j x_j) / (sum_j W[i, j] m_j)          and the old value where nobody has any mass

Synchronous: every right-hand side is from before the exchange. W is the matrix [n, n] of a graph, or the one row [m] of
a server, whose result belongs to the server alone. Every method is one of these cases:

    gossip, a server's mean     everybody has all of it, m = 1, and every row of W sums to 1: nothing is divided
    masks, cut models           m_j is 1 where client j has an entry and 0 where it does not
    push-sum                    m_j is one number per client, and the columns of W sum to 1; the products m_j x_j and
                                the m_j travel and are kept, and the ratio is taken wherever a model is needed

Where members may lie, one of the rules in ``robust`` takes the place of a sum in which everybody has all of it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.tensors import Tensors, add, floating, sub
from ..engines.base import Engine, MixingRule


def average(
    engine: Engine,
    W: Tensor,
    x: Tensors,
    mass: Tensors | None = None,
    old: Tensors | None = None,
    rule: MixingRule | None = None,
) -> Tensors:
    """Compute the formula; without ``mass`` everybody has all of it, and every row of W sums to 1.

    rule: what takes the place of the sum; ``old`` is then what a server has.

    >>> from coterie.engines import Serial
    >>> x, mass = {"a": torch.tensor([[1.0, 5.0], [3.0, 0.0]])}, {"a": torch.tensor([[1.0, 0.0], [1.0, 0.0]])}
    >>> average(Serial(), torch.tensor([0.5, 0.5]), x, mass, old={"a": torch.tensor([0.0, 7.0])})
    {'a': tensor([2., 7.])}
    """
    if rule is not None and mass is not None:
        raise UserError("some clients hold parts of the model only, which robust cannot compare: leave it out")
    if rule is not None and x:
        return engine.combine(rule, W, x, old)
    if mass is None:
        return engine.mix(W, x)
    return ratio(*sums(engine, W, {k: v * mass[k] for k, v in x.items()}, mass), old)


def sums(engine: Engine, W: Tensor, products: Tensors, mass: Tensors) -> tuple[Tensors, Tensors]:
    """Return both sums of the formula: sum_j W[i, j] m_j x_j, of the ``products`` m_j x_j, and sum_j W[i, j] m_j."""
    total, held = pack_exchange(lambda x: engine.mix(W, x), products, mass)
    return total, held


def ratio(products: Tensors, mass: Tensors | Tensor, old: Tensors | None = None) -> Tensors:
    """Return m x / m entry by entry, and ``old`` where there is no mass; one tensor is the mass of all entries."""
    if isinstance(mass, Tensor):
        return {k: v / mass.to(v) for k, v in products.items()}
    if old is None:
        return {k: v / mass[k] for k, v in products.items()}
    return {k: torch.where(mass[k] > 0, v / mass[k].where(mass[k] > 0, 1), old[k]) for k, v in products.items()}


def gossip(engine: Engine, Ws: Sequence[Tensor], x: Tensors, rule: MixingRule | None = None) -> Tensors:
    """Run one exchange after another; integer buffers keep the receiver's value."""
    mixed = floating(x)
    for W in Ws:
        mixed = average(engine, W, mixed, rule=rule)
    return x | mixed


def pack_exchange(exchange: Callable[[Tensors], Tensors], *parts: Tensors) -> list[Tensors]:
    """Pass several sets of tensors through one exchange: between machines that is one message, not several.

    >>> pack_exchange(lambda x: {k: 2 * v for k, v in x.items()}, {"a": torch.tensor(1)}, {"a": torch.tensor(2)})
    [{'a': tensor(2)}, {'a': tensor(4)}]
    """
    answer = exchange({f"{i}/{k}": v for i, part in enumerate(parts) for k, v in part.items()})
    return [{k: answer[f"{i}/{k}"] for k in part} for i, part in enumerate(parts)]


def interpolate(x: Tensors, y: Tensors, lr: float) -> Tensors:
    """Return the outer step of a server: x + lr (y - x), and ``y`` itself, to the last bit, for lr = 1."""
    if lr == 1:
        return y
    return y | add(floating(x), sub(floating(y), floating(x)), lr)
