"""Reaching a Ray cluster, or starting one here; whatever is wrong with it becomes one sentence."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..core.errors import UserError
from ..training.cluster import Cluster
from .worker import Worker

PATIENCE = 60.0  # seconds until a worker must have answered
IO, PING = "aside", "door"  # what a worker does beside the training: copies and checkpoints; saying that it is there


@contextmanager
def connected(wanted: Cluster) -> Iterator[Any]:
    """The module ``ray``, with a cluster behind it; one that was there already stays."""
    ray = _ray()
    mine = not ray.is_initialized()
    if not mine:
        yield ray
        return
    _connect(ray, wanted)
    try:
        with _unprinted():
            yield ray
    finally:
        ray.shutdown()


@contextmanager
def _unprinted() -> Iterator[None]:
    """Ray prints what it hears of lost workers to the standard output, which is for results: here it is one line."""
    inside, name = sys.modules["ray._private.worker"], "print_to_stdstream"
    before = getattr(inside, name, None)
    setattr(inside, name, lambda *args, **options: None)
    try:
        yield
    finally:
        setattr(inside, name, before)


def _ray() -> Any:
    found: Any = None
    with suppress(ImportError):
        import ray as found
    if not hasattr(found, "init"):  # an empty folder of that name, as Ray's own under /tmp, can be imported too
        raise UserError("the engine ray needs Ray: pip install 'coterie[ray]'")
    return found


def _connect(ray: Any, wanted: Cluster) -> None:
    if wanted.address not in (None, "auto") and not _heard(str(wanted.address)):
        raise UserError(_nobody(f"at {wanted.address}"))
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        if wanted.address is None:
            cores = max(wanted.workers or 1, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cores, **quiet)
        else:
            ray.init(address=wanted.address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise UserError(_nobody("on this machine")) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise UserError(
            f"the Ray cluster runs other versions than this program ({_differing(str(error))}): install the same"
        ) from error


def _nobody(where: str) -> str:
    return f"there is no Ray cluster {where}: start one with `ray start --head`, or leave --ray-address out"


def _heard(address: str) -> bool:
    """Whether anybody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--ray-address {address} is no address: write auto, or HOST:PORT as `ray start` prints it")
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            return True
    except OSError:
        return False


def _differing(text: str) -> str:
    """The versions in Ray's own words, in one line."""
    return "; ".join(line.strip() for line in text.splitlines() if "Ray:" in line or "Python:" in line)


class WorkerHandle(NamedTuple):
    """A worker and the machine it is on."""

    actor: Any
    node: str


def workers(ray: Any, wanted: Cluster, clients: int) -> list[WorkerHandle]:
    """As many as are wanted, and never more than there are clients."""
    count = min(clients, wanted.workers or _room(ray, wanted))
    _check_room(ray, wanted, count)
    return start_workers(ray, wanted, count)


def start_workers(ray: Any, wanted: Cluster, count: int) -> list[WorkerHandle]:
    """New workers."""
    return check_versions(ray, [kind(ray, wanted).remote(sys.path) for _ in range(count)])


def kind(ray: Any, wanted: Cluster) -> Any:
    """What Ray starts. Copies and checkpoints are made aside while the training goes on, and someone is at the door.

    A lost worker is not started again by Ray: it would know nothing of its clients.
    """
    beside = {IO: 1, PING: 1}
    return ray.remote(num_cpus=1, num_gpus=wanted.gpus_per_worker, max_restarts=0, concurrency_groups=beside)(Worker)


def check_versions(ray: Any, actors: list[Any]) -> list[WorkerHandle]:
    """Workers that have all answered; refuses those that run another version."""
    try:
        answers = _answers(ray, [actor.about.remote() for actor in actors])
    except UserError:
        for actor in actors:
            ray.kill(actor)
        raise
    mine = Worker().about()
    for about in answers:
        if about.versions != mine.versions:
            there, here = (", ".join(f"{k} {v}" for k, v in each.versions.items()) for each in (about, mine))
            raise UserError(f"a worker has {there}, this program {here}: install the same on every machine")
    return [WorkerHandle(actor, about.node) for actor, about in zip(actors, answers, strict=True)]


def _answers(ray: Any, asked: list[Any]) -> list[Any]:
    _, late = ray.wait(asked, num_returns=len(asked), timeout=PATIENCE)
    if late:
        raise UserError(
            f"{len(late)} of {len(asked)} workers did not start within {PATIENCE:g} s: free cores or memory of the "
            "cluster, or lower --workers"
        )
    try:
        found: list[Any] = ray.get(asked)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
        raise UserError(f"a worker cannot start ({said}): install coterie on every machine of the cluster") from error
    return found


def _room(ray: Any, wanted: Cluster) -> int:
    """How many workers fit."""
    there = ray.cluster_resources()
    cores = int(there.get("CPU", 0))
    return max(1, min(cores, int(there.get("GPU", 0) / wanted.gpus_per_worker)) if wanted.gpus_per_worker else cores)


def _check_room(ray: Any, wanted: Cluster, count: int) -> None:
    there = ray.cluster_resources()
    for name, kind, need, option in (
        ("GPU", "GPUs", wanted.gpus_per_worker * count, "--workers or --gpus-per-worker"),
        ("CPU", "cores", float(count), "--workers"),
    ):
        has = there.get(name, 0.0)
        if need > has:
            raise UserError(f"{count} workers need {need:g} {kind}, the cluster has {has:g}: lower {option}")
