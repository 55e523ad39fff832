"""Undisturbed peers have the numbers of the serial engine, each method."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.store import RunFolder, client_file
from coterie.training.run import client_tensors
from laws import METHODS, build, kind_like
from local_peers import participants, run_together
from toys import experiment, net, ragged

ROUNDS = 2


def between_peers(row: str) -> bool:
    e = experiment(net(kind_like(row, "mlp")), ragged(kind_like(row, "mlp")), build(row), Serial())
    return e.program.topology is not None and e.program.training.quantize is None and e.program.participation == 1.0


PEERS = [row for row in METHODS if between_peers(row)]


@pytest.mark.parametrize("row", PEERS)
def test_peers_have_the_numbers_of_the_serial_engine(row: str, tmp_path: Path) -> None:
    """Everybody's model, and its accuracies in every round."""
    kind = kind_like(row, "batchnorm")
    algorithm, fed = build(row), ragged(kind)
    e = experiment(net(kind), fed, algorithm, Serial(), rounds=ROUNDS)
    now, values = e.start(), []
    for t in range(ROUNDS):
        now, _ = e.run_round(now, t, evaluate=True)
        values.append(now.values or {})
    peers = participants(lambda: Model(net(kind), cross_entropy), fed, algorithm, ROUNDS, tmp_path, wait=3.0)
    run_together(peers)
    for p, client in zip(peers, e.clients(now.state), strict=True):
        found = load_file(client_file(p.folder, 0))
        for k, v in client_tensors(client).items():
            torch.testing.assert_close(found[k], v, rtol=1e-5, atol=1e-5, msg=lambda m, k=k: f"{k}: {m}")
        for measured, there in zip(RunFolder(p.folder).rows(), values, strict=True):
            for protocol, each in there.items():
                assert measured[f"personal_accuracy_{protocol}"] == pytest.approx(float(each[p.client, 0]))  # type: ignore[literal-required]
