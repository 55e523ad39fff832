"""What a step follows instead of the plain gradient: functions from gradient to gradient, which compose.

Each takes what one client is guided by (its guide) where it needs it; none knows that there are many clients.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .batches import Batch
from .engines.base import Grad, Seen
from .local import Guide
from .tensors import Tensors, add, floating, norm, split, sub

Direction = Callable[[Grad, Guide], Grad]


def compose(*directions: Direction) -> Direction:
    """The first is applied to the gradient, the next to what came out, and so on."""

    def all_of_them(grad: Grad, guide: Guide) -> Grad:
        for direction in directions:
            grad = direction(grad, guide)
        return grad

    return all_of_them


def sam(rho: float) -> Direction:
    """The gradient at the worst point nearby: g(x + rho g(x) / |g(x)|), one norm over all that moves.

    Both passes see the same batch and the same dropout; running statistics are those of the first.

    Reference: Foret et al., "Sharpness-Aware Minimization", 2021, equation 2 and 3.
    """

    def direction(grad: Grad, guide: Guide) -> Grad:
        def ascended(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            with replayed(batch.x.device) as again:
                g, seen = grad(x, held, batch)
                again()
                scale = rho / (norm(g) + 1e-12)
                worst = {k: v + scale * g[k] for k, v in x.items()}
                return grad(worst, held, batch)[0], seen

        return ascended

    return direction if rho else lambda grad, guide: grad


@contextmanager
def replayed(device: torch.device) -> Iterator[Callable[[], None]]:
    """Torch's generator, which the yielded function sets back to where it was on entering."""
    get, put = (torch.cuda.get_rng_state, torch.cuda.set_rng_state) if device.type == "cuda" else (_get, _put)
    state = get()
    yield lambda: put(state)


def _get() -> Tensor:
    return torch.random.get_rng_state()


def _put(state: Tensor) -> None:
    torch.random.set_rng_state(state)


def shifted(grad: Grad, guide: Guide) -> Grad:
    """g(x) + guide, for the names the guide has: control variates."""

    def moved(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
        g, seen = grad(x, held, batch)
        return g | add({k: g[k] for k in guide if k in g}, guide), seen

    return moved


def pulled(strength: float) -> Direction:
    """g(x) + strength (x - guide): the gradient of a proximal term around a reference model."""

    def direction(grad: Grad, guide: Guide) -> Grad:
        def drawn(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            g, seen = grad(x, held, batch)
            return add(g, sub(x, {k: guide[k] for k in x}), strength), seen

        return drawn

    return direction if strength else lambda grad, guide: grad


def drawn(names: Collection[str], size: int) -> Direction:
    """The gradient of the named part from the first ``size`` samples of a batch, that of the rest from all of them.

    A batch of everything that a client has is shuffled anew in every step: its first samples are a random batch.
    """

    def direction(grad: Grad, guide: Guide) -> Grad:
        def both(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            u, v = split(x, names)
            exact, seen = grad(v, held | u, batch)
            few = Batch(batch.x[:size], batch.y[:size], None if batch.mask is None else batch.mask[:size])
            noisy, _ = grad(u, held | v, few)
            return {k: (noisy | exact)[k] for k in x}, seen

        return both

    return direction


def debiased(shared: Collection[str]) -> Direction:
    """g at u / mu: push-sum holds a biased numerator u, steps on it, and takes every gradient at the ratio.

    The guide is the client's weight mu. No factor 1/mu enters the step: the derivative is that of F at z = u / mu.
    """

    def direction(grad: Grad, guide: Guide) -> Grad:
        def at_ratio(x: Tensors, held: Tensors, batch: Batch) -> tuple[Tensors, Seen]:
            g, seen = grad(ratio(x, guide, shared), ratio(held, guide, shared), batch)
            return g, seen._replace(buffers=ratio(seen.buffers, 1 / guide, shared))

        return at_ratio

    return direction


def ratio(u: Tensors, mu: Tensor, shared: Collection[str]) -> Tensors:
    """u / mu for the shared part of one client; what is personal and what is whole-numbered stays."""
    return u | {k: v / mu.to(v) for k, v in floating(split(u, shared)[0]).items()}
