"""A large graph as several smaller ones, which are compiled at the same time and run one after another."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

Program = Callable[[list[Tensor]], Sequence[Tensor]]
"""Takes a list of tensors, which it may empty, and returns tensors."""

SIZE = 500  # operations, from which on a piece may end: about a quarter of a step of ResNet-18
# A graph is cut before one of these: what goes into a product lies in memory in any case, so nothing that would have
# been computed in one go is torn apart.
PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm")
)


class Piece(NamedTuple):
    """Some operations of a graph: the values they read and the values they make for later pieces, by name."""

    module: fx.GraphModule
    reads: list[str]
    makes: list[str]


def cut(whole: fx.GraphModule, size: int = SIZE) -> list[Piece]:
    """Cut a graph into pieces of about this many operations."""
    home = _homes(whole.graph, size)
    reads = [_reads(whole.graph, home, number) for number in range(1 + max(home.values(), default=0))]
    read_later = [set[fx.Node]().union(*reads[number + 1 :]) for number in range(len(reads))]
    return [
        _piece(whole, home, number, reads[number], [v for v in whole.graph.nodes if v in later and home[v] == number])
        for number, later in enumerate(read_later)
    ]


def in_turn(whole: fx.GraphModule, pieces: Sequence[Piece], programs: Sequence[Program]) -> Callable[..., None]:
    """Return a function of the tensors of the whole graph that runs a program for each of its pieces."""
    given = [node.name for node in whole.graph.nodes if node.op == "placeholder"]
    last = {name: number for number, piece in enumerate(pieces) for name in piece.reads}

    def run(*tensors: Tensor) -> None:
        values = dict(zip(given, tensors, strict=True))
        for number, (piece, program) in enumerate(zip(pieces, programs, strict=True)):
            made = program([values[name] for name in piece.reads])
            values |= dict(zip(piece.makes, made, strict=True))
            for name in piece.reads:
                if last[name] == number:  # its memory is free for what comes
                    del values[name]

    return run


def is_free(node: fx.Node) -> bool:
    """Whether a value costs nothing: a view or a constant. Each piece has its own, so that none shows another's."""
    if node.op == "call_function" and node.target is operator.getitem:
        return is_free(node.args[0])  # type: ignore[arg-type]
    return node.op == "get_attr" or (node.op == "call_function" and getattr(node.target, "is_view", False))


def _homes(graph: fx.Graph, size: int) -> dict[fx.Node, int]:
    """Return the number of the piece of every operation; the inputs come before the first."""
    home, number, count = dict[fx.Node, int](), 0, 0
    for node in graph.nodes:
        if node.op == "placeholder":
            home[node] = -1
        elif node.op == "call_function" and not is_free(node):
            if count >= size and node.target in PRODUCTS:
                number, count = number + 1, 0
            # One of several results is taken where they are made.
            home[node] = home[node.args[0]] if node.target is operator.getitem else number
            count += 1
    return home


def _reads(graph: fx.Graph, home: dict[fx.Node, int], number: int) -> set[fx.Node]:
    """Return what a piece needs from before it."""
    found, todo = set[fx.Node](), [v for v in graph.nodes if home.get(v) == number]
    seen = set(todo)
    while todo:
        for v in todo.pop().all_input_nodes:
            if v in home and home[v] != number:
                found.add(v)
            elif v not in seen:
                seen.add(v)
                todo.append(v)
    return found


def _piece(
    whole: fx.GraphModule, home: dict[fx.Node, int], number: int, reads: set[fx.Node], makes: list[fx.Node]
) -> Piece:
    graph, mine = fx.Graph(), dict[fx.Node, fx.Node]()
    given = [v for v in whole.graph.nodes if v in reads]
    for v in given:
        mine[v] = graph.placeholder(v.name)
        mine[v].meta = {"val": v.meta["val"]}

    def copied(node: fx.Node) -> fx.Node:
        for v in _missing(node, mine):
            mine[v] = graph.node_copy(v, mine.__getitem__)
        return mine[node]

    for v in whole.graph.nodes:
        if home.get(v) == number:
            copied(v)
    output = graph.output(tuple(mine[v] for v in makes))
    output.meta["user_visible_output_idxs"] = list(range(len(makes)))  # the next piece counts on their strides
    return Piece(fx.GraphModule(whole, graph), [v.name for v in given], [v.name for v in makes])


def _missing(node: fx.Node, known: dict[fx.Node, Any]) -> Iterator[fx.Node]:
    """Yield an operation after all that it needs and that is not known yet."""
    if node not in known:
        for v in node.all_input_nodes:
            yield from _missing(v, known)
        if node not in known:
            yield node
