"""What is asked for of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterSpec:
    """Where a run is to be played."""

    address: str | None = None  # of a cluster; None: one on this machine, for this run
    workers: int | None = None  # None: as many as there are cores, or GPUs for
    gpus: float = 0.0  # for each worker
