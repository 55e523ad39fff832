"""Peers in processes of their own, forked from one that has imported everything, each under its own circumstances."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pytest

from forks import ENVIRONMENT, ForkServer, serve
from lossy_network import enter
from wrong_clock import clock_library, set_own_clock, with_clock

# Every limit of Timing is short, so that a cut of two seconds is longer than all of them.
TIMING = {
    "heartbeat": 0.2,
    "alive": 1.0,
    "beat": 0.8,
    "connect": 3.0,
    "stalled": 3.0,
    "answer": 6.0,
    "longest_pause": 0.5,
}


class Circumstances(NamedTuple):
    """What a process meets."""

    namespace: str | None = None  # the network that it is in
    pause: float = 0.0  # seconds that the training of a round takes longer
    clock: int = 0  # seconds that its clock is ahead, in Python and in OpenSSL alike
    timing: dict[str, float] = TIMING
    arguments: tuple[str, ...] = ()  # more of the command line


class RunningPeer:
    """``coterie peer --config FILE`` under way."""

    def __init__(self, server: "PeerServer", pid: int, log: Path) -> None:
        self.server, self.pid, self.log = server, pid, log
        self.status: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once, and waits until it is gone."""
        if self.status is None:
            self.send(signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Its exit status."""
        if self.status is None:
            self.status = self.server.ask({"wait": self.pid})
        return self.status

    @property
    def said(self) -> str:
        """What it has written to the terminal."""
        return self.log.with_suffix(".err").read_text()


class PeerServer(ForkServer):
    """A process that forks peers; use it in a ``with`` statement."""

    def __init__(self) -> None:
        super().__init__(__file__)
        self.started: list[RunningPeer] = []
        self.clock = clock_library(Path(self.logs.name))

    @property
    def environment(self) -> Mapping[str, str]:
        own = {"OMP_WAIT_POLICY": "passive", "PYTHONPATH": os.pathsep.join(sys.path)}
        return {**ENVIRONMENT, **own, **with_clock(self.clock)}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()
        super().__exit__(kind, error, trace)

    def start(self, config: Path, **circumstances: Any) -> RunningPeer:
        """Starts a peer."""
        log = Path(self.logs.name) / str(len(self.started))
        met = Circumstances(**circumstances)
        if met.clock and self.clock is None:
            pytest.skip("there is no C compiler for a clock of one's own")
        pid = self.ask({"config": str(config), "log": str(log), "circumstances": met._asdict()})
        self.started.append(RunningPeer(self, pid, log))
        return self.started[-1]

    def end_all(self) -> None:
        """Ends whatever runs still."""
        for peer in self.started:
            peer.kill()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 90) -> None:
    """Waits until something holds; the limit is for a test that fails."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"it did not happen: {what}"
        time.sleep(0.02)


# What follows runs in the process that forks.


def _serve() -> None:
    """Imports what peers need, and answers requests."""
    for module in ("coterie.cli.peer.run", "coterie.cli.app", "torch._dynamo", "numpy.ma"):
        import_module(module)
    serve(_peer)


def _peer(config: str, log: str, circumstances: dict[str, Any]) -> None:
    """The command, under the given circumstances."""
    met = Circumstances(**circumstances)
    _meet(met)
    from coterie.cli import main

    sys.argv = ["coterie", "peer", "--config", config, *met.arguments]
    main()


def _meet(met: Circumstances) -> None:
    if met.namespace is not None:
        enter(met.namespace)
    if met.clock:
        set_own_clock(met.clock)
    from coterie.net.peer import peer
    from coterie.net.setup import start
    from coterie.net.wire.http import Timing

    start.Transport = partial(start.Transport, timing=Timing(**met.timing))  # type: ignore[assignment,misc]
    catch_up = peer.Peer._catch_up

    def trained(self: peer.Peer) -> bool:
        time.sleep(met.pause)
        return catch_up(self)

    peer.Peer._catch_up = trained  # type: ignore[method-assign]


if __name__ == "__main__":
    _serve()
