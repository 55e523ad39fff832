"""Programs that run without Python: traced, compiled, and recorded with their launches."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn

from ..core.process_wide import ProcessWide
from .compiler import Compiler, bytecode_kept, gpu_to_itself, zeros_for
from .norms import IN_PLAIN_OPERATIONS, LayoutKept
from .pieces import Program

Body = Callable[..., Sequence[Tensor]]
"""A function of tensors that returns what becomes of the first of them."""
Play = Callable[[], object]
"""Does it once, in place."""
PlayOver = Callable[[Sequence[Tensor]], Play]
"""Makes a play of a program over any tensors of the kind it was built for."""


class Wanted(NamedTuple):
    """A program that is wanted."""

    body: Body
    tensors: Sequence[Tensor]  # of the kind it will meet


Build = Callable[[Sequence[Wanted], Callable[[int], object]], list[PlayOver]]
"""Builds programs, and tells the number of each, from 1, when it begins with it."""

Call = tuple[Callable[..., object], list[Callable[[], Any]]]
"""A function, and what makes the values that it is given."""

CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
WARM = 3  # plays before recording: kernels are loaded, algorithms chosen, workspaces taken


def captured(wanted: Sequence[Wanted], begun: Callable[[int], object]) -> list[PlayOver]:
    """Compile each once, and record it as a CUDA graph for every set of tensors: one launch for all its kernels."""
    with torch.no_grad(), no_collection(), bytecode_kept(), Compiler() as compiler:
        for body, tensors in wanted:
            compiler.expect(tensors)
            with algorithms_apart():
                body(*tensors)  # what is made at the first call only must not become a part of a graph
        from torch._inductor.codecache import torch_key  # slow to import, and not for two threads at a time

        meanwhile = ThreadPoolExecutor(1)
        try:
            with fastest_algorithms():
                constants: list[list[Tensor]] = []  # of each program
                doing: list[Future[Any]] = [meanwhile.submit(torch_key)]  # it reads all sources of the compiler
                for number, (body, tensors) in enumerate(wanted, 1):
                    begun(number)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # the tracer's advice is for those who call it
                        graph = flat(body, tensors)
                        constants.append(lifted(graph))
                    doing.append(meanwhile.submit(convolve, convolutions(graph)))
                    compiler.begin(graph)
                programs = compiler.programs()
                for each in doing:
                    each.result()
            return [partial(played, *each) for each in zip(programs, constants, strict=True)]
        finally:
            meanwhile.shutdown(cancel_futures=True)


def convolutions(graph: fx.GraphModule) -> list[Call]:
    """Return the convolutions of a graph, and what makes the values that they are given."""

    def value(v: Any) -> Callable[[], Any]:
        return zeros_for(v.meta["val"]) if isinstance(v, fx.Node) else lambda: v

    return [(v.target, [value(a) for a in v.args]) for v in graph.graph.nodes if v.target in CONVOLUTIONS]


def convolve(calls: Sequence[Call]) -> None:
    """Run convolutions over zeros: cuDNN tries its algorithms and loads kernels, for which a recording would wait.

    That takes a second, and six for the first time on a machine. What it finds belongs to this thread: a recording
    tries them once more, where nothing else is under way. Where memory does not suffice, all is left to the recording.
    """
    with torch.no_grad(), gpu_to_itself(), suppress(torch.cuda.OutOfMemoryError):
        for convolution, given in calls:
            convolution(*(make() for make in given))


@ProcessWide
@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no unreachable cycles meanwhile: a quarter of the time that importing the compiler and tracing take."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def played(program: Program, constants: Sequence[Tensor], memory: Sequence[Tensor]) -> Play:
    """Record a compiled program over these tensors."""
    with torch.no_grad(), fastest_algorithms():
        return recorded(lambda: program([*memory, *constants]))


@contextmanager
def turned_on(switch: Literal["benchmark", "deterministic"]) -> Iterator[None]:
    """Turn a switch of cuDNN on, and put it back."""
    before = getattr(torch.backends.cudnn, switch)
    setattr(torch.backends.cudnn, switch, True)
    try:
        yield
    finally:
        setattr(torch.backends.cudnn, switch, before)


@ProcessWide
@contextmanager
def fastest_algorithms() -> Iterator[None]:
    """Let cuDNN try its algorithms for every new shape and keep the fastest."""
    with turned_on("benchmark"):
        yield


@ProcessWide
@contextmanager
def algorithms_apart() -> Iterator[None]:
    """Let cuDNN choose algorithms that no recording will take.

    It keeps what a thread uses for a shape at first, tried or only guessed. What is guessed for a plain call must not
    be what a program is recorded with. It keeps deterministic algorithms apart from others.
    """
    with turned_on("deterministic"):
        yield


def flat(body: Body, tensors: Sequence[Tensor]) -> fx.GraphModule:
    """Return one graph without any transformation left in it, however a model or a method is written.

    It writes what becomes of the first tensors into them, at its end. Nothing else in it changes a tensor.
    """
    import torch._inductor.lowering  # slow to import, and only needed here; the decomposition of pooling looks it up
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental.proxy_tensor import make_fx

    pure = torch.func.functionalize(body, remove="mutations")
    known = {**select_decomp_table(), **IN_PLAIN_OPERATIONS}
    trace = make_fx(pure, known, tracing_mode="fake", _allow_non_fake_inputs=True)
    with LayoutKept(), _use_lazy_graph_module(True):  # as a rule its pieces alone become code
        made: fx.GraphModule = trace(*tensors)
    written_back(made.graph)
    made.recompile()
    return made


def lifted(graph: fx.GraphModule) -> list[Tensor]:
    """Let a graph take the frozen weights that it reads as its last inputs, and return them.

    They stay where they are. As a part of the graph they would be hashed, and written for the compiler's processes.
    """
    reads = [v for v in graph.graph.nodes if v.op == "get_attr"]
    weights = [v for v in reads if isinstance(getattr(graph, str(v.target)), nn.Parameter)]
    after = [v for v in graph.graph.nodes if v.op == "placeholder"][-1]
    for read in weights:
        with graph.graph.inserting_after(after):
            after = graph.graph.placeholder(read.name)
        after.meta = read.meta
        read.replace_all_uses_with(after)
        graph.graph.erase_node(read)
    graph.recompile()
    return [getattr(graph, str(v.target)).detach() for v in weights]


def written_back(graph: fx.Graph) -> None:
    """Let a graph write its outputs into its first inputs."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    new: Any = output.args[0]
    with graph.inserting_before(output):
        # What only hands another input on is copied before that one is written.
        new = [
            v if shown(v) in (None, old) else graph.call_function(torch.ops.aten.clone.default, (v,))
            for old, v in zip(given, new, strict=False)
        ]
        for old, v in zip(given, new, strict=False):
            v.meta.setdefault("val", old.meta["val"])
            if shown(v) is not old:
                graph.call_function(torch.ops.aten.copy_.default, (old, v)).meta["val"] = old.meta["val"]
    output.args = ((),)
    graph.eliminate_dead_code()


def shown(node: fx.Node) -> fx.Node | None:
    """Return the input that a value shows, unless it is something new."""
    while node.op == "call_function" and getattr(node.target, "is_view", False):
        node = node.args[0]  # type: ignore[assignment]
    return node if node.op == "placeholder" else None


def recorded(play: Play) -> Play:
    """Record a CUDA graph of something that always works on the same memory, on the stream where it will run."""
    stream = torch.cuda.current_stream()
    for _ in range(WARM):
        play()
    graph = torch.cuda.CUDAGraph()
    # A checkpoint may be under way in another thread. Workspaces of libraries belong to a stream: a program that was
    # recorded on another one would share them with what runs there. A collection that came upon an old program
    # meanwhile would free its memory, and a recording does not survive that.
    with no_collection(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        play()
    return graph.replay
