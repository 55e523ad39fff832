"""What a peer shows to whoever looks after it: coterie peer status, /metrics, and the log."""

import errno
import http.client
import io
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("aiohttp", reason="peers need coterie[peers]")

import coterie as ct
from coterie import net
from coterie.cli.peer.status import show_status
from coterie.core.checked_json import read_json
from coterie.core.errors import FolderError, UserError
from coterie.models.model import Model, cross_entropy
from coterie.net.operations import log as logs
from coterie.net.operations import metrics, status
from coterie.net.operations.log import LOG, Log
from coterie.net.operations.metrics import MetricsServer, metrics_at, prometheus
from coterie.net.operations.status import STATUS, PeerStatus
from coterie.net.peer.peer import run_peer
from coterie.net.setup.prepare import Participant
from coterie.net.wire.address import Address
from coterie.net.wire.message import Reason
from coterie.net.wire.transport import Transport
from coterie.store.lock import LOCK, sole_writer, writer_of
from helpers_cli import Cli
from local_peers import participants, run_together
from net_members import QUICK, free_addresses

ROUNDS = 2
TRAINED: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
SHOWN: PeerStatus = {
    "time": 1000.0,
    "process": 12,
    "federation": "clinics",
    "name": "alpha",
    "method": "dfedpgp",
    "round": 3,
    "rounds": 50,
    "done": 2,
    "state": "training",
    "deadline": 5.0,
    "missing": ["gamma"],
    "members": {
        "beta": {
            "neighbor": True,
            "there": True,
            "last_answer": 999.5,
            "round": 4,
            "state": "exchanging",
            "missed": 0,
            "refused": {"early": 2},
            "refused_by": {},
        },
        "gamma": {
            "neighbor": False,
            "there": False,
            "last_answer": None,
            "round": None,
            "state": None,
            "missed": 2,
            "refused": {},
            "refused_by": {"late": 1},
        },
    },
    "strangers": {"certificate": 7},
    "bytes_in": 10,
    "bytes_out": 20,
    "messages_in": {"transfer": 3},
    "messages_out": {},
    "mass": {"own": 0.75, "outbox": 0.25, "inbox": 0.0},
    "measured": 2,
    "metrics": {"accuracy": {"after_mix": 0.5, "after_train": 0.625}},
    "train_loss": 1.5,
    "seconds": 0.5,
    "saved": 998.0,
    "kept": 3,
}
LINE = re.compile(
    r"(?:# HELP coterie_peer_[a-z_]+ [^\n]+|# TYPE coterie_peer_[a-z_]+ (?:gauge|counter)|"
    r'coterie_peer_[a-z_]+(?:\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\})? '
    r"-?[0-9.]+(?:e[+-]?[0-9]+)?)"
)
SAMPLE = re.compile(r"coterie_peer_([a-z_]+)(\{.*\})? (\S+)")


def federated(folder: Path, method: ct.algorithms.Algorithm, clients: int) -> list[Participant]:
    fed = ct.data.federate("synthetic:size=120,classes=3", clients=clients, partition="iid", seed=0)
    fed = replace(fed, names=tuple(f"site-{i}" for i in range(clients)))
    return participants(
        lambda: Model(ct.models.build("logreg", fed, seed=0), cross_entropy), fed, method, ROUNDS, folder, wait=10.0
    )


def write_toml(folder: Path, more: str = "", members: int = 3) -> Path:
    """The file of site-0, as far as anybody reads it here."""
    addresses = "\n".join(f'site-{i} = "127.0.0.1:{7000 + i}"' for i in range(members))
    path = folder / "site-0.toml"
    path.write_text(
        f'[federation]\nid = "test"\nmethod = "dfedpgp"\nrounds = {ROUNDS}\nmodel = "logreg"\nclasses = 3\n'
        f"[federation.members]\n{addresses}\n"
        f'[peer]\nname = "site-0"\nfolder = "site-0"\ndata = "npz:nowhere.npz"\n{more}\n'
    )
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of three members that have run push-sum."""
    home = tmp_path_factory.mktemp("ended")
    run_together(federated(home, ct.algorithms.dfedpgp(topology="random-push:1", **TRAINED), 3))
    write_toml(home)
    return home


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """The status, the type and the text of an answer."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    asked.request(method, path)
    answer = asked.getresponse()
    text = answer.read().decode()
    asked.close()
    return answer.status, answer.headers["Content-Type"] or "", text


