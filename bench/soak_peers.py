"""Five peers for half an hour, to which everything happens that happens to machines and networks, drawn by a seed.

    python bench/soak_peers.py --minutes 30 --seed 0

Each runs `coterie peer` in a network namespace of its own, on a small disk of its own, so this needs root. Afterwards
everybody has run all rounds, the mass of push-sum is exact, the accuracy is that of an undisturbed run, and no process
has grown.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import coterie as ct
from federation_files import FederationFiles
from lossy_network import Link, LossyNetwork, unavailable
from wrong_clock import clock_library, with_clock

NAMES = [f"site-{i}" for i in range(5)]
STEADY = NAMES[:2]  # the network alone happens to these two, so that one process lives through all of it
USUAL = Link(delay=0.4)  # a round takes a second or two and little of the processor
SETTINGS = {"lr": 0.05, "personal_lr": 0.05, "epochs": 1, "batch_size": 16, "topology": "random-push:2"}
REFERENCE_ROUNDS = 100
WITHIN = 2.0  # points of accuracy
GROWTH = 24.0  # MiB that a process may grow after its first minutes
WARM = 120.0  # seconds until a process has all its memory
STUCK = 180.0  # seconds in which everybody finishes a round


class Soak:
    """The peers, and what is done to them."""

    def __init__(self, folder: Path, network: LossyNetwork, rounds: int, seed: int) -> None:
        self.network, self.random = network, random.Random(seed)
        own = {"deadline": "5s", "wait": "60s"}
        self.files = FederationFiles(folder, network.addresses, "dfedpgp", rounds, SETTINGS, own=own).write()
        self.clock = clock_library(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.happened: Counter[str] = Counter()
        self.memory: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)  # (seconds, MiB)
        self.began = time.monotonic()

    def start(self, name: str, ahead: int = 0) -> None:
        """Start a member."""
        command = ["ip", "netns", "exec", self.network.namespaces[name], sys.executable, "-m", "coterie", "peer"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        environment |= with_clock(self.clock, ahead)
        with (self.files.folder / f"{name}.err").open("ab") as said:
            self.processes[name] = subprocess.Popen(
                [*command, "--config", self.files.config(name)], env=environment, stdout=said, stderr=said
            )

    def say(self, text: str) -> None:
        """Tell what happens, with the time and everybody's round."""
        rounds = " ".join(str(self.round(name)) for name in NAMES)
        print(f"{time.monotonic() - self.began:6.0f} s  rounds {rounds}  {text}", flush=True)

    def round(self, name: str) -> int:
        """The latest round that a member has finished."""
        rounds = [each["round"] for each in self.files.events(name, "round")[-1:]]
        return rounds[0] if rounds else 0

    def wait(self, seconds: float) -> None:
        """Let time pass, and look at the memory meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, process in self.processes.items():
                if process.poll() is None:
                    self.memory[name, process.pid].append((time.monotonic(), resident(process.pid)))
            time.sleep(min(5.0, max(0.0, until - time.monotonic())))

    def meanwhile(self, seconds: float) -> None:
        """Let time pass while the network is bad; something else may happen to a member at the same time."""
        if self.random.random() < 0.4:
            fault = self.random.choice(OF_MEMBERS)
            self.say(f"at the same time {fault.__name__}: {fault.__doc__}")
            self.happened[fault.__name__] += 1
            fault(self)
        self.wait(seconds)

    def going_on(self) -> None:
        """Everybody finishes another round."""
        before, until = {name: self.round(name) for name in NAMES}, time.monotonic() + STUCK
        while any(self.round(name) <= before[name] < self.files.rounds for name in NAMES):
            for name, process in self.processes.items():
                assert process.poll() in (None, 0), f"{name} has ended with {process.returncode}"
            assert time.monotonic() < until, f"somebody is stuck: {before}"
            self.wait(1)

    def ended(self, name: str) -> int:
        """The status of a member that should end now."""
        return self.processes[name].wait(STUCK)


def resident(pid: int) -> float:
    """The memory of a process that is its own, in MiB."""
    try:
        fields = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) / 1024
    except (OSError, KeyError):
        return 0.0


def killed(s: Soak) -> None:
    """A member is killed and started again."""
    name = s.random.choice(NAMES[2:])
    s.processes[name].kill()
    s.ended(name)
    s.wait(s.random.uniform(0, 30))
    s.start(name)


def left(s: Soak) -> None:
    """A member leaves on Ctrl-C and comes back."""
    name = s.random.choice(NAMES[2:])
    s.processes[name].send_signal(signal.SIGINT)
    assert s.ended(name) == 130
    s.wait(s.random.uniform(0, 30))
    s.start(name)


def wrong_clock(s: Soak) -> None:
    """A member is started again with a clock that is an hour off."""
    name = s.random.choice(NAMES[2:])
    s.processes[name].kill()
    s.ended(name)
    s.start(name, s.random.choice((-3600, 3600)))
    s.wait(s.random.uniform(20, 40))


def full_disk(s: Soak) -> None:
    """The disk of a member is full, and freed later."""
    name = s.random.choice(NAMES[2:])
    full = s.files.run(name) / "full"
    while s.processes[name].poll() is None:
        try:
            with full.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            time.sleep(0.1)
    assert s.ended(name) == 2
    assert "Traceback" not in (s.files.folder / f"{name}.err").read_text()
    s.wait(s.random.uniform(0, 20))
    full.unlink()
    s.start(name)


def frozen(s: Soak) -> None:
    """A machine stands still for a while."""
    name = s.random.choice(NAMES)
    s.processes[name].send_signal(signal.SIGSTOP)
    s.wait(s.random.uniform(2, 30))
    s.processes[name].send_signal(signal.SIGCONT)


def slow(s: Soak) -> None:
    """A member runs for a tenth of the time."""
    process, until = s.processes[s.random.choice(NAMES)], time.monotonic() + s.random.uniform(20, 40)
    while time.monotonic() < until:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.45)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.05)


def cut(s: Soak) -> None:
    """A link is cut for 30 s."""
    s.network.set([s.random.sample(NAMES, 2)], Link(open=False))
    s.meanwhile(30)


def lossy(s: Soak) -> None:
    """A fifth of all packets is lost, and all are 100 ms late."""
    s.network.set_all(Link(loss=0.2, delay=0.1))
    s.meanwhile(s.random.uniform(20, 60))


def split(s: Soak) -> None:
    """The members fall apart into two halves."""
    s.network.split(s.random.sample(NAMES, s.random.choice((1, 2))))
    s.meanwhile(s.random.uniform(10, 60))


Fault = Callable[[Soak], None]
OF_MEMBERS: list[Fault] = [killed, left, wrong_clock, full_disk, frozen, slow]
FAULTS: list[Fault] = [*OF_MEMBERS, cut, lossy, split]


def torment(s: Soak, seconds: float) -> None:
    """Let faults happen for some time, every kind once before any comes again."""
    until, waiting = time.monotonic() + seconds, list[Fault]()
    while time.monotonic() < until:
        if not waiting:
            waiting = s.random.sample(FAULTS, len(FAULTS))
        fault = waiting.pop()
        s.say(f"{fault.__name__}: {fault.__doc__}")
        s.happened[fault.__name__] += 1
        fault(s)
        s.network.set_all(USUAL)
        s.going_on()
        s.wait(s.random.uniform(2, 10))


def check(s: Soak, reference: float) -> None:
    """Look at what the members have left."""
    for name, process in s.processes.items():
        assert process.wait(STUCK) == 0, f"{name} has ended with {process.returncode}"
        assert s.files.events(name, "finished", rounds=s.files.rounds), f"{name} has not finished"
        assert not s.files.events(name, "error"), s.files.events(name, "error")[0]
        assert "Traceback" not in (s.files.folder / f"{name}.err").read_text(), name
    mass, accuracy = s.files.mass(), s.files.accuracy(NAMES)
    print(f"faults: {sum(s.happened.values())} ({', '.join(f'{k} {n}' for k, n in sorted(s.happened.items()))})")
    print(f"mass: {mass} of {len(NAMES)}; accuracy: {accuracy:.2f} % beside {reference:.2f} % undisturbed")
    for name in NAMES:
        took = len(s.files.events(name, "round"))
        print(f"{name}: took part in {took} of {s.files.rounds} rounds, missed somebody in ", end="")
        print(f"{len(s.files.events(name, 'missing'))}; {growth(s, name)}")
    assert mass == len(NAMES)
    assert accuracy >= reference - WITHIN


def growth(s: Soak, name: str) -> str:
    """What became of the memory of a member's longest-lived process."""
    seen = max((each for (who, _), each in s.memory.items() if who == name), key=lambda each: each[-1][0] - each[0][0])
    warm = [mib for at, mib in seen if at >= seen[0][0] + WARM]
    if len(warm) < 12:
        return "no process of it lived long enough to look at its memory"
    third = len(warm) // 3
    first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
    assert last - first <= GROWTH, f"{name} has grown from {first:.1f} to {last:.1f} MiB"
    return f"memory {first:.1f} MiB, at the end {last:.1f} MiB, over {seen[-1][0] - seen[0][0]:.0f} s"


