"""The Ray cluster that a run asks for."""

from dataclasses import dataclass

from ..core.annotations import NonNegative, PositiveInt
from ..core.arguments import checked_class
from ..core.errors import UserError
from ..core.spec import parse

RAY = "ray"


@checked_class("class")
@dataclass(frozen=True)
class Cluster:
    """Where ``engine="ray"`` trains the clients.

    Args:
        workers: How many processes; as many as there are cores, or GPUs for, unless it is given.
        address: The cluster's address, "auto" for the one of this machine; a new one is started unless it is given.
        gpus_per_worker: How many GPUs each worker has; fractions share one.
    """

    workers: PositiveInt | None = None
    address: str | None = None
    gpus_per_worker: NonNegative = 0.0


def check_cluster(engine: str, given: Cluster | None) -> Cluster | None:
    """Return the cluster of a run, None if it trains in this process; refuse one that the engine has no use for."""
    if parse(engine).name == RAY:
        return given or Cluster()
    if given is not None:
        options = {
            "--workers": given.workers,
            "--ray-address": given.address,
            "--gpus-per-worker": given.gpus_per_worker or None,
        }
        option = next((name for name, value in options.items() if value is not None), "cluster")
        raise UserError(f"{option} is for a Ray cluster: add --engine ray, or leave it out")
    return None
