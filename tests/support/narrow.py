"""Train models at narrow widths on all engines in a process whose memory is checked.

Run it as ``python tests/support/narrow.py [narrow | all]``.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import coterie as ct
from coterie.core.tensors import SIMD_WIDTH
from coterie.engines import Engine, Serial, Vectorized
from coterie.engines.graphed import Graphed
from toys import experiment, in_place, play

CPU = torch.device("cpu")
RATES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
SMALL = ("small-cnn", "cnn", "resnet8-bn", "resnet8-gn:groups=1")
LARGE = ("resnet18-bn", "resnet18-gn:groups=1", "vgg11-gn:groups=1")
METHODS: dict[str, dict[str, Any]] = {
    "heterofl": {"capacities": "b4-b1"},
    "fedlmt": {"keep_layers": 1, "rank_ratio": 0.1},
    "flanc": {"capacities": "b4-b2"},
}
COMMON = {"epochs": 1, "batch_size": 8, "participation": 1.0}


class Convolved(NamedTuple):
    """A convolution that was computed."""

    filters: tuple[int, ...]
    stride: tuple[int, ...]
    last: bool  # whether its images or its filters have their channels last

    @property
    def unsafe(self) -> bool:
        """The kind that writes over the memory of others where there is no AVX-512, with a margin."""
        pointwise = self.filters[2:] == (1, 1) and set(self.stride) != {1}
        return self.last and pointwise and 1 < self.filters[1] < SIMD_WIDTH


class Watch(TorchDispatchMode):
    """Writes down every convolution that is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Convolved] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes by here."""
        if func is torch.ops.aten.convolution_backward.default:
            _, images, filters, _, stride = args[:5]
            self.seen.add(Convolved(tuple(filters.shape), tuple(stride), any(map(is_last, (images, filters)))))
        return func(*args, **(kwargs or {}))


def is_last(v: Tensor) -> bool:
    """Whether torch takes these images or filters for having their channels last."""
    return v.dim() == 4 and not v.is_contiguous() and v.is_contiguous(memory_format=torch.channels_last)


def engines() -> Iterator[Engine]:
    """All that run on a CPU; the graphed one plays its steps as they are."""
    yield Serial()
    yield Vectorized(1, True, CPU, True)
    yield Vectorized(2, True, CPU)
    yield Graphed(1, True, CPU, in_place)


def federation(side: int) -> ct.data.Federation:
    """Two clients with 8 images each."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 1, side, side, generator=generator), torch.arange(16) % 4
    return ct.data.from_tensors([(x[:8], y[:8]), (x[8:], y[8:])], [(x, y), (x, y)])


def runs(everything: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Model, method, settings."""
    for rate in RATES:
        for name in SMALL + (LARGE if everything or rate < 1 / 8 else ()):
            yield f"{name}{',' if ':' in name else ':'}rate={rate}", "fedavg", {}
    for method, settings in METHODS.items():
        for name in ("resnet8-bn", "resnet18-bn") if everything else ("resnet8-bn",):
            yield name, method, settings


def main(everything: bool) -> int:
    """How many convolutions are unsafe; each is printed with whoever computed it."""
    found = total = 0
    for name, method, settings in runs(everything):
        fed = federation(32 if "vgg" in name else 16 if method == "fedavg" else 8)
        for engine in engines():
            algorithm = ct.algorithms.build(method, **COMMON, **settings)
            with Watch() as watch:
                play(experiment(ct.models.build(name, fed), fed, algorithm, engine), 1)
            unsafe = [c for c in watch.seen if c.unsafe]
            found, total = found + len(unsafe), total + len(watch.seen)
            for c in unsafe:
                print(f"{name}, {method}, {engine.name}: {c}")
    print(f"{total} convolutions, {found} unsafe")
    return found


if __name__ == "__main__":
    sys.exit(main("all" in sys.argv) > 0)
