"""Memory that one round frees and the next one needs stays with the process in between."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

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
