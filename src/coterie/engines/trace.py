"""What a lifted function comes down to: plain operations on plain tensors, recorded once and run again.

Under ``vmap`` and autograd every operation passes through layers of bookkeeping, which for a small model take longer
than its arithmetic. Below them always the same operations arrive in the same order, as long as the inputs are of the
same kind. Running those is all it takes, and gives the same bits: it never matters whether something ran from a
trace.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ..core.tensors import Tree, leaves, tree_map, with_leaves
from .watch import Watch

KEPT = 128  # kinds: more than most runs have, unless a method makes new steps in every round

# What another time may do something else than was seen: it draws, or what comes next depends on values.
UNREPEATABLE = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

# A third of all operations below ``vmap``, and most of them show a tensor as it is already.
VIEWS = {getattr(torch.ops.aten, name).default for name in ("view", "_unsafe_view", "expand", "detach", "alias")}

Trace = Callable[[Sequence[Tensor]], Tree]


class TraceCache:
    """Runs functions of trees; a function that meets one kind of inputs a second time is recorded.

    The first time is not recorded: recording takes as long as a few steps of a small model, and many kinds never come
    again: clients of unequal size are sampled in every round, and each time other numbers of them run side by side.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Trace | None] = {}  # None: met once

    def run(self, f: Callable[..., Tree], name: Hashable, *given: Tree) -> Tree:
        """Return f(*given). Functions of one ``name`` do the same; all they read is given, or stays as it is."""
        kind = name, signature(given)
        if kind not in self._known:
            if len(self._known) == KEPT:
                del self._known[next(iter(self._known))]
            self._known[kind] = None
            return f(*given)
        tape = self._known[kind]
        if tape is not None:
            return tape(leaves(given))
        out, self._known[kind] = recorded(f, given)
        return out


def signature(x: Tree) -> Hashable:
    """Return the names, shapes, layouts and types of a tree: what operations may depend on beside the values."""
    if isinstance(x, dict):
        return tuple((k, signature(v)) for k, v in x.items())
    return tuple(map(signature, x)) if isinstance(x, tuple) else (x.shape, x.stride(), x.dtype)


def recorded(f: Callable[..., Tree], given: tuple[Tree, ...]) -> tuple[Tree, Trace]:
    """Return f(*given), and what does the same to other tensors of that kind: ``f`` itself if it is unrepeatable."""
    given = tree_map(lambda v: v.detach(), given)  # each by itself: what is one tensor now may be two the next time
    writer = TraceRecorder(leaves(given))
    with writer:
        out = f(*given)
    taken, made = (tree_map(lambda v: v.new_empty(0), x) for x in (given, out))  # their forms, without the memory
    if not writer.repeatable:
        return out, lambda tensors: f(*with_leaves(taken, tensors))
    play = writer.written(leaves(out))

    def tape(tensors: Sequence[Tensor]) -> Tree:
        with torch.no_grad():
            return with_leaves(made, play(*tensors))

    return out, tape


class TensorNames:
    """What a tensor is called in a trace.

    Tensors do not live longer for being known here. Nor does anything run when one dies, as with a weak dictionary: an
    interruption that came meanwhile would be lost.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[TensorWeakRef, str]] = {}

    def __setitem__(self, v: Tensor, name: str) -> None:
        self._known[id(v)] = TensorWeakRef(v), name

    def get(self, v: Tensor) -> str | None:
        """Return the name of a tensor, None for one that was never seen; one that is gone may have had the same id."""
        known, name = self._known.get(id(v), (None, None))
        return name if known is not None and known() is v else None


class Call(NamedTuple):
    """A line of a trace."""

    target: str
    text: str  # of the call
    uses: tuple[str, ...]  # the tensors in it that may be freed after it, if nobody else needs them


class TraceRecorder(Watch):
    """Writes every operation down as a line of Python; a tensor that none of them has made is a constant.

    ``torch.fx`` can do the same, but took a third of the time of a short run.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.constants: dict[str, Any] = {}  # operations, tensors, types and devices
        self.operations: dict[Any, str] = {}
        self.names = TensorNames()
        self.repeatable = True
        self.given = [f"given_{i}" for i in range(len(given))]
        for name, v in zip(self.given, given, strict=True):
            self.names[v] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation; every one passes by here."""
        self.repeatable = self.repeatable and not UNREPEATABLE.intersection(func.tags)
        uses: list[str] = []
        texts = [self._text(v, uses) for v in args] + [f"{k}={self._text(v, uses)}" for k, v in (kwargs or {}).items()]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(out, Tensor) and func in VIEWS and _same(args[0], out):
            self.names[out] = texts[0]
        elif out is None or isinstance(out, Tensor | tuple | list):  # anything else is a fact about types and shapes
            if func not in self.operations:
                self.operations[func] = self._constant(func)
            made = self._call(f"{self.operations[func]}({', '.join(texts)})", uses)
            for i, v in enumerate([] if out is None else [out] if isinstance(out, Tensor) else out):
                if isinstance(v, Tensor):
                    self.names[v] = made if v is out else self._call(f"{made}[{i}]", [made])
        return out

    def written(self, out: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """Return all of it as one function of what was given; what no later line needs is freed."""
        needed: list[str] = []
        lines = [f"return {self._text(tuple(out), needed)}"]
        later = set(needed)
        for call in reversed(self.calls):
            last = set(call.uses) - later
            lines.append("".join([f"{call.target} = {call.text}", *(f"; {name} = None" for name in last)]))
            if call.target not in later:
                lines[-1] += f"; {call.target} = None"
            later |= last
        source = "\n ".join([f"def play({', '.join(self.given)}):", *reversed(lines)])
        exec(compile(source, "<trace>", "exec"), self.constants)
        play: Callable[..., Sequence[Tensor]] = self.constants["play"]
        return play

    def _call(self, text: str, uses: Sequence[str]) -> str:
        self.calls.append(Call(f"v{len(self.calls)}", text, tuple(uses)))
        return self.calls[-1].target

    def _text(self, v: Any, uses: list[str]) -> str:
        """Return an argument as Python writes it; ``uses`` grows by the tensors in it that are not constant."""
        if type(v) is int:  # the most frequent
            return str(v)
        if isinstance(v, Tensor):
            name = self.names.get(v)
            if name is None:
                name = self.names[v] = self._constant(v)
            if name not in self.constants:
                uses.append(name)
            return name
        if isinstance(v, list | tuple):
            return f"[{', '.join([self._text(each, uses) for each in v])}]"
        return repr(v) if v is None or isinstance(v, bool | int | str) else self._constant(v)

    def _constant(self, v: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = v
        return name


def _same(v: Tensor, view: Tensor) -> bool:
    return (v.shape, v.stride(), v.storage_offset()) == (view.shape, view.stride(), view.storage_offset())
