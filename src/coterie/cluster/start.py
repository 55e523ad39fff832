"""Reaching or starting a Ray cluster and its workers; whatever is wrong with it becomes one sentence."""

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import UserError
from ..core.spec import whole_number
from ..training.settings import Cluster
from .worker import Worker

PORTS = 65535  # the largest number of a port
TIMEOUT = 60.0  # seconds until a worker must have answered
IO, PING = "io", "ping"  # what a worker does beside the training: copies and checkpoints; answering that it is alive


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Yield the module ``ray``, connected to a cluster; a connection that was there before stays open."""
    ray: Any = None
    with suppress(ImportError):
        import ray
    if not hasattr(ray, "init"):  # an empty folder of that name, as Ray's own under /tmp, can be imported too
        raise UserError("the engine ray needs Ray: pip install 'coterie[ray]'")
    if ray.is_initialized():
        yield ray
        return
    with _own_signals():
        _connect(ray, cluster)
    try:
        with _unprinted():
            yield ray
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what this process does on a signal: Ray's own way out of SIGTERM is a stack of C++, and saves nothing."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say what a signal does
        yield
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in names)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def _unprinted() -> Iterator[None]:
    """Keep Ray from printing about lost workers: standard output is for results, and the coordinator says it."""
    inside, name = sys.modules["ray._private.worker"], "print_to_stdstream"
    before = getattr(inside, name, None)
    setattr(inside, name, lambda *args, **options: None)
    try:
        yield
    finally:
        setattr(inside, name, before)


def _connect(ray: Any, cluster: Cluster) -> None:
    nobody = "there is no Ray cluster {}: start one with `ray start --head`, or leave --ray-address out"
    if cluster.address not in (None, "auto") and not _listens(str(cluster.address)):
        raise UserError(nobody.format(f"at {cluster.address}"))
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    messages: list[str] = []
    try:
        if cluster.address is None:
            cores = max(cluster.workers or 1, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            with _messages_of_ray(messages):
                ray.init(address=cluster.address, **quiet)
    except ray.exceptions.AuthenticationError as error:
        raise UserError(_token_advice(cluster.address)) from error
    except ConnectionError as error:
        if any("InvalidAuthToken" in line for line in messages):
            raise UserError(_token_advice(cluster.address)) from error
        if "No node info found" in str(error.__cause__):
            raise UserError(_node_advice(str(cluster.address))) from error
        raise UserError(nobody.format("on this machine")) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        versions = "; ".join(line.strip() for line in str(error).splitlines() if "Ray:" in line or "Python:" in line)
        raise UserError(
            f"the Ray cluster runs other versions than this program ({versions}): install the same"
        ) from error


@contextmanager
def _messages_of_ray(messages: list[str]) -> Iterator[None]:
    """Collect the lines that Ray's C++ prints: a refused token is told there, and not in Ray's exception.

    Lines about a refused token are not printed, because one sentence takes their place.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            printed.seek(0)
            messages += printed.read().decode(errors="replace").splitlines()
            others = [line for line in messages if "InvalidAuthToken" not in line]
            sys.stderr.write("".join(f"{line}\n" for line in others))


def _token_advice(address: str | None) -> str:
    """Say what a cluster with token authentication needs of this machine."""
    copy = "copy ~/.ray/auth_token of its head node to the same place on this machine"
    where = "on this machine" if address in (None, "auto") else f"at {address}"
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return f"the Ray cluster {where} asks for token authentication: set RAY_AUTH_MODE=token, and {copy}"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return f"the Ray cluster {where} refused the token in RAY_AUTH_TOKEN: set that of its head node"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    problem = "refused the token of this machine" if path.is_file() else f"asks for a token, and {path} does not exist"
    return f"the Ray cluster {where} {problem}: {copy}"


def _node_advice(address: str) -> str:
    """Say what a machine needs from which Ray accepts no driver."""
    join = f"run `ray start --address {address}` here first, or start the run on one of its machines"
    return f"this machine is not a node of the Ray cluster at {address}: {join}"


def check_running() -> None:
    """Refuse to go on where a process of the cluster that was started here has ended: Ray would end this one, too."""
    node = getattr(sys.modules["ray._private.worker"], "_global_node", None)
    for name, _ in node.dead_processes() if node is not None else ():
        raise UserError(
            f"Ray's own process {name} has ended, and its cluster with it: go on from the last checkpoint with --resume"
        )


def _listens(address: str) -> bool:
    """Return whether anybody listens at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    number = whole_number(port)
    if not host or number is None or number > PORTS:
        raise UserError(f"--ray-address {address} is no address: write auto, or HOST:PORT as `ray start` prints it")
    try:
        with socket.create_connection((host, number), timeout=10):
            return True
    except (OSError, UnicodeError):  # the second: no name of a machine
        return False


class WorkerHandle(NamedTuple):
    """A worker and the machine it is on."""

    actor: Any
    node: str
    process: int


def workers_for(ray: Any, cluster: Cluster, clients: int) -> list[WorkerHandle]:
    """Start as many workers as are wanted, or as fit, and never more than there are clients."""
    resources = ray.cluster_resources()
    cores, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    fitting = max(1, int(min(cores, gpus / cluster.gpus_per_worker) if cluster.gpus_per_worker else cores))
    count = min(clients, cluster.workers or fitting)
    for has, kind, need, option in (
        (gpus, "GPUs", cluster.gpus_per_worker * count, "--workers or --gpus-per-worker"),
        (cores, "cores", float(count), "--workers"),
    ):
        if need > has:
            raise UserError(f"{count} workers need {need:g} {kind}, the cluster has {has:g}: lower {option}")
    return start_workers(ray, cluster, count)


def start_workers(ray: Any, cluster: Cluster, count: int) -> list[WorkerHandle]:
    """Start ``count`` new workers."""
    return check_versions(ray, [actor_class(ray, cluster).remote(sys.path) for _ in range(count)])


def actor_class(ray: Any, cluster: Cluster) -> Any:
    """Return what Ray starts: a worker that copies, writes checkpoints and answers pings while it trains.

    Ray does not restart a lost worker: the new one would know nothing of its clients.
    """
    beside = {IO: 1, PING: 1}
    return ray.remote(num_cpus=1, num_gpus=cluster.gpus_per_worker, max_restarts=0, concurrency_groups=beside)(Worker)


def check_versions(ray: Any, actors: list[Any]) -> list[WorkerHandle]:
    """Wait until all workers have answered; refuse those that run another version."""
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
    return [WorkerHandle(actor, about.node, about.process) for actor, about in zip(actors, answers, strict=True)]


def _answers(ray: Any, asked: list[Any]) -> list[Any]:
    _, late = ray.wait(asked, num_returns=len(asked), timeout=TIMEOUT)
    if late:
        raise UserError(
            f"{len(late)} of {len(asked)} workers did not start within {TIMEOUT:g} s: free cores or memory of the "
            "cluster, or lower --workers"
        )
    try:
        found: list[Any] = ray.get(asked)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"a worker cannot start ({reason}): install coterie on every machine of the cluster") from error
    return found
