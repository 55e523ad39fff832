"""One client after another: the reference the other engines are tested against."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from ..core.rng import torch_draws
from ..core.tensors import SIMD_WIDTH, Tensors, Tree, rows, tree_map
from ..data.batches import Batch, Batches
from .base import Grad, InMemory, Objective, StepInfo, name_owners
from .threads import ClientThreads, RandomnessUsed, check, torch_threads


class Serial(InMemory):
    """A plain loop with ordinary autograd: easy to step through, errors name their line.

    ``workers``: how many clients may run at a time, each in a thread of its own.
    ``threads``: with how many threads each of several clients computes; None: with all that torch has.
    Sums depend on the threads to the last bit, and on the workers, for which there may be less memory the next time,
    not at all. Where a model lets torch draw random numbers there is one worker.
    """

    name = "serial"

    def __init__(self, device: torch.device | None = None, workers: int = 1, threads: int | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.workers, self.threads = workers, threads

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client, in order."""
        stacked: list[Tree] = []  # one tree, made by the first result: what clients come to is never held twice
        begun, batches = Lock(), [c for c in clients if isinstance(c, Batches)]

        def one(i: int) -> None:
            try:
                result = f(*(c.one(i) if isinstance(c, Batches) else rows(c, i) for c in clients))
            except Exception as error:
                name_owners(error, batches, np.array([i]))
                raise
            with begun:
                if not stacked:
                    stacked.append(tree_map(lambda v: v.new_empty(len(keys), *v.shape), result))
            tree_map(lambda v, new: v[i].copy_(new), stacked[0], result)

        workers = min(self.workers, len(keys))
        own = self.threads if len(keys) > 1 else None
        threads = nullcontext() if own in (None, torch.get_num_threads()) else torch_threads(own)
        with torch_draws(device=self.device) as seed, threads:
            if workers > 1:
                try:
                    ClientThreads(one, len(keys)).run(workers)
                    return stacked[0]
                except RandomnessUsed:
                    pass  # torch's generator belongs to all threads: one client after another then
            for i, key in enumerate(keys):
                seed(key)
                one(i)
        return stacked[0]

    def gradient(self, objective: Objective) -> Grad:
        """Differentiate with ordinary autograd: it has less overhead per call than ``torch.func.grad``."""

        def grad(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            leaves = {k: v.detach().requires_grad_() for k, v in fastest(x, frozen).items()}
            loss, info = objective(leaves, frozen, batch)
            g = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True) if loss.requires_grad else ()
            found = {k: v.to_dense() if v.is_sparse else v for k, v in zip(leaves, g, strict=False) if v is not None}
            if self.workers > 1:
                check()
            whole = {k: found[k] if k in found else torch.zeros_like(v) for k, v in x.items()}
            return whole, StepInfo(info.loss.detach(), info.buffers, frozenset(x.keys() - found.keys()))

        return grad


def may_be_last(tensors: Iterable[Tensor]) -> bool:
    """Tell whether the model with these tensors may have its channels last.

    To differentiate a 1 x 1 convolution of stride 2 by its filters, oneDNN copies every second pixel. Without AVX-512,
    and with channels last, the pieces of that copy begin 8 channels a pixel apart, however few there are, in memory
    for as many as there are: with 2 to 7 channels it writes over what belongs to others (torch 2.13, oneDNN 3.12; the
    search for such convolutions is ``docs/evidence/convolutions.py``). With AVX-512 a block has 16 channels: so many
    are asked for, as a margin.

    It is all or nothing, because the layout of one layer's output is that of the next one's input.
    The filters are the last four dimensions of a tensor, so that stacked ones can be asked for, too.

    >>> may_be_last([torch.zeros(8, 4, 3, 3), torch.zeros(32, 16, 1, 1)]), may_be_last([torch.zeros(8, 4, 1, 1)])
    (True, False)
    """
    pointwise = (v for v in tensors if v.dim() >= 4 and v.shape[-2:] == (1, 1) and v.device.type == "cpu")
    return all(v.shape[-3] >= SIMD_WIDTH for v in pointwise)


def fastest(x: Tensors, rest: Tensors) -> Tensors:
    """Return the parameters ``x`` of a model, with their channels last where the whole model may have them so.

    Convolutions of single precision run a quarter faster on a CPU then.
    """
    if not may_be_last((*x.values(), *rest.values())):
        return x
    turn = {k for k, v in x.items() if v.dim() == 4 and v.device.type == "cpu" and v.dtype == torch.float32}
    return {k: v.to(memory_format=torch.channels_last) if k in turn else v for k, v in x.items()}