def samples(text: str) -> dict[str, float]:
    """Every sample, by name and labels."""
    found = [SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    return {f"{one[1]}{one[2] or ''}": float(one[3]) for one in found if one is not None}


def test_the_text_is_what_prometheus_reads() -> None:
    text = prometheus(SHOWN)
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE)
    assert len(types) == len(dict(types))  # each name once
    for name, kind in types:
        assert (kind == "counter") == name.endswith("_total")
        assert re.search(rf"^# HELP {name} \S.*\n# TYPE {name} {kind}\n{name}[{{ ]", text, flags=re.MULTILINE)
    assert samples(text) == {
        f'info{{federation="clinics",member="alpha",method="dfedpgp",version="{ct.__version__}"}}': 1,
        **{f'state{{state="{name}"}}': float(name == "training") for name in metrics.STATES},
        "round": 3,
        "rounds": 50,
        "rounds_done": 2,
        "round_seconds": 0.5,
        "deadline_seconds": 5,
        "saved_timestamp_seconds": 998,
        "train_loss": 1.5,
        'metric{metric="accuracy",protocol="after_mix"}': 0.5,
        'metric{metric="accuracy",protocol="after_train"}': 0.625,
        'mass{place="own"}': 0.75,
        'mass{place="outbox"}': 0.25,
        'mass{place="inbox"}': 0,
        'member_up{member="beta"}': 1,
        'member_up{member="gamma"}': 0,
        'member_neighbor{member="beta"}': 1,
        'member_neighbor{member="gamma"}': 0,
        'member_last_answer_timestamp_seconds{member="beta"}': 999.5,
        'member_round{member="beta"}': 4,
        'member_missed_total{member="beta"}': 0,
        'member_missed_total{member="gamma"}': 2,
        "received_bytes_total": 10,
        "sent_bytes_total": 20,
        'received_messages_total{kind="transfer"}': 3,
        'refused_total{member="beta",reason="early"}': 2,
        'refused_total{member="unknown",reason="certificate"}': 7,
        'refused_by_total{member="gamma",reason="late"}': 1,
    }


def test_prometheus_own_parser_has_the_same_samples() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    text = prometheus(SHOWN)
    read = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    assert len(read) == len(samples(text))
    assert {s.value for s in read if s.name == "coterie_peer_refused_total"} == {2.0, 7.0}


def test_strange_names_cannot_break_the_text() -> None:
    text = prometheus({**SHOWN, "federation": 'a"b\\c\nd'})
    assert 'federation="a\\"b\\\\c\\nd"' in text
    assert all(LINE.fullmatch(line) for line in text.splitlines())


def test_the_file_says_where_a_peer_stands_and_all_mass_is_somewhere(ended: Path) -> None:
    every = [read_json(ended / f"site-{i}" / STATUS, PeerStatus) for i in range(3)]
    for each in every:
        assert (each["state"], each["round"], each["done"]) == ("done", ROUNDS, ROUNDS)
        assert each["measured"] == ROUNDS
        assert set(each["metrics"]["accuracy"]) == {"after_mix", "after_train"}
        assert each["saved"] is not None
    assert sum(sum(each["mass"].values()) for each in every if each["mass"]) == 3.0  # type: ignore[misc]


def test_who_does_not_run_is_said_in_one_sentence(ended: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli.run("peer", "status", "--config", "site-0.toml", cwd=ended)
    assert done.status == 2
    assert done.sentences == [
        f"coterie: site-0 does not run any more, as all {ROUNDS} rounds are over: coterie report site-0"
    ]
    shown = cli.run("peer", "status", "--config", "site-0.toml", "--format", "json", cwd=ended)
    assert (shown.status, json.loads(shown.out)["running"], json.loads(shown.out)["done"]) == (2, False, ROUNDS)
    toml = write_toml(tmp_path)
    with pytest.raises(UserError, match=r"never has in .*site-0: start it with coterie peer --config"):
        show_status(toml, "table")
    (tmp_path / "site-0").mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / "site-0" / name).write_bytes((ended / "site-0" / name).read_bytes())
    (tmp_path / "site-0" / LOCK).write_text("process 7 on a-host")  # what a kill leaves
    with pytest.raises(UserError, match=f"does not run, and has {ROUNDS} of {ROUNDS} rounds: go on with coterie peer"):
        show_status(toml, "table")
    with pytest.raises(UserError, match="unknown format 'csv'"):
        show_status(toml, "csv")


