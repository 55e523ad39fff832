"""How much memory there is, the refusal of what would not fit into it, and memory that is freed and needed again."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UserError
from .spec import scaled

UNTOLD = 4 * 2**30  # bytes that are taken as free where the system does not say
UNLIMITED = 2**60  # what control groups of version 1 have where nothing is limited is more than this


def check_fits(need: float, what: str, fix: str, how: str = "") -> None:
    """Refuse what would take more bytes than are free, before anything of it is made; ``how``: "at least "."""
    free = free_memory()
    if need > free:
        raise UserError(
            f"{what} would take {how}{scaled(need, 'B')} of memory, and {scaled(free, 'B')} are free: {fix}"
        )


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take: of the machine, of its control groups, of its own limit.

    root: the folder in which ``proc`` and ``sys`` are.
    """
    return max(0, min([_of_machine(root), *_of_groups(root), *_of_process(root)]))


def _of_machine(root: Path) -> int:
    with suppress(OSError, StopIteration, ValueError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    if sys.platform == "win32":
        return UNTOLD
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_groups(root: Path) -> Iterator[int]:
    """Yield what is left in each control group around this process; a container has at least one with a limit."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                base = root / "sys/fs/cgroup" / ("" if number == "0" else "memory")
                # A container may see the name that its group has outside: then only the last of these folders is there.
                within = base / name.lstrip("/")
                yield from map(_left, (within, *(p for p in within.parents if p.is_relative_to(base))))


def _left(group: Path) -> int:
    """Return the bytes that a control group has left; those of files that may be dropped at any time are free."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # of the other version, or "max"
            most = int((group / limit).read_text())
            counted = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            cache = next((int(number) for name, number in counted if name == cached), 0)
            return most - int((group / used).read_text()) + cache
    return UNLIMITED


def _of_process(root: Path) -> Iterator[int]:
    """Yield what the limit on a process's addresses leaves, where there is one (``ulimit -v``)."""
    if sys.platform != "win32":
        import resource  # which Windows has not

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            with suppress(OSError, ValueError, IndexError):
                taken = int((root / "proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
                yield most - taken


# The names and numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER = -1
LARGEST_THRESHOLD = 32 * 2**20  # where glibc's own adjustment ends
MAPPINGS = 65536  # as many as it allows by default


@contextmanager
def retain_freed_memory() -> Iterator[None]:
    """Keep freed memory for what comes next, and give it back to the system at the end.

    glibc takes every block of more than 32 MB from the system and gives it back at once. The stacked state of many
    clients is such a block, made anew in every step, and the system clears it page by page: at 10,000 logistic
    regressions that was three quarters of a round. Elsewhere than with glibc nothing happens.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        # An option that was once set is no longer adjusted: it is left where the adjustment would have led.
        libc.mallopt(M_MMAP_MAX, MAPPINGS)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_THRESHOLD)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
