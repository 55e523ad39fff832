"""pfl-research's side: starts one process a core, which pfl splits every cohort among."""

import os
import sys
from pathlib import Path

import work


def processes(members: int) -> int:
    """As many as there are cores, but an equal share for everybody: else pfl would mix up the cohorts we prescribe."""
    return max(n for n in range(1, (os.cpu_count() or 1) + 1) if members % n == 0)


def main() -> None:
    """Becomes the launcher that pfl's guide to fast simulations recommends."""
    n = processes(work.load(work.arguments().folder).cohorts.shape[1])
    os.environ[work.ROOT] = str(os.getpid())  # which the launcher keeps
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    side = str(Path(__file__).with_name("pfl_process.py"))
    os.execv(sys.executable, [sys.executable, *launcher, side, *sys.argv[1:]])


if __name__ == "__main__":
    main()
