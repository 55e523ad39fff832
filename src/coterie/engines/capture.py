"""Programs that run without Python: traced, compiled, and recorded with their launches."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from ..core.files import cache_folder
from .norms import LayoutKept

Body = Callable[..., Sequence[Tensor]]
"""A function of tensors that returns what becomes of the first of them."""
Play = Callable[[], object]
"""Does it once, in place."""
Build = Callable[[Body, Sequence[Tensor]], Callable[[Sequence[Tensor]], Play]]
"""A body, and tensors of the kind it will meet -> what makes a play of it over any such tensors."""

# One launch for small kernels that do not wait for each other: 3.2 instead of 3.5 ms for a step of ResNet-18. Each
# keeps block sizes of its own: with common ones the reductions among them lose more than the launches gain.
# Reductions over rows and over columns are not merged: the statistics of BatchNorm make torch 2.11 fail at that, and
# with GroupNorm a step takes as long without (3.0 ms).
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "combo_kernels": True,
    "combo_kernel_per_subkernel_blocks": True,
    "triton.mix_order_reduction": False,
}
COMPILED = "COTERIE_COMPILED"  # names the folder of compiled programs, which all runs share

WARM = 3  # plays before recording: kernels are loaded, algorithms chosen, workspaces taken


def captured(body: Body, tensors: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Play]:
    """Compile it once, and record it as a CUDA graph for every set of tensors: one launch for all its kernels."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_folder()))
    from torch._inductor.async_compile import AsyncCompile  # slow to import, and only needed here

    AsyncCompile.warm_pool()  # the compiler's processes start while the graph is traced
    with torch.no_grad(), fastest_algorithms(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's advice: what may be rounded, ``precision`` says
        program = compiled(flat(body, tensors))

    def play_over(memory: Sequence[Tensor]) -> Play:
        with torch.no_grad(), fastest_algorithms():
            return recorded(lambda: program(list(memory)))

    return play_over


def compiled(graph: fx.GraphModule) -> Callable[[list[Tensor]], object]:
    """Compile a graph of plain operations, or take it from the folder of what was compiled before.

    It goes to the second half of ``torch.compile`` at once: the first half, which makes such a graph of Python and of
    autograd, would do what is done already, and took longer than all the rest.
    """
    from torch._guards import TracingContext, tracing  # slow to import, and only needed here
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    given = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    with tracing(TracingContext(given[0].fake_mode)), config.patch(OPTIONS):
        return compile_fx_inner(graph, given, static_input_idxs=list(range(len(given))), is_inference=True)


def compiled_folder() -> Path:
    """Return the folder of the user's that holds compiled programs."""
    return Path(os.environ.get(COMPILED) or cache_folder() / "compiled")


@contextmanager
def fastest_algorithms() -> Iterator[None]:
    """Let cuDNN try its algorithms for every new shape and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def flat(body: Body, tensors: Sequence[Tensor]) -> fx.GraphModule:
    """Return one graph without any transformation left in it, however a model or a method is written.

    It writes what becomes of the first tensors into them, at its end. Nothing else in it changes a tensor.
    """
    import torch._inductor.lowering  # slow to import, and only needed here; the decomposition of pooling looks it up
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    body(*tensors)  # what is made at the first call only must not become a part of the graph
    pure = torch.func.functionalize(body, remove="mutations")
    trace = make_fx(pure, select_decomp_table(), tracing_mode="fake", _allow_non_fake_inputs=True)
    with LayoutKept():
        made: fx.GraphModule = trace(*tensors)
    written_back(made.graph)
    made.recompile()
    return made


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
    # recorded on another one would share them with what runs there.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        play()
    return graph.replay
