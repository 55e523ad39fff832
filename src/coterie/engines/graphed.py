"""One step compiled and captured once, then replayed for every batch of every client.

A GPU waits for Python between the kernels of a small step, and for memory between those of a large one. So a step is
traced into one graph over memory of its own, compiled, and recorded with its launches; after that a client costs a copy
in, one replay per batch, and a copy out.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.tensors import Tensors, Tree, leaves, pick, rows, tree_map, with_leaves
from ..data.batches import Batch, Batches, Integers, Samples
from .base import Grad, InMemory, Objective, Step, StepInfo
from .capture import Build, captured
from .serial import Serial, may_be_last
from .vectorized import Vectorized, lift, write


class Graphed(InMemory):
    """Clients one after another, or ``chunk`` at a time side by side, through a program that is built once.

    Batches are padded to one width, so that one program does for all. ``exact``: only batches of equal width share
    one, where a sample's output depends on its company (BatchNorm).
    """

    def __init__(self, chunk: int, exact: bool, device: torch.device, build: Build = captured) -> None:
        self.chunk, self.exact, self.device, self.build = chunk, exact, device, build
        self._once = Vectorized(chunk, exact, device) if chunk > 1 else Serial(device)
        self._programs: dict[Hashable, RecordedStep] = {}
        self._gradients: dict[Objective, Grad] = {}

    @property
    def name(self) -> str:
        """The text that chooses this engine again, chunk included: rounding may depend on it."""
        return f"graphed:{self.chunk}"

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client, as it is: what happens once per round is not worth a program."""
        return self._once.map(f, *clients, keys=keys)

    def gradient(self, objective: Objective) -> Grad:
        """Return the same function for the same objective, so that equal steps are equal in every round."""
        if objective not in self._gradients:
            self._gradients[objective] = _gradient(objective)
        return self._gradients[objective]

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """Run ``step`` through all batches of every client, one replay per batch."""
        together: Tree = None
        exact = self.exact and not step.independent
        for group in groups(batches, exact):
            drawn, widths = all_steps(batches, group, exact)
            for first in range(0, len(group), self.chunk):
                some = np.arange(first, min(first + self.chunk, len(group)))
                full = np.resize(some, self.chunk)  # a last, smaller chunk is filled up with its own clients
                mine = pick(given, group[full]), pick(fixed, group[full])
                done = self._run_chunk(step, *mine, batches.samples, pick(drawn, full), widths)
                part = rows(done, slice(len(some)))
                if together is None:
                    together = tree_map(lambda v: v.new_empty(len(keys), *v.shape[1:]), part)
                write(together, group[some], part)
        return together

    def _run_chunk(
        self, step: Step, given: Tree, fixed: Tree, samples: Samples, drawn: Tensors, widths: Sequence[int]
    ) -> Tree:
        """Run a chunk of clients through all their batches."""
        carry = over(self.chunk, step.begin)(given)
        program = self._program(step, carry, fixed, samples)
        program.load(step.rates, carry, fixed)
        for k, width in enumerate(widths):
            program.step_on({name: v[:, k, :width] for name, v in drawn.items()})
        return over(self.chunk, step.end)(program.carry)

    def _program(self, step: Step, carry: Tree, fixed: Tree, samples: Samples) -> "RecordedStep":
        timeless = step.at([0.0] * len(step.rates))
        shapes = tuple((v.shape, v.dtype) for v in leaves((carry, fixed)))
        key = (timeless, shapes, id(samples.x))
        if key not in self._programs:
            self._programs[key] = RecordedStep(step, carry, fixed, samples, self.chunk, self.build)
        return self._programs[key]


def _gradient(objective: Objective) -> Grad:
    def grad(x: Tensors, frozen: Tensors, batch: Batch) -> tuple[Tensors, StepInfo]:
        g, seen = torch.func.grad(lambda params: objective(params, frozen, batch), has_aux=True)(x)
        return g, seen

    return grad


def over(chunk: int, f: Callable[..., Tree]) -> Callable[..., Tree]:
    """Lift ``f`` over a chunk; one client alone runs as it is, without the grouped convolutions of ``vmap``."""
    if chunk > 1:
        return lambda *stacked: lift(f, *stacked)
    return lambda *stacked: tree_map(lambda v: v[None], f(*(rows(s, 0) for s in stacked)))


