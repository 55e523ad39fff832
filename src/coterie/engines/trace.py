"""What a lifted function comes down to: plain operations on plain tensors, recorded once and run again.

Under ``vmap`` and autograd every operation passes through layers of bookkeeping, which for a small model take longer
than its arithmetic. Below them always the same operations arrive in the same order, as long as the inputs are of the
same kind. Running those is all it takes, and gives the same bits: it never matters whether something ran from a
trace.
"""

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
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


class TensorIds:
    """Which node has made a tensor.

    Tensors do not live longer for being known here. Nor does anything run when one dies, as with a weak dictionary: an
    interruption that came meanwhile would be lost.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[TensorWeakRef, Any]] = {}

    def __setitem__(self, v: Tensor, node: Any) -> None:
        self._known[id(v)] = TensorWeakRef(v), node

    def get(self, v: Tensor) -> Any:
        """Return the node of a tensor, None for one that was never seen; one that is gone may have had the same id."""
        known, node = self._known.get(id(v), (None, None))
        return node if known is not None and known() is v else None


class TraceRecorder(Watch):
    """Records every operation as it happens; a tensor that none of them has made is a constant."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self.nodes = TensorIds()
        self.repeatable = True
        for i, v in enumerate(given):
            self.nodes[v] = self.graph.placeholder(f"given_{i}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation; every one passes by here."""
        self.repeatable = self.repeatable and not UNREPEATABLE.intersection(func.tags)
        given = map_aggregate(args, self._node), map_aggregate(kwargs or {}, self._node)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(out, Tensor):
            idle = func in VIEWS and _same(args[0], out)
            self.nodes[out] = given[0][0] if idle else self.graph.call_function(func, *given)
        elif out is None or isinstance(out, tuple | list):  # anything else is a fact about types and shapes
            call = self.graph.call_function(func, *given)
            for i, v in enumerate(out or ()):
                if isinstance(v, Tensor):
                    self.nodes[v] = self.graph.call_function(operator.getitem, (call, i))
        return out

    def written(self, out: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """Return all of it as one function of what was given."""
        self.graph.output(tuple(map(self._node, out)))
        return fx.GraphModule(self.constants, self.graph).forward

    def _node(self, v: Any) -> Any:
        if not isinstance(v, Tensor):
            return v
        node = self.nodes.get(v)
        if node is None:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = v
            node = self.nodes[v] = self.graph.get_attr(name)
        return node


def _same(v: Tensor, view: Tensor) -> bool:
    return (v.shape, v.stride(), v.storage_offset()) == (view.shape, view.stride(), view.storage_offset())
