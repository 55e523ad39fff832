"""One step compiled and captured once, then replayed for every batch of every client.

A GPU waits for Python between the kernels of a small step, and for memory between those of a large one. So a step is
traced into one graph over memory of its own, compiled, and recorded with its launches; after that a client costs a copy
in, one replay per batch, and a copy out.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.tensors import Integers, Tensors, Tree, aligned, leaves, pick, rows, to_device, tree_map, with_leaves
from ..data.batches import Batch, Batches, Samples
from .base import Grad, InMemory, Objective, Step
from .capture import Build, Play, PlayOver, Wanted, captured
from .lanes import Lanes
from .serial import Serial, may_be_last
from .vectorized import Gradient, Vectorized, lift, paced, write


class Graphed(InMemory):
    """Clients one after another, or ``chunk`` at a time side by side, through a program that is built once.

    Batches are padded to one width, so that one program does for all. ``exact``: only batches of equal width share
    one, where padding would change the result. ``lanes``: how many chunks are under way at a time, each on a stream
    and in memory of its own: where one leaves a part of the GPU idle, another one fills it.
    """

    def __init__(self, chunk: int, exact: bool, device: torch.device, build: Build = captured, lanes: int = 1) -> None:
        self.chunk, self.exact, self.device, self.build = chunk, exact, device, build
        self.lanes = Lanes(lanes, device)
        self._once = Vectorized(chunk, exact, device) if chunk > 1 else Serial(device)
        self._programs: dict[Hashable, list[RecordedStep]] = {}
        self._built = 0
        self._rehearsed: dict[Hashable, Rehearsed] | None = None  # while a round is rehearsed

    @property
    def name(self) -> str:
        """The text that chooses this engine again, chunk included: rounding may depend on it."""
        return f"graphed:{self.chunk}"

    def map(self, f: Callable[..., Tree], *clients: Tree | Batches, keys: Sequence[int]) -> Tree:
        """Run ``f`` on every client, as it is: what happens once per round is not worth a program."""
        return self._once.map(f, *clients, keys=keys)

    def gradient(self, objective: Objective) -> Grad:
        """Differentiate as the vectorized engine does, in a way that can be traced and lifted."""
        return Gradient(objective)

    def scan(self, step: Step, given: Tree, fixed: Tree, batches: Batches, keys: Sequence[int]) -> Tree:
        """Run ``step`` through all batches of every client, one replay per batch."""
        if self._rehearsed is not None:
            return self._rehearsal(step, given, fixed, batches, len(keys), self._rehearsed)
        together: Tree = None
        chunks = list(self._chunks(batches, self.exact and not step.independent))
        common = all(v.stride(0) == 0 for v in leaves(fixed))
        programs: dict[int, RecordedStep] = {}  # by lane
        stacked: tuple[Tensor, ...] = ()  # what is fixed, in the programs' order
        with self.lanes:
            for turn, (who, members, drawn, widths) in enumerate(chunks):
                with self.lanes.turn(turn) as lane:
                    carry = over(self.chunk, step.begin)(pick(given, who))
                    loaded = common and lane in programs
                    if lane not in programs:
                        programs[lane] = self._program(lane, step, carry, pick(fixed, who), batches.samples)
                        stacked = tuple(aligned(programs[lane].fixed, fixed))
                    if not loaded:
                        programs[lane].load(step.rates, pick(stacked, who))
                    done = programs[lane].run(carry, drawn, widths, paced(step, len(widths), programs[lane].rates))
                    part = rows(over(self.chunk, step.end)(done), slice(members))
                if together is None:  # on the stream of those who will read it
                    together = tree_map(lambda v: v.new_empty(len(keys), *v.shape[1:]), part)
                with self.lanes.turn(turn):
                    write(together, who[:members], part)
        return together

    def _chunks(self, batches: Batches, exact: bool) -> Iterator[tuple[Integers, int, Tensors, list[int]]]:
        """Yield the places of some clients, how many they are, which samples they draw, and the widths of the steps.

        A last, smaller chunk is filled up with its own clients.
        """
        for group in groups(batches, exact):
            drawn, widths = all_steps(batches, group, exact)
            for first in range(0, len(group), self.chunk):
                some = np.arange(first, min(first + self.chunk, len(group)))
                full = np.resize(some, self.chunk)
                yield group[full], len(some), pick(drawn, full), widths

    def rehearse(self, play: Callable[[], object]) -> None:
        """Build all programs of a round together, before it; ``play`` goes through it, and nobody takes a step."""
        self._rehearsed = rehearsed = dict[Hashable, Rehearsed]()
        try:
            play()
        finally:
            self._rehearsed = None
        made = self._build([one.wanted for one in rehearsed.values()]) if rehearsed else []
        for one, play_over in zip(rehearsed.values(), made, strict=True):
            one.built[one.shape] = play_over

    def _rehearsal(
        self,
        step: Step,
        given: Tree,
        fixed: Tree,
        batches: Batches,
        clients: int,
        rehearsed: "dict[Hashable, Rehearsed]",
    ) -> Tree:
        """Note the programs that are wanted; return results of the right shapes, as if all clients were the first."""
        chunks = list(self._chunks(batches, self.exact and not step.independent))
        if not chunks:
            return None
        carry = over(self.chunk, step.begin)(pick(given, chunks[0][0]))
        program = self._program(0, step, carry, pick(fixed, chunks[0][0]), batches.samples)
        for batch in (b for _, _, drawn, widths in chunks for b in each_step(drawn, widths)):
            shape = shapes(batch)
            if shape not in program.built and (id(program), shape) not in rehearsed:
                rehearsed[id(program), shape] = Rehearsed(program.built, shape, program.wanted(batch)[1])
        done = over(self.chunk, step.end)(carry)
        return tree_map(lambda v: v[:1].expand(clients, *v.shape[1:]), done)

    def _program(self, lane: int, step: Step, carry: Tree, fixed: Tree, samples: Samples) -> "RecordedStep":
        timeless = step.at([0.0] * len(step.rates))
        kinds = tuple((v.shape, v.dtype) for v in leaves((carry, fixed)))
        key = (timeless, kinds, id(samples.x), id(samples.y), samples.transform)
        lanes = self._programs.setdefault(key, [])
        if lanes:  # what was built goes by the order of its tensors, and a later call may list the names in another one
            first = lanes[0].carry, lanes[0].fixed
            carry, fixed = with_leaves(first, aligned(first, (carry, fixed)))
        while len(lanes) <= lane:
            built = lanes[0].built if lanes else {}
            lanes.append(RecordedStep(step, carry, fixed, samples, self.chunk, self._build, built))
        return lanes[lane]

    def _build(self, wanted: Sequence[Wanted]) -> list[PlayOver]:
        """Build programs, and tell of each."""
        before, self._built = self._built, self._built + len(wanted)

        def begun(number: int) -> None:
            if self.on_build is not None:
                self.on_build(before + number, self._built)

        return self.build(wanted, begun)


class Rehearsed(NamedTuple):
    """A program that a rehearsal has found, and the place where it will be looked for."""

    built: dict[Hashable, PlayOver]
    shape: Hashable
    wanted: Wanted


def over(chunk: int, f: Callable[..., Tree]) -> Callable[..., Tree]:
    """Lift ``f`` over a chunk; one client alone runs as it is, without the grouped convolutions of ``vmap``."""
    if chunk > 1:
        return lambda *stacked: lift(f, *stacked)
    return lambda *stacked: tree_map(lambda v: v[None], f(*(rows(s, 0) for s in stacked)))


class RecordedStep:
    """A step over memory of its own: what is loaded into it is carried through the batches that follow.

    ``built``: by the shape of a batch, what was built before for memory of the same kind.
    """

    def __init__(
        self,
        step: Step,
        carry: Tree,
        fixed: Tree,
        samples: Samples,
        chunk: int,
        build: Callable[[Sequence[Wanted]], list[PlayOver]],
        built: dict[Hashable, PlayOver],
    ) -> None:
        self.step, self.samples, self.chunk, self.build, self.built = step, samples, chunk, build, built
        self.last = chunk == 1 and may_be_last(leaves((carry, fixed)))  # the channels, of one client alone
        self.carry, self.fixed = tree_map(self._own, carry), tree_map(self._own, fixed)
        kind = next(v.dtype for v in leaves((carry, fixed)) if v.is_floating_point())
        self.rates = torch.tensor(step.rates, dtype=kind, device=samples.y.device)
        self._plays: dict[Hashable, tuple[Tensors, Play]] = {}

    def load(self, rates: Sequence[float | Tensor], fixed: Sequence[Tensor]) -> None:
        """Load what stays as it is through all batches; ``fixed``: in the order of the tree of that name."""
        if len(rates):
            self.rates.copy_(torch.tensor(rates, dtype=self.rates.dtype), non_blocking=True)
        copy(leaves(self.fixed), fixed)

    def run(self, carry: Tree, drawn: Tensors, widths: Sequence[int], rates: Tensor | None) -> Tree:
        """Carry clients through all their batches, at rates by step if any; what comes out is overwritten."""
        self._copy(self.carry, carry)
        for k, batch in enumerate(each_step(drawn, widths)):
            if rates is not None:
                self.rates.copy_(rates[k])
            shape = shapes(batch)
            if shape not in self._plays:
                self._plays[shape] = self._first(shape, batch)
            seen, replay = self._plays[shape]
            self._copy(seen, batch)
            replay()
        return self.carry

    @staticmethod
    def _copy(own: Tree, values: Tree) -> None:
        copy(leaves(own), aligned(own, values))

    def wanted(self, batch: Tensors) -> tuple[Tensors, Wanted]:
        """Return memory for batches of this shape, and the step over it as a program that is wanted.

        The program of one client alone sees its tensors without the dimension of clients: fewer operations to trace.
        """
        drawn = tree_map(self._own, batch)
        own: Tree = (self.carry, self.fixed, drawn)
        memory = (*(rows(own, 0) if self.chunk == 1 else own), self.rates, self.samples.x, self.samples.y)

        def body(*tensors: Tensor) -> list[Tensor]:
            carry, fixed, drawn, rates, x, y = with_leaves(memory, tensors)
            samples, step = replace(self.samples, x=x, y=y), self.step.at(rates.unbind())

            def one(carry: Tree, fixed: Tree, drawn: Tensors) -> Tree:
                batch = samples.batch(**drawn)
                return step(carry, fixed, _channels_last(batch) if self.last else batch)

            new = one(carry, fixed, drawn) if self.chunk == 1 else lift(one, carry, fixed, drawn)
            return aligned(carry, new)  # in the order of what it takes the place of

        return drawn, Wanted(body, leaves(memory))

    def _first(self, shape: Hashable, batch: Tensors) -> tuple[Tensors, Play]:
        """Return memory for batches of this shape and a play over it; making it plays, so the carry is put back."""
        before, (drawn, wanted) = tree_map(self._own, self.carry), self.wanted(batch)
        if shape not in self.built:
            (self.built[shape],) = self.build([wanted])
        replay = self.built[shape](wanted.tensors)
        self._copy(self.carry, before)
        return drawn, replay

    def _own(self, v: Tensor) -> Tensor:
        """Copy into memory of its own. Where one client runs alone, its images and filters have their channels last."""
        if self.last and v.dim() == 5:
            return v[0].detach().clone(memory_format=torch.channels_last)[None]
        return v.detach().clone(memory_format=torch.contiguous_format)


def copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors; filters by themselves.

    A GPU copies many tensors at a launch, unless one of them is laid out otherwise than where it goes, as filters are:
    then all of them go one by one.
    """
    for filters in (False, True):
        pairs = [(a, b) for a, b in zip(into, values, strict=True) if (a.dim() == 5) is filters]
        if pairs:
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def each_step(drawn: Tensors, widths: Sequence[int]) -> Iterator[Tensors]:
    """Yield what is drawn for each step."""
    for k, width in enumerate(widths):
        yield {name: v[:, k, :width] for name, v in drawn.items()}


def shapes(batch: Tensors) -> Hashable:
    """Return the names and shapes of tensors."""
    return tuple((name, v.shape) for name, v in batch.items())


def groups(batches: Batches, exact: bool) -> list[Integers]:
    """Group the clients that make equally many steps, most steps first; ``exact``: of equally many samples each."""
    kinds = np.stack([batches.steps, batches.sizes if exact else np.zeros_like(batches.sizes)])
    return [np.flatnonzero((kind == kinds.T).all(1)) for kind in np.unique(kinds, axis=1).T[::-1]]


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
    used = to_device(columns < widths[:, None], block.index.device).expand(block.index.shape)
    tensors = block.tensors | {"mask": used if block.mask is None else block.mask & used}
    return {k: F.pad(v, (0, wide - v.shape[2])) for k, v in tensors.items()}, [wide] * len(widths)


def _channels_last(batch: Batch) -> Batch:
    def last(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    return batch._replace(x=tree_map(last, batch.x))
