"""Two machines as people set them up: ``ray start`` on each, a driver that names the head's address, a lost machine.

Both machines are processes of this one. Their home folder holds the token that Ray asks for.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from helpers_cli import DATA

pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]'")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray's clusters and what ends them are those of Linux")

ROUNDS = 25
RUN = ("dfedalt", *DATA, "--clients", "4", "--rounds", str(ROUNDS), "--seed", "1", "-q")
SMALL = ("--num-cpus", "1", "--object-store-memory", "80000000")
COMMAND = (sys.executable, "-m", "coterie", "run", *RUN)


class Machines(NamedTuple):
    """A head and a second node, and the environment that a driver on them needs."""

    address: str
    second: subprocess.Popen[str]
    environment: dict[str, str]


@contextmanager
def ray_node(environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a node, yield it once it says that it runs, and kill it."""
    command = (
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--block",
        "--disable-usage-stats",
        *options,
        *SMALL,
    )
    node = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert node.stdout is not None
        lines = list(iterate_until("Ray runtime started", node.stdout))
        assert "Ray runtime started" in lines[-1], "".join(lines)
        yield node
    finally:
        kill(node)


def iterate_until(text: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines up to the first that has a text."""
    for line in lines:
        yield line
        if text in line:
            return


def processes_below(pid: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def kill(node: subprocess.Popen[str]) -> None:
    """Kill all processes of a node at once, as a machine that loses its power does."""
    for pid in processes_below(node.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.wait()
    assert node.stdout is not None
    node.stdout.close()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes with token authentication, which Ray turns on by itself where a token lies."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("5" * 64)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment = {**kept, "HOME": str(home), "RAY_AUTH_MODE": "token"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    head = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", f"/tmp/ray-{port}")
    with ray_node(environment, *head), ray_node(environment, "--address", address) as second:
        yield Machines(address, second, environment)
    shutil.rmtree(f"/tmp/ray-{port}", ignore_errors=True)


def until(condition: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    """Wait until a driver has come so far."""
    for _ in range(6000):
        if condition():
            return
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.02)
    pytest.fail("the driver did not come so far")


@pytest.mark.hostile
def test_a_run_on_two_machines_outlives_one_of_them(machines: Machines, tmp_path: Path) -> None:
    """It ends with the models that one machine comes to."""
    where = ("--engine", "ray", "--ray-address", machines.address, "--workers", "2", "--out", "two")
    driver = subprocess.Popen((*COMMAND, *where), env=machines.environment, cwd=tmp_path, text=True, stderr=-1)
    rows = tmp_path / "two" / "metrics.jsonl"
    until(lambda: rows.exists() and len(rows.read_text().splitlines()) >= 3, driver)
    kill(machines.second)
    assert len(rows.read_text().splitlines()) < ROUNDS
    _, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err
    assert len(rows.read_text().splitlines()) == ROUNDS
    done = subprocess.run((*COMMAND, "--engine", "vectorized", "--out", "one"), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    for client in range(4):
        two, one = (
            load_file(tmp_path / run / "clients" / f"client-{client:04d}.safetensors") for run in ("two", "one")
        )
        for name, tensor in one.items():
            assert (two[name] - tensor).abs().max() <= 1e-6 * tensor.abs().max(), name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"RAY_AUTH_MODE": "disabled"},
            r"asks for token authentication: set RAY_AUTH_MODE=token, and copy ~/.ray/auth_token of its",
        ),
        ({"HOME": "/nonexistent"}, r"asks for a token, and /nonexistent/.ray/auth_token does not exist: copy"),
        ({"HOME": "other"}, r"refused the token of this machine: copy ~/.ray/auth_token of its head node"),
    ],
    ids=["no mode", "no token", "another token"],
)
def test_a_driver_without_the_token_is_told_what_to_set(
    machines: Machines, tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    where = ("--engine", "ray", "--ray-address", machines.address, "--workers", "1", "--out", "a")
    environment = {**machines.environment, **changes}
    (tmp_path / "other" / ".ray").mkdir(parents=True)
    (tmp_path / "other" / ".ray" / "auth_token").write_text("6" * 64)
    done = subprocess.run((*COMMAND, *where), env=environment, cwd=tmp_path, capture_output=True, text=True)
    check_refused(done, f"the Ray cluster at {machines.address} {sentence}")
    assert not (tmp_path / "a").exists()


def check_refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    """Hold that a command ended with one line that begins so."""
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert re.match(f"coterie: {sentence}", done.stderr)


# A program that sees no process of Ray, as on a machine that has not joined.
ELSEWHERE = """
import ray._private.services

from coterie.cli import main

ray._private.services.find_node_ids = list

main()
"""


def test_a_driver_beside_the_cluster_is_told_to_join_it(machines: Machines, tmp_path: Path) -> None:
    where = ("--engine", "ray", "--ray-address", machines.address, "--workers", "1", "--out", "a")
    command = (sys.executable, "-c", ELSEWHERE, "run", *RUN, *where)
    environment = {**machines.environment, "RAY_gcs_server_request_timeout_seconds": "5"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    join = f"run `ray start --address {machines.address}` here first"
    check_refused(done, f"this machine is not a node of the Ray cluster at {machines.address}: {join}")
    assert not (tmp_path / "a").exists()
