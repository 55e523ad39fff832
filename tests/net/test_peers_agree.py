"""Undisturbed peers have the numbers of the serial engine, each method."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie import algorithms
from coterie.algorithms.base import Round, Trained
from coterie.core.errors import DivergedError, UserError
from coterie.data import Federation
from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.net.setup.prepare import check_between_peers
from coterie.net.wire.transport import Transport
from coterie.store import RunFolder
from coterie.training.client import folded
from laws import METHODS, build, kind_like
from local_peers import participants, run_together
from net_members import Certified, free_addresses
from toys import experiment, net, ragged

ROUNDS = 2
MEMBERS = [f"site-{i}" for i in range(3)]


def between_peers(row: str) -> bool:
    kind = kind_like(row, "mlp")
    e = experiment(net(kind), ragged(kind), build(row), Serial())
    try:
        check_between_peers(e.algorithm, Model(net(kind), cross_entropy), e.federation.clients, e.settings)
    except UserError:
        return False
    return e.program.training.quantize is None and e.program.participation == 1.0


PEERS = [row for row in METHODS if between_peers(row)]


def test_several_pushes_need_receivers_that_weigh_what_they_hear() -> None:
    """Copies that come twice are one copy; mass that is handed over twice after a crash would be lost."""
    assert "dfedalt, sharp" in PEERS
    e, given = experiment(net("mlp"), ragged("mlp"), build("dfedpgp, sharp")), Model(net("mlp"), cross_entropy)
    with pytest.raises(UserError, match=r"gossip_steps=2 hands over mass several times .* leave gossip_steps out"):
        check_between_peers(e.algorithm, given, e.federation.clients, e.settings)
    pull = algorithms.build("dfedpgp", topology="random-pull:2", gossip_steps=2)
    check_between_peers(pull, given, e.federation.clients, e.settings)


@pytest.mark.parametrize("row", PEERS)
def test_peers_have_the_numbers_of_the_serial_engine(row: str, tmp_path: Path) -> None:
    """Everybody's model, and its accuracies in every round."""
    kind = kind_like(row, "batchnorm")
    check(row, kind, ragged(kind), tmp_path)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("certs"), *MEMBERS)


@pytest.mark.parametrize("row", ["dfedalt", "dfedsam-mgs", "dfedpgp", "dispfl", "fedamp, ring"])
def test_three_peers_over_connections_have_them_as_well(row: str, tmp_path: Path, certified: Certified) -> None:
    """With mutual TLS, for every kind of exchange."""
    where = free_addresses(*MEMBERS)

    def transport(name: str, box: Any, beat: Any, hello: Any) -> Transport:
        tls = certified.server(name), certified.client(name)
        return Transport(
            name, where, where[name], receiver=box, beat=beat, hello=hello, on_event=lambda *_, **__: None,
            server_tls=tls[0], client_tls=tls[1],
        )  # fmt: skip

    check(row, "mlp", ragged("mlp").of_clients(np.arange(3)), tmp_path, transport)


def test_who_diverges_after_a_mix_names_whose_models_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the others may be the cause, and then a lower lr is of no use."""

    def diverges(trained: Trained, r: Round) -> None:
        if r.index == 1:
            raise DivergedError("the loss of a site is not finite any more in round 2: lower lr")

    monkeypatch.setattr(Trained, "check_finite", diverges)
    fed = ragged("mlp").of_clients(np.arange(3))
    three = participants(lambda: Model(net("mlp"), cross_entropy), fed, build("dfedalt"), ROUNDS, tmp_path, wait=3.0)
    with pytest.raises(
        DivergedError, match=r"in round 2, after models of site-., site-. were mixed in: .* if not, lower lr"
    ):
        run_together(three)


def check(row: str, kind: str, fed: Federation, folder: Path, transport: Any = None) -> None:
    algorithm = build(row)
    e = experiment(net(kind), fed, algorithm, Serial(), rounds=ROUNDS)
    now, values = e.start(), []
    for t in range(ROUNDS):
        now, _ = e.run_round(now, t, evaluate=True)
        values.append(now.values or {})
    wait = 3.0 if transport is None else 60.0
    peers = participants(lambda: Model(net(kind), cross_entropy), fed, algorithm, ROUNDS, folder, wait=wait)
    run_together(peers, transport=transport)
    for p, client in zip(peers, e.clients(now.state), strict=True):
        assert not [*p.folder.glob("outbox/*"), *p.folder.glob("inbox/transfer-*")]  # whoever has finished needs none
        found = load_file(next(p.folder.glob("clients/client-0000*")))
        for k, v in folded([client]).own[0].items():
            torch.testing.assert_close(found[k], v, rtol=1e-5, atol=1e-5, msg=lambda m, k=k: f"{k}: {m}")
        for measured, there in zip(RunFolder(p.folder).rows(), values, strict=True):
            for protocol, each in there.items():
                assert measured[f"personal_accuracy_{protocol}"] == pytest.approx(float(each[p.client, 0]))  # type: ignore[literal-required]