def undisturbed() -> float:
    """The accuracy of a simulation of the same federation, in percent."""
    fed = ct.data.federate("digits", clients=len(NAMES), partition="dirichlet:0.3", seed=0)
    method = ct.algorithms.dfedpgp(**SETTINGS)
    run = ct.fit(ct.models.build("mlp:width=32", fed), fed, method, rounds=REFERENCE_ROUNDS, progress=False)
    return 100 * float(run.summary["personal_accuracy"]["after_mix"]["final"])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("soak"), help="where all of it is written: a new one")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored, by its children, too
    if reason := unavailable():
        sys.exit(f"the soak cannot run here: {reason}")
    if options.folder.exists():
        sys.exit(f"{options.folder} is there already: remove it, or choose another --folder")
    reference = undisturbed()
    folder = options.folder.absolute()
    with LossyNetwork(NAMES, options.seed) as network:
        soak = Soak(folder, network, max(20, round(options.minutes * 60)), options.seed)
        disks = [soak.files.run(name) for name in NAMES[2:]]
        for disk in disks:
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "coterie-soak", disk], check=True)
        try:
            network.set_all(USUAL)
            for name in NAMES:
                soak.start(name)
            soak.going_on()
            torment(soak, options.minutes * 60)
            soak.say("no more faults")
            network.set_all(Link())
            while any(process.poll() is None for process in soak.processes.values()):
                soak.going_on()
                soak.wait(5)
            check(soak, reference)
        finally:
            for process in soak.processes.values():
                process.kill()
            for disk in disks:
                shutil.copytree(disk, disk.with_name(f"{disk.name}-kept"), dirs_exist_ok=True)
                subprocess.run(["umount", "-l", disk], check=True)
    print(f"all is well after {options.minutes:g} minutes with the seed {options.seed}")


if __name__ == "__main__":
    main()
