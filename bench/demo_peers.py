"""Five peers train together on this machine without a server; one of them is killed on the way, and comes back.

    make demo-peers

Each runs `coterie peer` in a process of its own: in a network namespace with a network of its own where this is
possible (Linux, root), on 127.0.0.1 elsewhere.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import coterie as ct
from federation_files import FederationFiles
from lossy_network import Link, LossyNetwork, unavailable

NAMES = ["aachen", "bergen", "coimbra", "dresden", "elche"]
VICTIM = "coimbra"
ROUNDS, KILLED_AFTER, AWAY = 40, 4, 2  # so many rounds at least are run without the victim
SETTINGS = {"lr": 0.05, "personal_lr": 0.05, "epochs": 2, "batch_size": 16, "topology": "ring"}
TASK = {"data": "digits:renamed=4", "partition": "iid", "model": "small-cnn"}  # as make demo
LIMIT = 300.0  # seconds after which something is wrong


def start(files: FederationFiles, name: str, network: LossyNetwork | None) -> subprocess.Popen[bytes]:
    """Start a member; its log is in its folder, and what it says beside it."""
    inside = [] if network is None else ["ip", "netns", "exec", network.namespaces[name]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with (files.folder / f"{name}.err").open("ab") as said:
        command = [*inside, sys.executable, "-m", "coterie", "peer", "--config", str(files.config(name))]
        return subprocess.Popen(command, env=environment, stdout=said, stderr=said)


def free_addresses() -> dict[str, str]:
    """Ports of this machine at which nobody listens."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
    found = {name: f"127.0.0.1:{s.getsockname()[1]}" for name, s in sockets.items()}
    for s in sockets.values():
        s.close()
    return found


def alone(files: FederationFiles) -> list[float]:
    """The accuracy that each member reaches by itself, in percent: the same model, data and rounds."""
    torch.set_num_threads(1)  # as for each peer: with several threads so small a model waits for them
    settings = {key: value for key, value in SETTINGS.items() if key in ("lr", "epochs", "batch_size")}
    run = ct.fit(ct.models.build(files.model, files.federation), files.federation, ct.algorithms.local(**settings),
                 rounds=ROUNDS, progress=False)  # fmt: skip
    return [100 * value for value in run.client_summary["accuracy"]["after_mix"]]


def wait_for(files: FederationFiles, name: str, processes: dict[str, subprocess.Popen[bytes]], round: int) -> None:
    """Wait until a member has finished a round."""
    until = time.monotonic() + LIMIT
    while not files.events(name, "round", round=round):
        ended = {who: process.returncode for who, process in processes.items() if process.poll()}
        if ended or time.monotonic() > until:
            sys.exit(f"the peers do not train ({ended}): see {files.folder}")
        time.sleep(0.1)


def play(files: FederationFiles, network: LossyNetwork | None) -> None:
    """Run all members, kill one, and start it again."""
    processes = {name: start(files, name, network) for name in NAMES}
    try:
        wait_for(files, VICTIM, processes, KILLED_AFTER)
        processes[VICTIM].send_signal(signal.SIGKILL)
        processes[VICTIM].wait()
        last = files.events(VICTIM, "round")[-1]["round"]
        print(f"killed {VICTIM} after round {last}; the others go on", flush=True)
        others = {name: process for name, process in processes.items() if name != VICTIM}
        wait_for(files, next(iter(others)), others, last + AWAY)
        print(f"{VICTIM} is started again", flush=True)
        processes[VICTIM] = start(files, VICTIM, network)
        for name, process in processes.items():
            if process.wait(LIMIT):
                sys.exit(f"{name} has ended with status {process.returncode}: see {files.folder}")
    finally:
        for process in processes.values():
            process.kill()


def show(files: FederationFiles, by_themselves: list[float]) -> None:
    """Print a row for each member, and what became of the one that was killed."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("member", "samples", "accuracy alone", "together", "rounds run", "messages missed"):
        table.add_column(heading, justify="left" if heading == "member" else "right")
    for i, name in enumerate(NAMES):
        took = len(files.events(name, "round"))
        missed = sum(len(each["members"]) for each in files.events(name, "missing"))
        samples = len(files.federation.train[i])
        cells = f"{by_themselves[i]:.1f} %", f"{files.accuracy([name]):.1f} %", f"{took} of {ROUNDS}", str(missed)
        table.add_row(name, str(samples), *cells)
    Console(highlight=False).print(table)
    again, others = files.events(VICTIM, "begins")[-1], [name for name in NAMES if name != VICTIM]
    left_out = sum(each["last"] - each["first"] + 1 for each in files.events(VICTIM, "skipped"))
    restarted = sum(len(files.events(name, "begins")) > 1 for name in others)
    print(f"{VICTIM} resumed from its own disk after round {again['round'] - 1}, and left out {left_out} rounds that")
    print(f"the others ran without it; {restarted or 'none'} of the others had to be restarted.")
    print(f"report: {ct.report.write([files.run(name) for name in NAMES], files.folder / 'report.html')}")


def main() -> None:
    """Run the demo."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="coterie-demo-peers-"))
    reason = unavailable()
    with ExitStack() as stack:
        network = None if reason else stack.enter_context(LossyNetwork(NAMES))
        if network is not None:
            network.set_all(Link(delay=0.02))
        addresses = free_addresses() if network is None else network.addresses
        own = {"wait": "60s"}
        files = FederationFiles(folder, addresses, "dfedalt", ROUNDS, SETTINGS, own=own, **TASK).write()
        where = "each in a network namespace, 20 ms apart" if network else f"on 127.0.0.1 ({reason})"
        print(f"five peers, {where}; certificates, data and logs: {folder}", flush=True)
        play(files, network)
    print("all have finished; for comparison, each trains alone", flush=True)
    show(files, alone(files))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
