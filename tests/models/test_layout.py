"""No engine computes a convolution that writes over the memory of others; data and modules bring no layout along."""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie as ct
import narrow
from coterie.engines import Serial
from toys import experiment, play

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "widths",
    [
        "narrow",
        pytest.param("all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(0)]),
    ],
)
def test_every_model_at_every_width_keeps_its_memory(widths: str) -> None:
    """The allocator of a process checks the ends of every block, with the kernels that are unsafe.

    The exhaustive form runs the large models at all widths, too.
    """
    checked = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "255", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    if ctypes.util.find_library("c_malloc_debug"):  # glibc 2.34 took the checks out of its allocator
        checked["LD_PRELOAD"] = "libc_malloc_debug.so.0"
    order = [sys.executable, str(ROOT / "tests" / "support" / "narrow.py"), widths]
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests/support"))
    environment = {**os.environ, **checked, "PYTHONPATH": paths}
    limit = None if widths == "all" else 250  # seconds: spoilt memory may also end in a lock nobody lets go of
    done = subprocess.run(order, env=environment, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 unsafe\n")


def pointwise() -> nn.Sequential:
    torch.manual_seed(0)
    strided = nn.Conv2d(4, 8, 1, stride=2)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), strided, nn.Flatten(), nn.Linear(32, 4))


def test_the_watch_sees_what_is_unsafe() -> None:
    """Plain torch with channels last computes the very convolution, so the watch would tell."""
    module = pointwise().to(memory_format=torch.channels_last)
    with narrow.Watch() as watch:
        torch.autograd.grad(module(torch.randn(2, 3, 8, 8)).sum(), list(module.parameters()))
    assert [c.filters for c in watch.seen if c.unsafe] == [(8, 4, 1, 1)]


def test_layouts_of_data_and_modules_stay_outside() -> None:
    """Images stored as [N, H, W, C] and a module with its channels last: every engine sees channels first."""
    x, y = torch.randn(16, 8, 8, 3).permute(0, 3, 1, 2), torch.arange(16) % 4
    fed = ct.data.from_tensors([(x[:8], y[:8]), (x[8:], y[8:])], [(x, y), (x, y)])
    assert fed.x.is_contiguous()
    assert torch.equal(fed.x, x)
    algorithm = ct.algorithms.fedavg(epochs=1, batch_size=8, participation=1.0)
    for engine in narrow.engines():
        with narrow.Watch() as watch:
            play(experiment(pointwise().to(memory_format=torch.channels_last), fed, algorithm, engine), 1)
        assert len(watch.seen) == 2
        assert not any(c.last for c in watch.seen), engine.name


def test_wide_models_still_have_their_channels_last() -> None:
    fed = narrow.federation(8)
    with narrow.Watch() as watch:
        algorithm = ct.algorithms.fedavg(epochs=1, batch_size=8, participation=1.0)
        play(experiment(ct.models.build("resnet8-gn", fed), fed, algorithm, Serial()), 1)
    assert {c.last for c in watch.seen if c.filters[1] > 1} == {True}
