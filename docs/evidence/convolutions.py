"""Which convolutions of torch write where they may not, on a CPU: writes convolutions.json beside itself.

    python docs/evidence/convolutions.py [--isa AVX2] [--threads 1 2] [--quick]

Every convolution is computed forwards and backwards in a child process under the allocator that checks what lies around
a block when it is freed (MALLOC_CHECK_=3; since glibc 2.34 it is in libc_malloc_debug, which must be loaded first),
and in which freed memory holds NaN (MALLOC_PERTURB_=255). What a child dies of is written down, and another one goes on
behind it. Results are compared with those of float64 with its channels first, computed without oneDNN. The kernels
depend on the processor: ``--isa`` makes oneDNN use those of older ones, too.
"""

import argparse
import ctypes.util
import faulthandler
import json
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

HERE = Path(__file__).parent
GUARD = "libc_malloc_debug.so.0"
CHECKED = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "255"}
ISAS = ("ALL", "AVX512_CORE", "AVX2", "AVX", "SSE41")  # ALL: whatever this processor has
LAYOUTS = ("both", "weight", "input", "neither")  # which of them has its channels last
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
FEW = (1, 3, 4, 8, 12, 16)  # channels
TIMES = 2  # that a convolution which failed is tried alone
SECONDS = 30  # a convolution that takes longer hangs
TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 0.05}  # of the largest number of a result


NAMES = ("output", "gradient of the input", "gradient of the filters")


class Convolution(NamedTuple):
    """One convolution and its tensors; one-dimensional where the height is 0."""

    before: int  # channels of a group that go in, and come out
    after: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padded: bool = True
    groups: int = 1
    size: int = 8
    batch: int = 16
    layout: str = "both"
    dtype: str = "float32"
    clients: int = 0  # so many weights under vmap


class Setting(NamedTuple):
    """How a child computes."""

    isa: str
    threads: int


def every(quick: bool) -> Iterator[Convolution]:
    """What is tried: narrow channels with all kernels and strides, then everything else with a few channels."""
    channels = FEW if quick else (*range(1, 17), 20, 24, 32, 48, 64)
    lines, steps = ((1, 1), (3, 3), (5, 5), (1, 3), (3, 1)), ((1, 1), (2, 2), (1, 2), (2, 1))
    for before, after, kernel, stride in product(channels, (1, 2, 3, 4, 6, 8, 12, 16, 32), lines, steps):
        yield Convolution(before, after, kernel, stride)
    cases = list(product(FEW, FEW, ((1, 1), (3, 3), (5, 5)), ((1, 1), (2, 2))))
    for case in cases:
        yield from (Convolution(*case, padded=padded, layout=at) for padded in (False, True) for at in LAYOUTS)
        yield from (Convolution(*case, dtype=dtype) for dtype in ("bfloat16", "float64"))
        yield from (Convolution(*case, size=size, batch=batch) for size in (4, 7, 28, 32) for batch in (1, 3))
        if max(case[:2]) <= 8:
            yield from (Convolution(*case, groups=groups) for groups in (2, 8))
            yield from (Convolution(*case, clients=n, layout=at) for n in (1, 3) for at in ("both", "neither"))
    for groups, (kernel, stride) in product((*range(2, 17), 32), {case[2:] for case in cases}):
        yield Convolution(1, 1, kernel, stride, groups=groups)  # depthwise
    for before, after, width, step, layout in product(FEW, FEW, (1, 3, 5), (1, 2), LAYOUTS):
        yield Convolution(before, after, (0, width), (1, step), layout=layout)


