"""Many clients at once: the one-client function lifted by ``torch.func.vmap``."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.process_wide import ProcessWide
from ..core.rng import torch_draws
from ..core.tensors import Integers, Tensors, Tree, consecutive, leaves, pick, to_device, tree_map
from ..data.batches import Batch, Batches
from .base import Grad, InMemory, Objective, Step, StepInfo, name_owners, rates_at
from .buckets import buckets
from .layouts import CpuLayouts
from .trace import TraceCache


class Vectorized(InMemory):
    """Clients side by side, ``chunk`` of them at a time.

    Clients are grouped so that a group makes equally many steps and little of it is padding. ``exact`` pads nothing:
    needed where padding would change the result. ``traced``: steps that come again run from a recorded trace, with the
    same result; not for code that may do something else the next time.
    """

    def __init__(
        self, chunk: int, exact: bool = False, device: torch.device | None = None, traced: bool = True
    ) -> None:
        self.chunk, self.exact, self.traced = chunk, exact, traced
        self.device = device or torch.device("cpu")
        self._traces = TraceCache()

    @property
    def name(self) -> str:
        """The text that chooses this engine again, chunk included: rounding may depend on it."""
        return f"vectorized:{self.chunk}"

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client, a chunk of clients of equal shape at a time."""
        batches = [c for c in clients if isinstance(c, Batches)]
        return self._together(lambda which: _lifted(f, clients, which), batches, keys)

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """Run ``step`` through all batches of every client; rates are tensors, so that all rates are one program."""
        samples, timeless = batches.samples, step.at([0.0] * len(step.rates))
        kind = next(v.dtype for v in leaves((given, fixed)) if v.is_floating_point())
        constant = torch.tensor(step.rates, dtype=kind, device=self.device)
        name = timeless, id(samples.x), id(samples.y), samples.transform

        def stepped(carry: Tree, fixed: Tree, drawn: Tensors, rates: Tensor) -> Tree:
            now = step.at(rates.unbind())
            once, dims = common(fixed)
            return lift(lambda c, f, d: now(c, f, samples.batch(**d)), carry, once, drawn, in_dims=(0, dims, 0))

        def one_chunk(which: Integers) -> Tree:
            block, frozen = batches.block(which), pick(fixed, which)
            carry = self._run(partial(lift, step.begin), (timeless, "begin"), pick(given, which))
            rates = paced(step, block.steps, constant)
            for k, width in enumerate(block.widths):
                drawn = {key: v[:, k, :width] for key, v in block.tensors.items()}
                carry = self._run(stepped, name, carry, frozen, drawn, constant if rates is None else rates[k])
            return self._run(partial(lift, step.end), (timeless, "end"), carry)

        return self._together(one_chunk, [batches], keys)

    def _run(self, f: Callable[..., Tree], name: Hashable, *given: Tree) -> Tree:
        return self._traces.run(f, name, *given) if self.traced else f(*given)

    def _together(self, one_chunk: Callable[[Integers], Tree], batches: Sequence[Batches], keys: Sequence[int]) -> Tree:
        """Run ``one_chunk`` on all clients, a chunk at a time."""
        together: Tree = None
        with torch_draws(device=self.device) as seed:
            for which in self._chunks(batches, len(keys)):
                seed(keys[int(which[0])])
                try:
                    part = one_chunk(which)
                except Exception as error:
                    name_owners(error, batches, which)
                    raise
                if len(which) == len(keys) and consecutive(which):
                    return part
                if together is None:
                    together = tree_map(lambda v: v.new_empty(len(keys), *v.shape[1:]), part)
                write(together, which, part)
                del part  # before the next chunk makes its own
        return together

    def gradient(self, objective: Objective) -> Grad:
        """Differentiate with autograd inside ``torch.func.vjp``, which ``vmap`` can lift."""
        return Gradient(objective)

    def _chunks(self, batches: Sequence[Batches], clients: int) -> Iterator[Integers]:
        for bucket in buckets(batches, self.exact) if batches else [np.arange(clients)]:
            for start in range(0, len(bucket), self.chunk):
                yield np.sort(bucket[start : start + self.chunk])  # in order: neighbors are seen without a copy


@dataclass(frozen=True)
class Gradient:
    """The gradient of an objective; what does not move stays out of the slow hands of autograd.

    ``torch.func.grad`` would keep what a second derivative needs, and load the compiler first, for a second. A value:
    steps along the gradient of one objective are equal in every round.
    """

    objective: Objective

    def __call__(self, x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
        """Return the gradient in ``x``, and loss and buffers."""

        def value(params: Tensors) -> tuple[Tensor, tuple[Tensors, Tensor, Tensors]]:
            loss, info = self.objective(params, frozen, batch)
            g = torch.autograd.grad(loss, list(params.values()), allow_unused=True) if loss.requires_grad else ()
            found = {k: v for k, v in zip(params, g, strict=False) if v is not None}
            return loss, (found, info.loss, info.buffers)

        answer: Any = torch.func.vjp(value, x, has_aux=True)
        found, loss, buffers = answer[2]
        g = {k: found[k] if k in found else torch.zeros_like(v) for k, v in x.items()}
        return g, StepInfo(loss, buffers, frozenset(x.keys() - found.keys()))


def paced(step: Step, steps: int, like: Tensor) -> Tensor | None:
    """Return [K, R] the rates of every step, on the device in one copy; None where they are the same in all."""
    if step.pace is None:
        return None
    table = torch.tensor([rates_at(step, k) for k in range(steps)], dtype=like.dtype).view(steps, -1)
    return to_device(table, like.device)


def _lifted(f: Callable[..., Tree], clients: Sequence[Tree | Batches], which: Integers) -> Tree:
    """Run ``f`` on the clients ``which`` as one program over stacked tensors."""
    blocks = [c.block(which) for c in clients if isinstance(c, Batches)]

    def one(mine: tuple[Tree, ...], drawn: tuple[Tensors, ...]) -> Tree:
        trees = iter(mine)
        streams = (block.one(tensors) for block, tensors in zip(blocks, drawn, strict=True))
        return f(*(next(streams) if isinstance(c, Batches) else next(trees) for c in clients))

    mine = tuple(pick(c, which) for c in clients if not isinstance(c, Batches))
    return lift(one, mine, tuple(block.tensors for block in blocks))


def lift(f: Callable[..., Tree], *stacked: Tree, in_dims: Any = 0) -> Tree:
    """Run ``f`` along the leading dimension of stacked trees; attention in its plain form, the only one that lifts."""
    with plain_attention(), CpuLayouts():
        return torch.func.vmap(f, in_dims, randomness="different")(*stacked)


@ProcessWide
@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention as products and a softmax."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def common(x: Tree) -> tuple[Tree, Any]:
    """Take what is one tensor shown n times only once; return the tree, and each tensor's dimension of clients.

    One model for all clients is one product with all their samples, which is faster than n of them.
    """

    def once(v: Tensor) -> bool:
        return len(v) > 1 and v.stride(0) == 0

    dims: Any = tree_map(lambda v: None if once(v) else 0, x)  # type: ignore[arg-type, return-value]
    return tree_map(lambda v: v[0] if once(v) else v, x), dims


def write(x: Tree, which: Integers, part: Tree) -> None:
    """Write results into the places of some clients: those of many chunks are never held twice."""
    first, place = int(which[0]), torch.from_numpy(which)
    if consecutive(which):
        tree_map(lambda v, new: v[first : first + len(which)].copy_(new), x, part)
    else:
        tree_map(lambda v, new: v.index_copy_(0, to_device(place, v.device), new), x, part)
