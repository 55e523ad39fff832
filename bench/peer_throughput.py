"""How fast a peer exchanges models with its neighbors over loopback with mutual TLS 1.3, and in how much memory.

Every neighbor is a process of its own. In a round the peer sends its model to each and gets one of each; the neighbors
do not exchange any among themselves. What the peer receives is checked as a run checks it. ``--idle`` measures instead
what heartbeats alone take of a core.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import torch

from coterie.net.certificates.authority import Authority
from coterie.net.wire.message import Announced, Header, Outgoing, open_message
from coterie.net.wire.tls import Credentials, client_context, server_context
from coterie.net.wire.transport import Beat, Transport


class Folder:
    """Takes every message, and keeps none."""

    def __init__(self, folder: Path, announced: Announced) -> None:
        self.folder, self.announced = folder, announced
        self.taken = threading.Semaphore(0)

    def admit(self, header: Header, size: int) -> Path:
        return self.folder / f"{header.sender}.part"

    def take(self, header: Header, path: Path) -> None:
        open_message(path, self.announced)
        path.unlink()
        self.taken.release()


class Member:
    """One peer: its transport, and a model to send."""

    def __init__(self, me: str, ports: dict[str, int], folder: Path, megabytes: float) -> None:
        model = {f"layer{i}": torch.randn(int(megabytes * 1e6 / 4 / 20)) for i in range(20)}
        self.me, self.model = me, model
        own = folder / f"inbox-{me}"
        own.mkdir()
        self.inbox = Folder(own, {name: (v.dtype, tuple(v.shape)) for name, v in model.items()})
        self.transport = Transport(
            me,
            {name: ("127.0.0.1", port) for name, port in ports.items()},
            ("127.0.0.1", ports[me]),
            receiver=self.inbox,
            beat=lambda: Beat(0, "waiting", time.time(), "bench"),
            hello=dict,
            on_event=lambda event, **fields: None,
            server_tls=server_context(credentials(folder, me), lambda reason: None),
            client_tls=client_context(credentials(folder, me)),
        )
        self.transport.start()

    def exchange(self, neighbors: list[str], round: int) -> float:
        """Send the model to all, wait for theirs, and return the seconds that it took."""
        acknowledged = threading.Semaphore(0)
        message = Outgoing(Header("bench", "bench", "copy", round, 0, self.me), self.model)
        begun = time.perf_counter()
        for name in neighbors:
            self.transport.post(name, message, lambda to, outcome: acknowledged.release())
        for _ in neighbors:
            acknowledged.acquire()
            self.inbox.taken.acquire()
        return time.perf_counter() - begun


def credentials(folder: Path, name: str) -> Credentials:
    """Return what a member shows and trusts, of the authority in a folder."""
    return Credentials(
        folder / "authority.pem", folder / f"{name}.pem", folder / f"{name}.key", folder / "revoked.pem", name
    )


def neighbor(me: str, ports: dict[str, int], folder: Path, megabytes: float, commands: Pipe) -> None:
    """Exchange a model with the peer whenever it says so."""
    torch.set_num_threads(1)
    member = Member(me, {name: ports[name] for name in (me, "peer")}, folder, megabytes)
    commands.send("ready")
    while (round := commands.recv()) is not None:
        member.exchange(["peer"], round)
    member.transport.close()


def memory(field: str) -> int:
    """Return the memory that this process has (VmRSS), or the most that it has had (VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def measure(member: Member, pipes: dict[str, Pipe], rounds: int, megabytes: float) -> None:
    """Run rounds, and print how fast each was and how much memory all of them have taken."""
    before, speeds = memory("VmRSS"), []
    for round in range(rounds + 1):
        for pipe in pipes.values():
            pipe.send(round)
        used = sum(os.times()[:2])
        seconds = member.exchange(list(pipes), round)
        speed, cores = 2 * len(pipes) * megabytes / seconds, (sum(os.times()[:2]) - used) / seconds
        speeds.append(speed)
        print(f"round {round}: {speed:.0f} MB/s in and out together, {cores:.2f} cores in this process", flush=True)
    more = (memory("VmHWM") - before) / (megabytes * 1e6)
    print(f"median without round 0: {statistics.median(speeds[1:]):.0f} MB/s")
    print(f"peak memory: {more:.2f} times the message on top of the model")


def measure_idle(seconds: float) -> None:
    """Print what heartbeats take of a core."""
    time.sleep(3)  # until everybody has found everybody
    used = sum(os.times()[:2])
    time.sleep(seconds)
    print(f"idle: {100 * (sum(os.times()[:2]) - used) / seconds:.2f} % of a core over {seconds:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--neighbors", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=45, help="size of the model")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--idle", type=float, default=0, help="measure so many idle seconds instead")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = [f"neighbor{i}" for i in range(chosen.neighbors)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        authority = Authority.create(folder)
        for name in ["peer", *names]:
            authority.issue(name)
        sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ["peer", *names]}
        ports = {name: s.getsockname()[1] for name, s in sockets.items()}
        for s in sockets.values():
            s.close()
        context = multiprocessing.get_context("spawn")
        ends = {name: context.Pipe() for name in names}
        processes = [
            context.Process(target=neighbor, args=(name, ports, folder, chosen.megabytes, ends[name][1]))
            for name in names
        ]
        for process in processes:
            process.start()
        member = Member("peer", ports, folder, chosen.megabytes)
        pipes = {name: ours for name, (ours, _) in ends.items()}
        for pipe in pipes.values():
            pipe.recv()
        if chosen.idle:
            measure_idle(chosen.idle)
        else:
            measure(member, pipes, chosen.rounds, chosen.megabytes)
        for pipe in pipes.values():
            pipe.send(None)
        for process in processes:
            process.join()
        member.transport.close()


if __name__ == "__main__":
    main()
