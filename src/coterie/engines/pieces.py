"""A large graph as several smaller ones, which are compiled at the same time and run one after another.

What one piece makes and a later one reads goes through memory, which takes time in every step. So a piece computes
again what it needs from before wherever that moves fewer bytes: the input of a normalization in single precision, for
one, of the product in half precision that it comes from. Within one program the compiler does the same.
"""

import operator
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

Program = Callable[[list[Tensor]], Sequence[Tensor]]
"""Takes a list of tensors, which it may empty, and may write into them; returns others that it makes."""

SIZE = 400  # operations other than views: a process compiles as many in about eight seconds
aten, prims = torch.ops.aten, torch.ops.prims
# A graph is cut before one of these, or after the last: what goes into a product lies in memory in any case.
PRODUCTS = frozenset(
    getattr(aten, name).default for name in ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm")
)
# What torch does not call pointwise, but computes each number by itself.
POINTWISE = frozenset(
    (prims.convert_element_type.default, prims.iota.default, aten.full.default, aten.scalar_tensor.default)
)


class Piece(NamedTuple):
    """Some operations of a graph: the values they read and the values they make for later pieces, by name."""

    module: fx.GraphModule
    reads: list[str]
    makes: list[str]


def cut(whole: fx.GraphModule, size: int = SIZE) -> list[Piece]:
    """Cut a graph into pieces of about this many operations, views not counted."""
    home = _homes(whole.graph, size)
    remade = _remade(whole.graph)
    needs = [_needs(whole.graph, home, remade, number) for number in range(1 + max(home.values()))]
    pieces = []
    for number, (reads, does) in enumerate(needs):
        later = set[fx.Node]().union(*(reads for reads, _ in needs[number + 1 :]))
        pieces.append(_piece(whole, reads, does, [v for v in does if home[v] == number and v in later]))
    return pieces


def in_turn(whole: fx.GraphModule, pieces: Sequence[Piece], programs: Sequence[Program]) -> Program:
    """Return a program of the whole graph that runs those of its pieces."""
    given = [v.name for v in whole.graph.nodes if v.op == "placeholder"]
    last = {name: number for number, piece in enumerate(pieces) for name in piece.reads}

    def run(tensors: list[Tensor]) -> Sequence[Tensor]:
        values = dict(zip(given, tensors, strict=True))
        for number, (piece, program) in enumerate(zip(pieces, programs, strict=True)):
            values |= zip(piece.makes, program([values[name] for name in piece.reads]), strict=True)
            for name in piece.reads:
                if last[name] == number:  # its memory is free for what comes
                    del values[name]
        return ()

    return run


def is_view(v: fx.Node) -> bool:
    """Tell whether a value shows another one, or a constant, and costs nothing."""
    return v.op == "get_attr" or (v.op == "call_function" and getattr(v.target, "is_view", False))


def _homes(graph: fx.Graph, size: int) -> dict[fx.Node, int]:
    """Return the number of the piece of every operation; -1 for inputs, which are there before the first."""
    operations = [v for v in graph.nodes if v.op not in ("placeholder", "output")]
    products = [i for i, v in enumerate(operations) if v.target in PRODUCTS]
    work = [0]  # operations before each place, views not counted
    for v in operations:
        work.append(work[-1] + (not is_view(v) and v.target is not operator.getitem))
    starts = set[int]()
    parts = max(1, round(work[-1] / size))
    for part in range(1, parts if products else 1):
        places = [*products, products[-1] + 1]
        starts.add(min(places, key=lambda i: abs(work[i] - part * work[-1] / parts)))
    begun, home = sorted(starts), {v: -1 for v in graph.nodes if v.op == "placeholder"}
    for i, v in enumerate(operations):
        # One of several results is taken where they are made.
        home[v] = home[v.args[0]] if v.target is operator.getitem else bisect(begun, i)
    return home


def _remade(graph: fx.Graph) -> set[fx.Node]:
    """Return the values that a later piece makes again, since it reads fewer bytes for that than if it read them."""
    remade, price = set[fx.Node](), dict[fx.Node, float]()
    for v in graph.nodes:
        several = not isinstance(v.meta.get("val"), Tensor)
        size = float("inf") if several else v.meta["val"].numel() * v.meta["val"].element_size()
        in_memory = not _one_by_one(v) or any(user.target in PRODUCTS for user in v.users)
        price[v] = size if in_memory else 2 * size  # else somebody has to write it first
        again = sum(price[a] for a in v.all_input_nodes)
        if _one_by_one(v) and again <= price[v]:
            price[v] = again
            remade.add(v)
    return remade


def _one_by_one(v: fx.Node) -> bool:
    """Tell whether a value is a view or a constant, or each of its numbers comes of a few others."""
    if v.op != "call_function" or v.target is operator.getitem:
        return v.op == "get_attr"
    return is_view(v) or v.target in POINTWISE or torch.Tag.pointwise in getattr(v.target, "tags", ())


def _needs(
    graph: fx.Graph, home: dict[fx.Node, int], remade: set[fx.Node], number: int
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return what a piece reads and what it does, its own operations and those of others, in their order."""
    reads, todo = set[fx.Node](), [v for v in home if home[v] == number]
    does = set(todo)
    while todo:
        for a in todo.pop().all_input_nodes:
            if home[a] != number and a not in remade:
                reads.add(a)
            elif a not in does:
                does.add(a)
                todo.append(a)
    return [v for v in graph.nodes if v in reads], [v for v in graph.nodes if v in does]


def _piece(whole: fx.GraphModule, reads: list[fx.Node], does: list[fx.Node], makes: list[fx.Node]) -> Piece:
    graph, mine = fx.Graph(), dict[fx.Node, fx.Node]()
    for v in reads:
        mine[v] = graph.placeholder(v.name)
        mine[v].meta = {"val": v.meta["val"]}
    for v in does:
        mine[v] = graph.node_copy(v, mine.__getitem__)
    output = graph.output(tuple(mine[v] for v in makes))
    output.meta["user_visible_output_idxs"] = list(range(len(makes)))  # the next piece counts on their strides
    return Piece(fx.GraphModule(whole, graph), [v.name for v in reads], [v.name for v in makes])
