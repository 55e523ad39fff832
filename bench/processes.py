"""Running one side in a fresh process, with everything that it starts."""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from environments import UnavailableError, last_line
from work import family, running

LIMIT = 1800  # seconds: a side that takes longer hangs
LOOK = 0.05  # seconds between two looks at the memory


def play(
    command: Sequence[str | Path], env: dict[str, str], folder: Path, rounds: int, watched: bool
) -> dict[str, Any]:
    """What a side reports, with its start-up seconds, and its peak memory where it is watched.

    Looking takes a moment of every process, so that a watched run is not for timing.
    """
    report, said = folder / "report.json", folder / "said.txt"
    report.unlink(missing_ok=True)
    began = time.time()
    with said.open("w") as out:
        side = subprocess.Popen(
            [*command, folder, report, str(rounds)], env=env, stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
        try:
            peak = _wait(side, watched)
        finally:
            _end(side)
    if side.returncode or not report.is_file():
        raise UnavailableError(
            f"it ended with status {side.returncode} ({last_line(said.read_text(errors='replace'))})"
        )
    facts: dict[str, Any] = json.loads(report.read_text())
    if not math.isfinite(facts["test_loss"]):
        raise UnavailableError(f"its test loss is {facts['test_loss']}")
    return {**facts, "start_up": facts.pop("first_round_ended") - began, "peak_memory": peak}


def _wait(side: subprocess.Popen[bytes], watched: bool) -> int | None:
    """Waits for the end; the most memory that was seen, in bytes."""
    until, peak = time.monotonic() + LIMIT, 0
    while side.poll() is None:
        if time.monotonic() > until:
            raise UnavailableError(f"it did not end within {LIMIT} seconds")
        if watched:
            peak = max(peak, sum(map(resident, family(side.pid, running()))))
        time.sleep(LOOK)
    return peak or None


def _end(side: subprocess.Popen[bytes]) -> None:
    """Leaves nothing behind, whatever happened."""
    for pid in family(side.pid, running()) if side.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    side.wait()


def resident(pid: int) -> int:
    """The bytes a process holds, of shared pages its share: else Ray's shared memory would count once a process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
