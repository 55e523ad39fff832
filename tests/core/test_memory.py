"""Memory that is freed and wanted again."""

import platform
import subprocess
import sys

import pytest
import torch

from coterie.core.memory import retain_freed_memory

resource = pytest.importorskip("resource", reason="this system does not count page faults")

BLOCK = 64 * 2**20  # more than any threshold at which glibc keeps a block by itself
PAGES = BLOCK // resource.getpagesize()


def faults(blocks: int) -> int:
    """How many pages some blocks, one after another, are given by the system."""
    before: int = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(blocks):
        torch.ones(BLOCK // 4)
    after: int = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return after - before


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has these options")


@glibc
def test_a_block_is_taken_from_the_system_once() -> None:
    with retain_freed_memory():
        faults(8)  # the first few still find no room among what was there before
        assert faults(4) < PAGES / 2
    assert faults(4) >= PAGES / 2  # as before: what is freed goes back


@glibc
def test_an_error_ends_it() -> None:
    with pytest.raises(ValueError, match="inside"), retain_freed_memory():
        raise ValueError("inside")
    assert faults(4) >= PAGES / 2


AFTERWARDS = """
import resource
import torch
from coterie.core.memory import retain_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(2**22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with retain_freed_memory():
    pass
print(min(faults() for _ in range(5)))  # the first blocks grow the heap, and others may stand in the way once
"""


@glibc
def test_blocks_of_16_mib_are_kept_afterwards() -> None:
    """Glibc stops adjusting its thresholds once one is set, so they stay where the adjustment leads."""
    process = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, check=True)
    assert int(process.stdout) < 2**24 / resource.getpagesize()