def tensors(c: Convolution, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and filters, with their channels first, in double precision."""
    many = (c.clients,) if c.clients else ()
    line = c.kernel[0] == 0
    x = torch.randn(*many, c.batch, c.before * c.groups, *([c.size] * (1 if line else 2)), generator=generator)
    kernel = c.kernel[1:] if line else c.kernel
    w = torch.randn(*many, c.after * c.groups, c.before, *kernel, generator=generator)
    return x.double(), w.double()


def last(v: Tensor) -> Tensor:
    """The same numbers with their channels last."""
    images = 2 if v.dim() in (4, 5) else 1
    turned = v.movedim(-1 - images, -1).contiguous()
    return turned.movedim(-1, -1 - images)


def results(c: Convolution, x: Tensor, w: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of images and filters."""
    line = c.kernel[0] == 0
    kernel, stride = (c.kernel[1:], c.stride[1:]) if line else (c.kernel, c.stride)
    padding = tuple(k // 2 for k in kernel) if c.padded else (0,) * len(kernel)

    def loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        convolve = F.conv1d if line else F.conv2d
        y = convolve(x, w, stride=stride, padding=padding, groups=c.groups)
        return (y * y).sum(), y

    gradient = torch.func.grad(loss, argnums=(0, 1), has_aux=True)
    (gx, gw), y = (torch.vmap(gradient) if c.clients else gradient)(x, w)
    return [y, gx, gw]


def wrong(c: Convolution) -> str | None:
    """What is wrong with the numbers, if anything."""
    if c.kernel[1] > c.size:
        return None
    x, w = tensors(c, torch.Generator().manual_seed(1))
    with torch.backends.mkldnn.flags(enabled=False):
        expected = results(c, x, w)
    dtype = DTYPES[c.dtype]
    images = last(x.to(dtype)) if c.layout in ("both", "input") else x.to(dtype)
    filters = last(w.to(dtype)) if c.layout in ("both", "weight") else w.to(dtype)
    for name, found, right in zip(NAMES, results(c, images, filters), expected, strict=True):
        off = float((found.double() - right).abs().max() / right.abs().max())
        if not off < TOLERANCE[c.dtype]:
            return f"{name} off by {off:.1e}"
    return None


def child(setting: Setting, todo: Sequence[tuple[int, Convolution]], pipe: int) -> None:
    """Tells the number of each convolution before it is computed, and after it what was wrong."""
    if setting.isa != "ALL":
        os.environ["ONEDNN_MAX_CPU_ISA"] = setting.isa
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # glibc's message
    torch.set_num_threads(setting.threads)
    for number, c in todo:
        os.write(pipe, struct.pack("i", number))
        signal.alarm(SECONDS)
        text = (wrong(c) or "").encode()
        os.write(pipe, struct.pack("i", len(text)) + text)


def tried(setting: Setting, convolutions: Sequence[Convolution]) -> dict[int, str]:
    """What went wrong, by number."""
    faults: dict[int, str] = {}
    todo = list(enumerate(convolutions))
    while todo:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                child(setting, todo, writing)
            except BaseException as error:
                os.write(writing, struct.pack("i", len(str(error))) + str(error).encode())
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            at = -1
            while head := pipe.read(4):
                at = struct.unpack("i", head)[0]
                if not (length := pipe.read(4)):
                    break
                if text := pipe.read(struct.unpack("i", length)[0]).decode():
                    faults[at] = text
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status):
            faults[at] = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
        todo = [(n, c) for n, c in todo if n > at]
    return faults


def confirmed(setting: Setting, convolutions: Sequence[Convolution], faults: dict[int, str]) -> dict[int, str]:
    """Those that fail alone, too: memory that one convolution has spoilt may end its child in a later one."""
    alone = ((n, tried(setting, [convolutions[n]])) for n in faults for _ in range(TIMES))
    return {n: found[0] for n, found in alone if found}


def guarded() -> None:
    """Begins again under the allocator that checks, where this is not so yet."""
    if all(os.environ.get(k) == v for k, v in CHECKED.items()) and GUARD in os.environ.get("LD_PRELOAD", ""):
        return
    if platform.libc_ver()[0] != "glibc" or ctypes.util.find_library("c_malloc_debug") is None:
        sys.exit(f"this needs glibc 2.34 or later with {GUARD}: run it on Linux (package libc6)")
    environment = {**os.environ, **CHECKED, "LD_PRELOAD": GUARD}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> None:
    """Tries, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", nargs="+", choices=ISAS, default=ISAS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="some channels instead of all")
    parser.add_argument("--out", type=Path, default=HERE / "convolutions.json")
    typed = parser.parse_args()
    guarded()
    convolutions = list(every(typed.quick))
    found: list[dict[str, Any]] = []
    for isa, threads in product(typed.isa, typed.threads):
        setting = Setting(isa, threads)
        faults = confirmed(setting, convolutions, tried(setting, convolutions))
        print(f"{isa}, {threads} threads: {len(faults)} of {len(convolutions)} are unsafe", flush=True)
        found += [{"isa": isa, "threads": threads, **convolutions[n]._asdict(), "fault": f} for n, f in faults.items()]
    head = {"torch": torch.__version__, "tried": len(convolutions), "isa": typed.isa, "threads": typed.threads}
    lines = ",\n  ".join(map(json.dumps, found))
    typed.out.write_text(f'{{\n "settings": {json.dumps(head)},\n "unsafe": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
