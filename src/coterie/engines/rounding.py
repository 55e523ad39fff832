"""Whether a GPU rounds what it multiplies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..core.process_wide import ProcessWide


@ProcessWide
@contextmanager
def rounded(tf32: bool) -> Iterator[None]:
    """Let a GPU round the factors of single-precision products to 10 bits (TF32) meanwhile, or not.

    Torch has newer switches for that, and older ones. It raises where somebody reads an older one that does not agree
    with the newer ones, as its compiler may do, or a model that turns cuDNN off for a while. So both kinds are turned.
    """
    backends: Any = torch.backends  # torch's types do not know all switches
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    switches = (matmul, cudnn.conv, cudnn.rnn)
    before = [each.fp32_precision for each in switches]
    for each in switches:
        each.fp32_precision = "ieee"
    # What is on disagrees now.
    older = [_said(partial(getattr, each, "allow_tf32")) is None for each in (matmul, cudnn)]
    medium = _said(torch.get_float32_matmul_precision) == "medium"
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    for each in switches:
        each.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = older
        if medium:  # the older switch of products has a third position, which is one of products on a CPU as well
            on_cpu = backends.mkldnn.matmul.fp32_precision
            torch.set_float32_matmul_precision("medium")
            _put_back(backends.mkldnn.matmul, on_cpu)
        for each, value in zip(switches, before, strict=True):
            _put_back(each, value)


def _said(switch: Callable[[], Any]) -> Any:
    """Return the position of an older switch; None if it does not agree with the newer ones."""
    try:
        return switch()
    except RuntimeError:
        return None


def _put_back(switch: Any, value: str) -> None:
    """Let a newer switch have its value again; it follows the switches for several operations, if they have it."""
    switch.fp32_precision = "none"
    if switch.fp32_precision != value:
        switch.fp32_precision = value
