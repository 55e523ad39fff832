"""One client after another: the reference the other engines are tested against."""

from collections.abc import Callable, Sequence
from threading import Lock

import torch

from ..core.tensors import Tensors, Tree, rows, tree_map
from ..data.batches import Batch, Batches
from .base import Grad, InMemory, Objective, StepInfo, own_randomness
from .layouts import channels_last, may_be_last
from .threads import ClientThreads, RandomnessUsed, check, torch_threads


class Serial(InMemory):
    """A plain loop with ordinary autograd: easy to step through, errors name their line.

    ``workers``: how many clients may run at a time, each in a thread of its own that computes with ``threads`` threads.
    What comes out does not depend on the workers. Where a model draws random numbers there is one.
    """

    name = "serial"

    def __init__(self, device: torch.device | None = None, workers: int = 1, threads: int = 1) -> None:
        self.device = device or torch.device("cpu")
        self.workers, self.threads = workers, threads

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """``f`` on every client, in order."""
        results = Results(len(keys))

        def one(i: int) -> None:
            try:
                results.put(i, f(*(c.one(i) if isinstance(c, Batches) else rows(c, i) for c in clients)))
            except Exception as error:
                for batches in clients:
                    if isinstance(batches, Batches):
                        error.add_note(f"It happened to client {batches.clients[i]}.")
                raise

        with own_randomness(self.device) as seed:
            if self._together(one, len(keys)):
                return results.stacked
            for i, key in enumerate(keys):
                seed(key)
                one(i)
        return results.stacked

    def _together(self, one: Callable[[int], None], clients: int) -> bool:
        """Whether all clients were played by several threads."""
        workers = min(self.workers, clients)
        if workers < 2:
            return False
        try:
            with torch_threads(self.threads):
                ClientThreads(one, clients).run(workers)
        except RandomnessUsed:
            return False
        return True

    def gradient(self, objective: Objective) -> Grad:
        """Ordinary reverse-mode autograd: less overhead per call than ``torch.func.grad``."""

        def grad(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
            turned = may_be_last((*x.values(), *frozen.values()))
            leaves = {k: (channels_last(v) if turned else v).detach().requires_grad_() for k, v in x.items()}
            loss, info = objective(leaves, frozen, batch)
            g = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            check()
            return dict(zip(leaves, g, strict=True)), StepInfo(info.loss.detach(), info.buffers)

        return grad


class Results:
    """What clients came to, written into their places as it comes: it is never held twice."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.stacked: Tree = None
        self.begun = Lock()

    def put(self, i: int, one: Tree) -> None:
        """The result of client ``i``."""
        with self.begun:
            if self.stacked is None:
                self.stacked = tree_map(lambda v: v.new_empty(self.clients, *v.shape), one)
        tree_map(lambda v, new: v[i].copy_(new), self.stacked, one)
