"""Five peers in processes of their own go on through what networks and machines do, and lose nothing from their disks.

Their heartbeats and their patience are shorter than those of real ones, so that seconds here are as long as minutes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from federation_files import FederationFiles
from helpers_cli import tmpfs
from lossy_network import Link, LossyNetwork, unavailable
from peer_processes import PeerServer, RunningPeer, wait_until

pytestmark = pytest.mark.hostile

NAMES = [f"site-{i}" for i in range(5)]
ROUNDS = 12
PAUSE = 0.2  # seconds that the training of a round takes longer, so that nobody has finished before a fault is over
COMMON = {"lr": 0.1, "personal_lr": 0.1, "lr_decay": 0.85, "epochs": 1, "batch_size": 16}
SETTINGS = {
    "dfedalt": {**COMMON, "topology": "ring"},
    "dfedpgp": {**COMMON, "topology": "random-push:2"},
}
WITHIN = 2.0  # points of accuracy
CALM: dict[str, Any] = {"pause": 0.0, "timing": {}, "arguments": ("--deadline", "60s")}  # where nobody should be missed


@dataclass
class Federation:
    """Five members, some of which run."""

    files: FederationFiles
    server: PeerServer
    network: LossyNetwork | None = None
    running: dict[str, RunningPeer] = field(default_factory=dict)

    def start(self, *names: str, **circumstances: Any) -> None:
        """Starts some members."""
        for name in names:
            inside = {} if self.network is None else {"namespace": self.network.namespaces[name]}
            met = {"pause": PAUSE, **inside, **circumstances}
            self.running[name] = self.server.start(self.files.config(name), **met)

    def reached(self, name: str, round: int) -> None:
        """Waits until a member has finished a round."""
        wait_until(lambda: self.rounds(name)[-1:] >= [round], f"round {round} of {name}")

    def rounds(self, name: str) -> list[int]:
        """The rounds that a member has taken part in."""
        return [each["round"] for each in self.files.events(name, "round")]

    def miss(self, names: Sequence[str], others: Sequence[str]) -> None:
        """Waits until each of some members has noticed that others do not answer any more."""
        for name, other in product(names, others):
            wait_until(lambda n=name, o=other: self.files.events(n, "lost", member=o), f"{name} misses {other}")

    def back_again(self, name: str, other: str) -> bool:
        """Whether a member went through a round with another one that it had lost before."""
        events = [each for each in self.files.events(name) if each["event"] == "round" or each.get("member") == other]
        told = [each["event"] for each in events]
        gone = next(i for i, event in enumerate(told) if event in ("lost", "left"))
        back = told.index("found", gone)
        return any(each["event"] == "round" and other not in each["missed"] for each in events[back:])

    def finish(self, names: Sequence[str] = NAMES) -> None:
        """Waits until all that run have finished well."""
        for name in names:
            assert self.running[name].wait() == 0, self.running[name].said
            assert self.files.events(name, "finished", rounds=ROUNDS)
            assert not self.files.events(name, "error"), self.files.events(name, "error")

    def check(self, accuracy: float, names: Sequence[str] = NAMES) -> None:
        """Those who took part are as good as without any fault, and no mass is lost or doubled."""
        assert abs(self.files.accuracy(names) - accuracy) <= WITHIN or self.files.accuracy(names) > accuracy
        if self.files.method == "dfedpgp":
            assert self.files.mass() == len(NAMES)
        for name in names:  # who has begun once was not restarted, and did not lose anybody's trust
            assert not self.files.events(name, "refused", reason="error")


def loopback() -> dict[str, str]:
    """Addresses of this machine alone that no other test has."""
    return {
        name: f"127.{1 + (os.getpid() >> 8) % 250}.{os.getpid() % 256}.{i + 1}:7443" for i, name in enumerate(NAMES)
    }


@pytest.fixture
def federation(peer_server: PeerServer, tmp_path: Path, method: str) -> Federation:
    """Five members of this machine."""
    return Federation(files(tmp_path, loopback(), method), peer_server)


@pytest.fixture
def apart(peer_server: PeerServer, tmp_path: Path, method: str) -> Iterator[Federation]:
    """Five members, each in a network namespace."""
    if reason := unavailable():
        pytest.skip(reason)
    with LossyNetwork(NAMES) as network:
        yield Federation(files(tmp_path, network.addresses, method), peer_server, network)
        peer_server.end_all()  # before their network goes


def files(folder: Path, addresses: dict[str, str], method: str, **own: Any) -> FederationFiles:
    own = {"deadline": "1s", "wait": "30s", **own}
    return FederationFiles(folder, addresses, method, ROUNDS, SETTINGS[method], own=own).write()


@cache
def undisturbed(method: str) -> float:
    """The accuracy where nothing happens, in percent: that of a simulation, which undisturbed peers have exactly."""
    fed = ct.data.federate(FederationFiles.data, clients=len(NAMES), partition=FederationFiles.partition, seed=0)
    model, algorithm = (
        ct.models.build(FederationFiles.model, fed, seed=0),
        ct.algorithms.build(method, **SETTINGS[method]),
    )
    run = ct.fit(model, fed, algorithm, rounds=ROUNDS, evaluate_every=ROUNDS, progress=False)
    return 100 * float(run.summary["personal_accuracy"]["after_mix"]["final"])


@contextmanager
def nothing_forgotten(federation: Federation, name: str) -> Iterator[None]:
    """The rows that a member has on its disk now are there afterwards, too."""
    path = federation.files.run(name) / "metrics.jsonl"
    before = path.read_text().splitlines()[: max(federation.rounds(name))]
    yield
    assert path.read_text().splitlines()[: len(before)] == before


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_a_killed_peer_resumes_from_its_disk_and_rejoins(federation: Federation, method: str) -> None:
    federation.start(*NAMES, pause=2 * PAUSE)
    federation.reached("site-2", 3)
    federation.running["site-2"].kill()
    with nothing_forgotten(federation, "site-2"):
        federation.reached("site-0", federation.rounds("site-0")[-1] + 1)
        federation.start("site-2", pause=2 * PAUSE)
        federation.finish()
    federation.check(undisturbed(method))
    assert federation.files.events("site-2", "resumed")
    assert [len(federation.files.events(name, "begins")) for name in NAMES] == [1, 1, 2, 1, 1]
    again = federation.files.events("site-2", "begins")[1]["round"]
    assert again >= 4
    (resumed,) = federation.files.events("site-2", "resumed")
    assert resumed["text"].endswith(f"after round {again - 1}")  # the next round after those on its disk
    assert len([round for round in federation.rounds("site-2") if round >= again]) >= 2
    # It may be back before anybody has noticed that it was gone.
    assert any(
        "site-2" not in each["missed"] for each in federation.files.events("site-1", "round") if each["round"] >= again
    )


@pytest.mark.parametrize("method", ["dfedalt"])
def test_a_cut_link_is_noticed_and_taken_up_again(apart: Federation, method: str) -> None:
    assert apart.network is not None
    apart.start(*NAMES, pause=2 * PAUSE)
    apart.reached("site-0", 3)
    apart.network.set([("site-0", "site-1")], Link(open=False))
    apart.miss(["site-0"], ["site-1"])
    apart.miss(["site-1"], ["site-0"])
    apart.network.set_all(Link())
    apart.finish()
    apart.check(undisturbed(method))
    assert apart.files.events("site-0", "missing", members=["site-1"])
    for one, other in (("site-0", "site-1"), ("site-1", "site-0")):
        assert apart.back_again(one, other)


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_a_fifth_of_all_packets_lost_and_all_late(apart: Federation, method: str) -> None:
    """Messages arrive, some of them seconds late: longer limits than elsewhere, as a real peer has them."""
    assert apart.network is not None
    apart.network.set_all(Link(loss=0.2, delay=0.1))
    apart.start(*NAMES, pause=0.0, timing={}, arguments=("--deadline", "3s"))
    apart.reached("site-0", 5)
    apart.network.set_all(Link(delay=0.1))
    apart.finish()
    apart.check(undisturbed(method))
    heard = [ROUNDS - len(apart.files.events(name, "missing")) for name in NAMES]
    assert sum(heard) > 0


@pytest.mark.parametrize("method", ["dfedalt"])
def test_a_peer_ten_times_slower_is_heard_when_it_can_be(federation: Federation, method: str) -> None:
    federation.start(*NAMES[:4], pause=PAUSE / 2, arguments=("--deadline", "0.5s"))
    federation.start("site-4", pause=5 * PAUSE, arguments=("--deadline", "0.5s"))
    federation.finish()
    federation.check(undisturbed(method))
    slow = federation.rounds("site-4")
    assert 2 <= len(slow) < ROUNDS
    assert federation.files.events("site-4", "skipped")
    assert len(slow) <= len(federation.rounds("site-1")) - 3
    missed = [each["round"] for each in federation.files.events("site-0", "missing")]
    assert 0 < len(missed) < ROUNDS


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_two_halves_train_on_and_become_one_again(apart: Federation, method: str) -> None:
    assert apart.network is not None
    apart.start(*NAMES, pause=2 * PAUSE)
    apart.reached("site-0", 3)
    apart.network.split(NAMES[:2])
    for one, other in ((NAMES[:2], NAMES[2:]), (NAMES[2:], NAMES[:2])):
        apart.miss(one, other)
    apart.network.set_all(Link())
    apart.finish()
    apart.check(undisturbed(method))
    assert all(apart.back_again(one, other) for one in NAMES[:2] for other in NAMES[2:])
    assert all(apart.back_again(one, other) for one in NAMES[2:] for other in NAMES[:2])


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_a_peer_that_was_alone_finds_the_others_where_it_is(apart: Federation, method: str) -> None:
    """Alone, it could train ten times as fast: it keeps their pace, and waits for them if it is ahead nevertheless."""
    assert apart.network is not None
    apart.start(*NAMES[:4], pause=3 * PAUSE)
    apart.start("site-4", pause=0.0)
    apart.reached("site-4", 2)
    apart.network.split(["site-4"])
    apart.miss(NAMES[4:], NAMES[:4])
    apart.reached("site-0", 5)
    assert apart.rounds("site-4")[-1] <= apart.rounds("site-0")[-1] + 4
    apart.network.set_all(Link())
    apart.finish()
    apart.check(undisturbed(method))
    assert all(apart.back_again("site-4", other) for other in NAMES[:4])


@pytest.mark.parametrize("method", ["dfedalt"])
def test_a_peer_that_never_comes_is_not_waited_for(peer_server: PeerServer, tmp_path: Path, method: str) -> None:
    federation = Federation(files(tmp_path, loopback(), method, wait="2s"), peer_server)
    federation.start(*NAMES[:4], pause=0.0)
    federation.finish(NAMES[:4])
    federation.check(undisturbed(method), NAMES[:4])
    assert federation.files.events("site-0", "begins")[0]["missing"] == ["site-4"]


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_clocks_an_hour_off_disturb_nobody(federation: Federation, method: str) -> None:
    """One is an hour ahead and one an hour behind, for Python and for OpenSSL, which looks at certificates."""
    federation.start(*NAMES[:3], **CALM)
    federation.start("site-3", clock=-3600, **CALM)
    federation.start("site-4", clock=3600, **CALM)
    federation.finish()
    federation.check(undisturbed(method))
    assert federation.files.accuracy(NAMES) == pytest.approx(undisturbed(method))
    assert not any(federation.files.events(name, "missing") for name in NAMES)
    ended = [federation.files.events(name, "finished")[0]["time"] for name in ("site-3", "site-0", "site-4")]
    assert ended == sorted(ended), "their clocks were off"


@pytest.mark.parametrize("method", ["dfedpgp"])
def test_a_full_disk_ends_one_peer_with_a_sentence_and_it_resumes(federation: Federation, method: str) -> None:
    with tmpfs(federation.files.run("site-1"), "size=2m"):
        federation.start(*NAMES)
        federation.reached("site-1", 3)
        full = federation.files.run("site-1") / "full"
        with full.open("wb", buffering=0) as file, suppress(OSError):  # no space left
            while True:
                file.write(bytes(4096))
        assert federation.running["site-1"].wait() == 2
        last = federation.running["site-1"].said.splitlines()[-1]
        assert last.startswith("coterie: ")
        assert "disk" in last
        assert "Traceback" not in federation.running["site-1"].said
        with nothing_forgotten(federation, "site-1"):
            full.unlink()
            federation.start("site-1")
            federation.finish()
        federation.check(undisturbed(method))
        assert [len(federation.files.events(name, "begins")) for name in NAMES] == [1, 2, 1, 1, 1]