def test_a_file_of_an_earlier_process_is_not_shown(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, folder = write_toml(tmp_path), tmp_path / "site-0"
    folder.mkdir()
    (folder / STATUS).write_text(json.dumps({**SHOWN, "process": os.getpid() + 1}))
    with sole_writer(folder, print):
        show_status(toml, "table")
        assert "has begun (process" in capsys.readouterr().out
        (folder / STATUS).write_text(json.dumps({**SHOWN, "process": os.getpid()}))
        (folder / "config.json").write_bytes((ended / "site-0" / "config.json").read_bytes())
        show_status(toml, "table")
    said = capsys.readouterr().out
    assert "old: it hangs, or it cannot write its folder" in said
    for part in ("missing: gamma; this round has waited for gamma in vain", "accuracy 50.0 % after aggregation",
                 "mass: 0.75 its own, 0.25 on its way", "3 messages taken", "2 early", "7 certificate"):  # fmt: skip
        assert part in said


def test_a_lock_names_its_holder_and_only_while_it_is_held(tmp_path: Path) -> None:
    assert writer_of(tmp_path) is None
    with sole_writer(tmp_path, print):
        assert str(writer_of(tmp_path)).startswith(f"process {os.getpid()} on ")
    (tmp_path / LOCK).write_text("process 7 on a-host")
    assert writer_of(tmp_path) is None


def test_a_peer_that_runs_is_seen_by_all_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real peers on this machine, of which one is looked at after its first round."""
    peers = federated(tmp_path, ct.algorithms.dfedalt(topology="full", **TRAINED), 2)
    addresses = free_addresses("site-0", "site-1", "metrics")
    port, members = addresses.pop("metrics")[1], addresses
    toml, seen = write_toml(tmp_path, members=2), dict[str, Any]()

    def look(event: str, **fields: Any) -> None:
        if event == "round" and fields["round"] == 1:
            seen["metrics"], seen["nothing"], seen["health"] = get(port), get(port, "/"), get(port, "/healthz")
            seen["posted"] = get(port, method="POST")
            show_status(toml, "json")

    def run(p: Participant, on_event: Callable[..., None]) -> None:
        def transport(box: Any, beat: Any, hello: Any) -> Transport:
            where = members[p.name]
            return Transport(
                p.name, members, where, receiver=box, beat=beat, hello=hello, on_event=on_event, timing=QUICK
            )

        with metrics_at(Address("127.0.0.1", port) if p.client == 0 else None, on_event) as serve:
            run_peer(p, transport, on_event, serve=serve)

    other = threading.Thread(target=run, args=(peers[1], lambda *_, **__: None))
    other.start()
    run(peers[0], look)
    other.join()
    code, kind, text = seen["metrics"]
    assert (code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    told = samples(text)
    assert (told["rounds_done"], told['member_up{member="site-1"}']) == (1, 1)
    assert told["sent_bytes_total"] > 0
    assert told['received_messages_total{kind="copy"}'] >= 1
    assert (seen["nothing"][0], seen["health"][0], seen["posted"][0]) == (404, 200, 501)
    shown = json.loads(capsys.readouterr().out)
    assert shown["running"]
    assert shown["members"]["site-1"]["neighbor"]
    assert shown["mass"] is None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(metrics, "PATIENCE", 0.2)
    monkeypatch.setattr(metrics._Request, "timeout", 0.2)
    with MetricsServer(Address("127.0.0.1", 0)) as made, made.serving(lambda: SHOWN):
        yield made.server_address[1]


def test_whoever_says_nothing_is_left(server: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", server)) for _ in range(3)]
    silent[1].sendall(b"GET /metr")
    silent[2].sendall(b"\x00\xff" * 100)
    assert get(server)[0] == 200
    for one in silent:
        one.close()


def test_numbers_that_cannot_be_read_end_nothing() -> None:
    def broken() -> PeerStatus:
        raise KeyError("x")

    with MetricsServer(Address("127.0.0.1", 0)) as made, made.serving(broken):
        port = made.server_address[1]
        assert get(port)[::2] == (500, "the numbers cannot be read now (KeyError)\n")
        assert get(port, "/healthz")[0] == 200


def test_a_taken_port_is_said_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_toml(tmp_path, f"metrics = {port}")
        done = cli.run("peer", "--config", "site-0.toml", cwd=tmp_path)
    assert done.status == 2
    assert done.sentences == [
        f"coterie: cannot show numbers at 127.0.0.1:{port} (address already in use): choose another address in "
        "metrics, or end the program that has it"
    ]
    assert not (tmp_path / "site-0").exists()


def test_other_machines_may_ask_only_with_a_warning() -> None:
    said: list[str] = []
    with metrics_at(Address("0.0.0.0", 0), lambda event, text: said.append(text)):
        assert "can read this peer's numbers" in said[0]
    with metrics_at(Address("127.0.0.1", 0), lambda event, text: said.append(text)):
        assert len(said) == 1


def test_a_status_that_cannot_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: Any) -> None:
        raise FolderError(f"cannot write {path.name} (no space left on device)")

    monkeypatch.setattr(status, "write_json", full)
    said: list[str] = []

    def note(event: str, **fields: Any) -> None:
        if event == "warning":
            said.append(fields["text"])

    run_together(federated(tmp_path, ct.algorithms.dfedalt(topology="full", **TRAINED), 2), note)
    assert said == ["cannot write status.json (no space left on device)"] * 2  # once by each
    assert (tmp_path / "site-0" / "summary.json").exists()


def lines(folder: Path, name: str = LOG) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_log_has_one_line_per_event_in_utc_and_nothing_of_a_payload(tmp_path: Path) -> None:
    shown = io.StringIO()
    log = Log(shown)
    log("early", text="before there is a folder")
    log.keep_in(tmp_path)
    log("odd", loss=float("nan"), tensor=b"secret", text="\x1b[31m" + "x" * 10_000, names=["a", ("b",)], deep={"a": 1})
    early, odd = lines(tmp_path)
    assert early["event"] == "early"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", odd["time"])
    assert (odd["loss"], odd["tensor"], odd["names"], odd["deep"]) == (None, "bytes", ["a", ["b"]], "dict")
    assert len(odd["text"]) == logs.LONGEST
    assert shown.getvalue() == (tmp_path / LOG).read_text()
    assert "\x1b" not in shown.getvalue()


def test_a_log_is_cut_into_files_of_which_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 500)
    log = Log(None)
    log.keep_in(tmp_path)
    for number in range(200):
        log("round", round=number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [LOG, *(f"{LOG}.{i}" for i in range(1, logs.KEPT + 1))]
    kept = [line["round"] for name in reversed(names) for line in lines(tmp_path, name)]
    assert kept == list(range(kept[0], 200))


def test_a_full_disk_ends_no_log_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    log = Log(shown)
    log.keep_in(tmp_path)
    log("first")
    write = os.write

    def half(handle: int, content: bytes) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content[: len(content) // 2])

    monkeypatch.setattr(os, "write", half)
    log("second")
    log("third")
    monkeypatch.setattr(os, "write", write)
    assert [line["event"] for line in lines(tmp_path)] == ["first"]
    log("fourth")
    assert [(line["event"], line.get("lines")) for line in lines(tmp_path)] == [
        ("first", None),
        ("gap", 2),
        ("fourth", None),
    ]
    assert shown.getvalue().count("free the disk") == 1


def test_a_terminal_that_is_gone_ends_no_log(tmp_path: Path) -> None:
    shown = io.StringIO()
    log = Log(shown)
    log.keep_in(tmp_path)
    shown.close()
    log("still there")
    (tmp_path / LOG).write_text((tmp_path / LOG).read_text() + '{"half')
    log("whole")
    assert (tmp_path / LOG).read_text().splitlines()[1] == '{"half'
    assert json.loads((tmp_path / LOG).read_text().splitlines()[2])["event"] == "whole"


def rows(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the page."""
    page = (Path(__file__).parents[2] / "docs" / "peer-log.md").read_text(encoding="utf-8")
    section = page.split(heading, 1)[1].split("\n\n| ", 1)[1].split("\n\n", 1)[0]
    return {name for line in section.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def test_the_page_has_every_event_reason_and_number() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in Path(net.__file__).parent.rglob("*.py"))
    told = set(re.findall(r'(?:on_event|report|_line)\(\s*"(\w+)"', sources)) | {"left", "found"}
    assert rows("## The log") == told
    assert rows("Their reasons:") == set(get_args(Reason))
    series = re.findall(r"# TYPE coterie_peer_(\w+) ", prometheus({**SHOWN, "messages_out": {"copy": 1}}))
    assert rows("## Numbers for Prometheus") == set(series)