class RecordedStep:
    """A step over memory of its own: what is loaded into it is carried through the batches that follow."""

    def __init__(self, step: Step, carry: Tree, fixed: Tree, samples: Samples, chunk: int, build: Build) -> None:
        self.step, self.samples, self.chunk, self.build = step, samples, chunk, build
        self.last = chunk == 1 and may_be_last(leaves((carry, fixed)))  # the channels, of one client alone
        self.carry, self.fixed = tree_map(self._own, carry), tree_map(self._own, fixed)
        kind = next(v.dtype for v in leaves((carry, fixed)) if v.is_floating_point())
        self.rates = torch.tensor(step.rates, dtype=kind, device=samples.x.device)
        self._built: dict[Hashable, tuple[Tensors, Callable[[], object]]] = {}

    def load(self, rates: Sequence[float | Tensor], carry: Tree, fixed: Tree) -> None:
        """Load other clients, at other rates."""
        self.rates.copy_(torch.tensor(rates, dtype=self.rates.dtype), non_blocking=True)
        own = self.carry, self.fixed
        by_name = tree_map(lambda _, v: v, own, (carry, fixed))  # what is given may list its names in another order
        _copy(leaves(own), leaves(by_name))

    def step_on(self, drawn: Tensors) -> None:
        """Take one step on these samples."""
        shape = tuple((k, v.shape) for k, v in drawn.items())
        if shape not in self._built:
            self._built[shape] = self._first(tree_map(self._own, drawn))
        seen, replay = self._built[shape]
        _copy(list(seen.values()), list(drawn.values()))
        replay()

    def _first(self, drawn: Tensors) -> tuple[Tensors, Callable[[], object]]:
        """Build the step as a program; building it runs it, so what is carried is put back."""
        before = tree_map(self._own, self.carry)
        memory = (self.carry, self.fixed, self.rates, drawn, self.samples.x, self.samples.y)

        def body(*tensors: Tensor) -> None:
            carry, fixed, rates, drawn, x, y = with_leaves(memory, tensors)
            samples, step = replace(self.samples, x=x, y=y), self.step.at(rates.unbind())

            def one(carry: Tree, fixed: Tree, drawn: Tensors) -> Tree:
                batch = samples.batch(**drawn)
                return step(carry, fixed, _channels_last(batch) if self.last else batch)

            new = over(self.chunk, one)(carry, fixed, drawn)
            tree_map(lambda old, value: old.copy_(value), carry, new)

        replay = self.build(body, leaves(memory))
        _copy(leaves(self.carry), leaves(before))
        return drawn, replay

    def _own(self, v: Tensor) -> Tensor:
        """Copy into memory of its own. Where one client runs alone, its images and filters have their channels last."""
        if self.last and v.dim() == 5:
            return v[0].detach().clone(memory_format=torch.channels_last)[None]
        return v.detach().clone(memory_format=torch.contiguous_format)


def groups(batches: Batches, exact: bool) -> list[Integers]:
    """Group the clients that make equally many steps; ``exact``: of equally many samples each."""
    kinds = np.stack([batches.steps, batches.sizes if exact else np.zeros_like(batches.sizes)])
    return [np.flatnonzero((kind == kinds.T).all(1)) for kind in np.unique(kinds, axis=1).T]


def all_steps(batches: Batches, group: Integers, exact: bool) -> tuple[Tensors, list[int]]:
    """Return [m, K, B] which samples, and the widths of the K steps, of clients that make equally many steps.

    Unless ``exact`` all steps are as wide as the widest of any client, with a mask.
    """
    block = batches.block(group)
    if exact:
        return block.tensors, list(block.widths)
    largest = int(batches.samples.sizes.max())
    wide = min(batches.batch_size or largest, largest)
    columns, widths = torch.arange(block.index.shape[2]), torch.tensor(block.widths)
    used = (columns < widths[:, None]).to(block.index.device).expand(block.index.shape)
    tensors = block.tensors | {"mask": used if block.mask is None else block.mask & used}
    return {k: F.pad(v, (0, wide - v.shape[2])) for k, v in tensors.items()}, [wide] * len(widths)


def _channels_last(batch: Batch) -> Batch:
    return batch._replace(x=batch.x.contiguous(memory_format=torch.channels_last)) if batch.x.dim() == 4 else batch


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, values)
