"""Programs that run without Python: traced, compiled, and recorded with their launches."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .norms import LayoutKept

Body = Callable[..., None]
Build = Callable[[Body, Sequence[Tensor]], Callable[[], object]]
"""A function that changes some of its tensors in place, and these tensors -> what does it to them once."""

# One launch for small kernels that do not wait for each other: 3.2 instead of 3.5 ms for a step of ResNet-18. Each
# keeps block sizes of its own: with common ones the reductions among them lose more than the launches gain.
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "combo_kernels": True,
    "combo_kernel_per_subkernel_blocks": True,
}

WARM = 3  # plays before recording: kernels are loaded, algorithms chosen, workspaces taken


def captured(body: Body, tensors: Sequence[Tensor]) -> Callable[[], object]:
    """Compile it, and record it as a CUDA graph: one launch for all its kernels."""
    with torch.no_grad(), fastest_algorithms(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's advice: what may be rounded, ``precision`` says
        program = torch.compile(flat(body, tensors), fullgraph=True, dynamic=False, options=OPTIONS)
        return recorded(lambda: program(*tensors))


@contextmanager
def fastest_algorithms() -> Iterator[None]:
    """Let cuDNN try its algorithms for every new shape and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def flat(body: Body, tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Return one graph without any transformation left in it, however a model or a method is written."""
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import, and only needed here

    body(*tensors)  # what is made at the first call only must not become a part of the graph
    with LayoutKept():
        return make_fx(body)(*tensors)


def recorded(play: Callable[[], object]) -> Callable[[], object]:
    """Record a CUDA graph of something that always works on the same memory."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            play()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a checkpoint may be under way in another thread
        play()
    return graph.replay
