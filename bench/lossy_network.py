"""A network of namespaces on one machine, whose links lose, delay and cut packets as they are told to.

Every member has a network namespace with a TUN device, and one thread here carries all packets between the devices: the
kernel of each side runs its own TCP, so a loss is a real one, and a cut link is silent. This needs root, the command ip
and /dev/net/tun, and nothing of the kernel that few have (netem, nftables).
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from types import TracebackType

NAMESPACES, TUN = Path("/var/run/netns"), Path("/dev/net/tun")
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000
PORT = 7443
LARGEST = 65536  # bytes of a packet


def unavailable() -> str | None:
    """Say why this machine can have no such network; None: it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (package iproute2)"
    if not TUN.exists():
        return f"there is no {TUN}"
    name = f"coterie-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"no network namespace can be made here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open("rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")


@dataclass(frozen=True)
class Link:
    """What becomes of a packet between two members."""

    open: bool = True
    loss: float = 0.0  # the share of packets that vanish
    delay: float = 0.0  # seconds, each way


class LossyNetwork:
    """The namespaces of some members, and the links between them; use it in a ``with`` statement."""

    def __init__(self, members: Sequence[str], seed: int = 0) -> None:
        self.members, self.random = list(members), random.Random(seed)
        self.namespaces = {name: f"coterie-{os.getpid()}-{i}" for i, name in enumerate(members)}
        self.hosts = {name: f"10.77.0.{i + 1}" for i, name in enumerate(members)}
        self.links: dict[frozenset[str], Link] = {}
        self.devices: dict[int, str] = {}  # by file descriptor
        self._closing, self._wake = os.pipe()
        self._carrying: threading.Thread | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """Where every member listens."""
        return {name: f"{host}:{PORT}" for name, host in self.hosts.items()}

    def __enter__(self) -> "LossyNetwork":
        try:
            for name in self.members:
                self.devices[self._device(name)] = name
        except BaseException:
            self._remove()
            raise
        self._carrying = threading.Thread(target=self._carry, name="lossy-network", daemon=True)
        self._carrying.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._wake)
        if self._carrying is not None:
            self._carrying.join()
        self._remove()

    def _device(self, name: str) -> int:
        """Make the namespace of a member, and return the file of its device."""
        namespace = self.namespaces[name]
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        made: list[int] = []

        def open_there() -> None:
            enter(namespace)
            file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
            made.append(file)

        thread = threading.Thread(target=open_there)  # a namespace is a thread's own
        thread.start()
        thread.join()
        for words in (["link", "set", "lo", "up"], ["addr", "add", f"{self.hosts[name]}/24", "dev", "tun0"],
                      ["link", "set", "tun0", "up"]):  # fmt: skip
            subprocess.run(["ip", "-n", namespace, *words], check=True)
        return made[0]

    def _remove(self) -> None:
        for file in self.devices:
            os.close(file)
        os.close(self._closing)
        for namespace in self.namespaces.values():
            if (NAMESPACES / namespace).exists():
                subprocess.run(["ip", "netns", "del", namespace], check=True)

    def set(self, pairs: Iterable[Iterable[str]], link: Link) -> None:
        """Change some links."""
        self.links = self.links | {frozenset(pair): link for pair in pairs}

    def set_all(self, link: Link) -> None:
        """Change all links."""
        self.set(combinations(self.members, 2), link)

    def split(self, half: Iterable[str]) -> None:
        """Cut all links between some members and the others."""
        inside = set(half)
        self.set(((a, b) for a in inside for b in self.members if b not in inside), Link(open=False))

    def _carry(self) -> None:
        """Carry packets until this is closed."""
        waiting: list[tuple[float, int, int, bytes]] = []
        numbers, poll = count(), select.poll()
        by_address = {bytes(map(int, self.hosts[name].split("."))): (file, name) for file, name in self.devices.items()}
        for file in (*self.devices, self._closing):
            poll.register(file, select.POLLIN)
        while True:
            pause = max(0.0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
            ready = [file for file, _ in poll.poll(pause)]
            if self._closing in ready:
                return
            for file in ready:
                for packet in _packets(file):
                    there = by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    link = self.links.get(frozenset((self.devices[file], there[1])), Link()) if there else None
                    if there and link and link.open and self.random.random() >= link.loss:
                        heapq.heappush(waiting, (time.monotonic() + link.delay, next(numbers), there[0], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, file, packet = heapq.heappop(waiting)
                with suppress(OSError):  # a device whose queue is full drops it, as networks do
                    os.write(file, packet)


def _packets(file: int, most: int = 64) -> Iterable[bytes]:
    """What a device has to send, some of it at a time."""
    for _ in range(most):
        try:
            yield os.read(file, LARGEST)
        except OSError:
            return
