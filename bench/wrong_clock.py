"""A clock that is wrong for one process alone, for Python and for OpenSSL: a library that is loaded before libc."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

AHEAD = "CLOCK_AHEAD"  # seconds, in the environment of a process
LIBRARY = "CLOCK_LIBRARY"  # where the library is
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
long clock_ahead = 0; /* seconds */
__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CLOCK_AHEAD");
    if (text) clock_ahead = atol(text);
}
int clock_gettime(clockid_t which, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(which, out);
    if (!status && which == CLOCK_REALTIME) out->tv_sec += clock_ahead;
    return status;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


def clock_library(folder: Path) -> Path | None:
    """The library, compiled into a folder; None where there is no compiler, or no Linux."""
    compiler, path = shutil.which("cc"), folder / "clock.so"
    if compiler is None or sys.platform != "linux":
        return None
    path.with_suffix(".c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, path.with_suffix(".c"), "-ldl"], check=True)
    return path


def with_clock(library: Path | None, ahead: int = 0) -> dict[str, str]:
    """What the environment of a process needs; it may set its clock later, too."""
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), LIBRARY: str(library), AHEAD: str(ahead)}


def set_own_clock(ahead: int) -> None:
    """Put the clock of this process forward, which was started ``with_clock``."""
    ctypes.c_long.in_dll(ctypes.CDLL(os.environ[LIBRARY]), "clock_ahead").value = ahead
