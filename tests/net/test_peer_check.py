"""``coterie peer check``: what is wrong before anything starts, in one line each."""

import os
import socket
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="peers need coterie[peers]")

from coterie.cli.peer import run as peer_run
from coterie.core.errors import UserError
from coterie.core.files import write_json
from coterie.net.certificates.authority import Authority
from coterie.net.operations import check
from coterie.net.operations.check import Ask, Finding, findings
from coterie.net.setup.agreement import agreed, hello
from coterie.net.setup.config import PeerConfig, load
from coterie.net.setup.start import transport_of
from coterie.net.wire.transport import Beat, Transport
from coterie.store.lock import sole_writer
from helpers_cli import Cli
from in_process import answer

MEMBERS = ("alpha", "beta", "gamma")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of three members on this machine, each with a file and certificates."""
    folder = tmp_path_factory.mktemp("check")
    authority = Authority.create(folder / "certs")
    places = "".join(f'{name} = "127.0.0.1:{free_port()}"\n' for name in MEMBERS)
    for name in MEMBERS:
        authority.issue(name)
        rng = np.random.default_rng(0)
        np.savez(folder / f"{name}.npz", x=rng.normal(size=(12, 4)).astype(np.float32), y=np.arange(12) % 3)
        (folder / f"{name}.toml").write_text(
            '[federation]\nid = "heart"\nmethod = "dfedavg"\nrounds = 2\nmodel = "mlp:width=8"\nclasses = 3\n'
            f'[federation.settings]\nlr = 0.02\ntopology = "ring"\n[federation.members]\n{places}'
            f'[peer]\nname = "{name}"\nfolder = "runs/{name}"\ndata = "npz:{name}.npz"\n[peer.certificates]\n'
            f'authority = "certs/authority.pem"\ncertificate = "certs/{name}.pem"\nkey = "certs/{name}.key"\n'
            'revoked = "certs/revoked.pem"\n'
        )
    return folder


@pytest.fixture
def config(folder: Path) -> PeerConfig:
    return load(folder / "alpha.toml")


def answering(config: PeerConfig, **changes: Any) -> Ask:
    """Members that are there, and have agreed on the same except for changes."""
    found = agreed(config)
    return lambda name: {**hello(found), **changes}


def problems(config: PeerConfig, ask: Ask | None) -> list[Finding]:
    return [found for found in findings(config, ask) if found.problem]


def changed(config: PeerConfig, old: str, new: str, name: str = "changed.toml") -> PeerConfig:
    text = config.path.read_text()
    assert old in text
    path = config.path.with_name(name)
    path.write_text(text.replace(old, new, 1))
    return load(path)


def test_nothing_is_wrong(config: PeerConfig) -> None:
    found = list(findings(config, answering(config)))
    assert [f.subject for f in found] == [
        "certificate",
        "method",
        "data",
        "model",
        "folder",
        "port",
        *(["beta"] * 2),
        *(["gamma"] * 2),
    ]
    assert not any(f.problem for f in found)
    said = "\n".join(map(str, found))
    for part in (
        "alpha's, valid until",
        "364 days left",
        "dfedavg over ring between 3 members",
        "9 training samples",
        "3 classes",
    ):
        assert part in said
    assert not (config.folder).exists()  # nothing is written


LOCAL = {
    "certificate": ("certs/alpha.key", "certs/beta.key", "does not fit"),
    "no certificate": ("certs/alpha.pem", "certs/missing.pem", "cannot read the certificate"),
    "method": ('"dfedavg"', '"fedavg"', "fedavg does not run between peers"),
    "settings": ("lr = 0.02", "lr = -1", "out of range"),
    "data": ("npz:alpha.npz", "npz:missing.npz", "missing.npz"),
    "classes": ("classes = 3", "classes = 2", "labels up to 2"),
    "model": ('"mlp:width=8"', '"small-cnn"', "small-cnn"),
    "folder": ('"runs/alpha"', '"alpha.npz/x"', "cannot be written to"),
}


@pytest.mark.parametrize("wrong", LOCAL)
def test_what_is_wrong_here_is_said(wrong: str, config: PeerConfig) -> None:
    old, new, told = LOCAL[wrong]
    found = problems(changed(config, old, new), None)
    assert found
    assert any(told in str(one) for one in found), found
    assert all("\n" not in str(one) for one in found)


def test_a_key_that_others_can_read_is_named(config: PeerConfig) -> None:
    if sys.platform == "win32":
        pytest.skip("files have no such modes here")
    key = config.credentials().key
    told: list[str] = []
    key.chmod(0o640)
    try:
        (found,) = problems(config, None)
        transport_of(config, False, lambda event, **fields: told.append(fields["text"]))
    finally:
        key.chmod(0o600)
    assert told == [found.text] == [f"{key} can be read by others (mode 640): chmod 600 {key}"]


def test_what_a_peer_writes_is_its_owners_alone(
    folder: Path, config: PeerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform == "win32":
        pytest.skip("files have no such modes here")

    def run_peer(one: Any, transport: Any, on_event: Any, begun: Any, serve: Any) -> Path:
        with sole_writer(tmp_path / "own", lambda text: None) as lock:
            lock.stays = True
            begun(tmp_path / "own")
            on_event("begins", round=1)
            write_json(tmp_path / "own" / "status.json", {})
        return tmp_path / "own"

    monkeypatch.setattr(peer_run, "run_peer", run_peer)
    before = os.umask(0o022)
    try:
        peer_run.run_participant(config.path, (), None, insecure=False)
        assert os.umask(0o022) == 0o022, "the rest of the process writes as before"
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "own", *(tmp_path / "own").iterdir())}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items()), found
    assert {path.name for path in found} == {"own", ".lock", "log.jsonl", "status.json"}


def test_a_port_that_is_taken(config: PeerConfig) -> None:
    with closing(socket.create_server(("0.0.0.0", config.listen.port))):
        (found,) = problems(config, None)
    assert found.subject == "port"
    assert "cannot listen at" in found.text


def test_an_address_that_leads_elsewhere(config: PeerConfig) -> None:
    elsewhere = changed(config, "[peer]\n", f'[peer]\nlisten = "127.0.0.1:{free_port()}"\n')
    (found,) = problems(elsewhere, None)
    assert "does not lead to this machine" in found.text


def test_an_address_at_which_another_program_answers(config: PeerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CONNECT", 0.3)
    with closing(socket.create_server(("127.0.0.1", config.listen.port))):
        (found,) = problems(changed(config, "[peer]\n", f'[peer]\nlisten = "127.0.0.1:{free_port()}"\n'), None)
    assert "is answered by another program or machine" in found.text


def test_a_full_disk(config: PeerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "KEPT", 10**15)
    (found,) = problems(config, None)
    assert found.subject == "folder"
    assert "free some of the disk" in found.text


def test_neighbors_that_do_not_answer_are_named(config: PeerConfig) -> None:
    there = answering(config)

    def ask(name: str) -> dict[str, Any]:
        if name == "gamma":
            raise UserError("gamma does not answer at 127.0.0.1:1 (connection refused): start it there")
        return there(name)

    (found,) = problems(config, ask)
    assert (found.subject, "connection refused" in found.text) == ("gamma", True)


@pytest.mark.parametrize(("clock", "told"), [(3600.0, "3,600 s ahead of"), (-3600.0, "3,600 s behind")])
def test_clocks_are_compared(config: PeerConfig, clock: float, told: str) -> None:
    ask = answering(config)
    found = problems(config, lambda name: {**ask(name), "clock": time.time() + clock})
    assert [told in one.text for one in found] == [True, True]


def test_other_settings_are_named(config: PeerConfig) -> None:
    theirs = agreed(changed(config, "lr = 0.02", "lr = 0.1"))
    found = problems(config, answering(config, agreed=theirs))
    assert [one.subject for one in found] == ["beta", "gamma"]
    assert "settings.lr: 0.1 there, 0.02 here" in found[0].text


@pytest.mark.parametrize(
    "said", [{}, {"clock": "noon"}, {"clock": 10**400}, {"clock": 0, "agreed": "\x1b[31m"}, {"agreed": []}]
)
def test_whatever_answers_is_borne(config: PeerConfig, said: dict[str, Any]) -> None:
    found = problems(config, lambda name: said)
    assert {one.subject for one in found} == {"beta", "gamma"}
    assert all(str(one).isprintable() for one in found)


def running(config: PeerConfig, found: dict[str, Any]) -> Transport:
    """A member that says what it is, and nothing else."""
    nobody: Any = None
    beat = Beat(0, "waiting", time.time(), "")
    made = transport_of(config, False, lambda event, **fields: None)(nobody, lambda: beat, lambda: hello(found))
    made.start()
    return made


def test_the_command_asks_those_who_run(folder: Path, config: PeerConfig) -> None:
    """One has the same settings, one has others: the first is fine, the second named."""
    theirs = agreed(changed(config, "lr = 0.02", "lr = 0.1", "gamma-too.toml"))
    others = [
        running(load(folder / f"{name}.toml"), found) for name, found in (("beta", agreed(config)), ("gamma", theirs))
    ]
    try:
        done = answer("peer", "check", "--config", "alpha.toml", cwd=folder)
    finally:
        for one in others:
            one.close()
    assert done.sentence == "coterie: 1 problem of alpha: mend what is said above"
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("problem")] == [
        "problem  gamma: settings.lr: 0.1 there, 0.02 here: make [federation] of both alike"
    ]
    assert any("beta: answers at 127.0.0.1" in line for line in lines)


def test_the_command_names_those_who_do_not_run(folder: Path) -> None:
    done = answer("peer", "check", "--config", "alpha.toml", cwd=folder)
    assert "2 problems of alpha" in done.sentence
    assert "problem  beta: beta does not answer at 127.0.0.1" in done.out


def test_the_command_without_a_certificate_asks_nobody(folder: Path, config: PeerConfig) -> None:
    changed(config, "certs/alpha.pem", "certs/missing.pem")
    done = answer("peer", "check", "--config", "changed.toml", cwd=folder)
    assert "1 problem of alpha" in done.sentence
    assert "beta" not in done.out


def test_a_folder_that_cannot_be_its_own_names_the_line_that_chooses_it(
    cli: Cli, folder: Path, config: PeerConfig
) -> None:
    own, fix = changed(config, "runs/alpha", "runs/mine", "mine.toml"), "choose another folder in [peer] of mine.toml"
    with sole_writer(own.folder, print):
        held = cli.refuse("peer", "--config", "mine.toml", cwd=folder, names=("runs/mine is being written by", fix))
    own.folder.mkdir(parents=True)
    (own.folder / "notes.txt").write_text("mine")
    taken = cli.refuse("peer", "--config", "mine.toml", cwd=folder, names=("runs/mine already exists: ", fix))
    for done in (held, taken):
        assert "--out" not in done.err
        assert "--resume" not in done.err


def test_going_without_certificates_is_refused_where_a_member_is_elsewhere(cli: Cli, config: PeerConfig) -> None:
    elsewhere = changed(config, 'beta = "127.0.0.1', 'beta = "10.0.0.2')
    options = ("peer", "--config", elsewhere.path.name, "--insecure-loopback")
    names = ("beta is at 10.0.0.2:", "not on 127.0.0.1", "use certificates")
    cli.refuse(*options, cwd=elsewhere.path.parent, names=names)
