"""A member keeps the model of its best round by validation samples of its own, and may stop to train."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography", reason="peers need coterie[peers]")

import coterie as ct
from coterie.algorithms.base import Algorithm
from coterie.core.errors import UserError
from coterie.data import Federation
from coterie.models.model import Model, cross_entropy
from coterie.net.setup.config import load
from coterie.net.setup.own_data import own_data
from coterie.report.collect import collect
from federation_files import FederationFiles
from local_peers import participants, run_together
from net_members import free_addresses
from peer_processes import PeerServer, wait_until

NAMES = ("site-0", "site-1", "site-2")
ROUNDS, VALIDATION = 6, 0.3
GROWING = {"lr": 0.05, "lr_decay": 2.2, "epochs": 1, "batch_size": 8, "momentum": 0.5}  # the last rounds are bad ones
PROTOCOLS = ("after_mix", "after_train", "validation")


@pytest.fixture(scope="module")
def fed() -> Federation:
    made = ct.data.federate("synthetic:size=240,classes=4", clients=3, partition="dirichlet:1.0", seed=0)
    return replace(made, names=NAMES)


def model(fed: Federation) -> Model:
    return Model(ct.models.build("mlp:width=16", fed, seed=0), cross_entropy)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "algorithm",
    [
        ct.algorithms.dfedalt(topology="ring", personal_lr=0.05, **GROWING),
        ct.algorithms.pfedlmt(
            topology="ring", capacities="1-0.5-0.25", keep_layers=1, clip=1.0, **{**GROWING, "lr_decay": 1.5}
        ),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_peers_keep_what_a_simulation_keeps(fed: Federation, algorithm: Algorithm, tmp_path: Path) -> None:
    chosen: Any = {"validation": VALIDATION, "select": "best-validation-per-client"}
    simulated = ct.fit(model(fed).module, fed, algorithm, rounds=ROUNDS, engine="serial", progress=False, **chosen)
    peers = participants(
        lambda: model(fed), fed, algorithm, ROUNDS, tmp_path, wait=10.0, validation=VALIDATION, selection=chosen
    )
    run_together(peers)
    taken = simulated.client_summary["rounds"]
    assert min(taken) < ROUNDS
    for i, p in enumerate(peers):
        run = ct.load(p.folder)
        assert run.client_summary["rounds"] == [taken[i]]
        assert run.client_summary["train_samples"] == [simulated.client_summary["train_samples"][i]]
        for name, value in (simulated.clients[i].shared | simulated.clients[i].personal).items():
            there = (run.clients[p.name].shared | run.clients[p.name].personal)[name]
            torch.testing.assert_close(there, value, rtol=1e-4, atol=1e-4)
        for protocol in PROTOCOLS:
            values = run.client_summary["accuracy"][protocol] + [simulated.client_summary["accuracy"][protocol][i]]
            assert values[0] == pytest.approx(values[1], abs=1e-5)
    (record,) = collect([p.folder for p in peers]).records
    for protocol in PROTOCOLS[:2]:
        expected = simulated.summary["personal_accuracy"][protocol]
        joined = record.summary["personal_accuracy"][protocol]
        assert (joined["final"], joined["worst"]) == pytest.approx((expected["final"], expected["worst"]), abs=1e-5)
    assert record.client_summary["rounds"] == taken


@pytest.mark.parametrize("method", ["dfedalt", "dfedpgp"])
def test_out_of_patience_a_member_exchanges_and_takes_no_step(fed: Federation, method: str, tmp_path: Path) -> None:
    graph = "random-push:2" if method == "dfedpgp" else "ring"
    algorithm = ct.algorithms.build(method, topology=graph, personal_lr=0.05, **GROWING)
    selection: Any = {"validation": VALIDATION, "select": "best-validation", "patience": 1}
    events: list[tuple[str, dict[str, Any]]] = []
    peers = participants(
        lambda: model(fed), fed, algorithm, ROUNDS, tmp_path, wait=10.0, validation=VALIDATION, selection=selection
    )
    run_together(peers, lambda event, **fields: events.append((event, fields)))
    assert any(event == "rests" for event, _ in events)
    for p in peers:
        history, best, since = rows(p.folder), -1.0, 0
        assert len(history) == ROUNDS
        for row in history:
            assert (row["train_loss"] is None) == (row["flops"] == 0) == (since >= 1), row
            assert row["messages_sent"] > 0
            value = float(f"{row['personal_accuracy_validation']:.12g}")
            best, since = (value, 0) if value > best else (best, since + 1)
        assert json.loads((p.folder / "summary.json").read_text())["rounds"] == ROUNDS
        assert len(ct.load(p.folder).history) == ROUNDS
    if method == "dfedpgp":
        mass = sum(fields["mass"] for event, fields in events if event == "round" and fields["round"] == ROUNDS)
        assert mass == len(NAMES)  # nothing of it is on its way after the last round


def test_a_killed_member_keeps_the_model_that_it_has_chosen(peer_server: PeerServer, tmp_path: Path) -> None:
    where = {name: f"{host}:{port}" for name, (host, port) in free_addresses(*NAMES).items()}
    settings = {**GROWING, "personal_lr": 0.05, "topology": "ring"}
    own = {"validation": VALIDATION, "select": "best-validation", "wait": "60s"}
    files = FederationFiles(tmp_path, where, "dfedalt", ROUNDS, settings, model="mlp:width=8", own=own).write()
    running = {name: peer_server.start(files.config(name), pause=0.2) for name in NAMES}
    wait_until(
        lambda: (files.run("site-0") / "chosen").exists() and len(files.events("site-0", "round")) >= 4, "4 rounds"
    )
    running["site-0"].send(signal.SIGKILL)
    running["site-0"].wait()
    running["site-0"] = peer_server.start(files.config("site-0"))
    assert [peer.wait() for peer in running.values()] == [0, 0, 0], running["site-0"].said
    for name in NAMES:
        history = {row["round"]: row for row in rows(files.run(name))}
        scores = {t: row["personal_accuracy_validation"] for t, row in history.items()}
        best = max((t for t in scores if scores[t] is not None), key=lambda t: (scores[t], -t))
        known = json.loads((files.run(name) / "clients.json").read_text())
        assert known["rounds"] == [best] if "rounds" in known else best == ROUNDS
        told = json.loads((files.run(name) / "summary.json").read_text())
        assert told["selection"] == {"rule": "best-validation", "round": best}
        data = own_data(load(files.config(name)))
        file = ct.export.save(files.run(name), name, tmp_path / f"{name}.safetensors")
        right = (ct.export.load(file)(data.test_x).argmax(dim=1) == data.test_y).double().mean()
        assert float(right) == pytest.approx(history[best]["personal_accuracy_after_mix"], abs=1e-6)
    ends = json.loads((files.run("site-0") / "summary.json").read_text())["personal_accuracy"]["validation"]
    assert ends["final"] > rows(files.run("site-0"))[-1]["personal_accuracy_validation"]
    assert len(files.events("site-0", "begins")) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('select = "best-validation"', "select=best-validation looks at validation samples.*write validation = 0.2"),
        ("patience = 3", "patience=3 looks at validation samples"),
        ('validation = 0.2\nselect = "best-test"', 'select=best-test .*write validation = 0.2 and select = "best-'),
        ("validation = 2.0", "validation"),
        ('select = "best"', "select='best' is not a choice"),
    ],
)
def test_a_choice_without_samples_for_it_is_refused(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "peer.toml").write_text(
        '[federation]\nid = "a"\nmethod = "dfedalt"\nrounds = 2\nmodel = "mlp"\n[federation.members]\n'
        'alpha = "127.0.0.1:7443"\nbeta = "127.0.0.1:7444"\n[peer]\nname = "alpha"\nfolder = "a"\n'
        f'data = "npz:a.npz"\n{lines}\n'
    )
    with pytest.raises(UserError, match=said):
        load(tmp_path / "peer.toml")
