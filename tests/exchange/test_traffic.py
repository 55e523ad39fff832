"""Who sends and gets how much: the busiest node in closed form, and independently counted link by link."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.bind import SCALE_BYTES
from coterie.algorithms.pushsum import WEIGHT_BYTES
from coterie.algorithms.traffic import Load, over
from coterie.topology import build, degrees, drop_messages
from toys import experiment, net, ragged

BODY, HEAD = 16 * 8 + 8, 8 * 3 + 3
SIZE = 4 * (BODY + HEAD)  # of the whole model in bytes
CLIENTS = 5


def row_of(algorithm: Any, model: str = "mlp", **more: Any) -> dict[str, Any]:
    e = experiment(net(model, torch.float32), ragged(model, torch.float32), algorithm, **more)
    return e.run_round(e.start(), 0, evaluate=False)[1]


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (ct.algorithms.local(), 0, 0),
        (ct.algorithms.dfedavg(topology="ring"), 2 * SIZE, 2 * SIZE),
        (ct.algorithms.dfedavg(topology="full"), 4 * SIZE, 4 * SIZE),
        (ct.algorithms.dfedavg(topology="star"), 4 * SIZE, 4 * SIZE),  # its middle
        (ct.algorithms.dfedalt(topology="ring"), 2 * 4 * BODY, 2 * 4 * BODY),
        (ct.algorithms.dfedsam_mgs(topology="ring", gossip_steps=3), 6 * SIZE, 6 * SIZE),
        (ct.algorithms.dfedalt(topology="ring", gossip_steps=3), 6 * 4 * BODY, 6 * 4 * BODY),
        (ct.algorithms.dfedpgp(topology="ring", gossip_steps=3), 6 * (4 * BODY + 8), 6 * (4 * BODY + 8)),
        (ct.algorithms.fedavg(participation=3), 3 * SIZE, 3 * SIZE),  # the server
        (ct.algorithms.fedper(participation=1.0), 5 * 4 * BODY, 5 * 4 * BODY),
        (ct.algorithms.dfedalt(topology="ring", personal="all"), 0, 0),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_the_busiest_node_in_closed_form(algorithm: Any, up: int, down: int) -> None:
    row = row_of(algorithm)
    assert (row["busiest_bytes_up"], row["busiest_bytes_down"]) == (up, down)


def test_who_pushes_to_two_sends_two_but_may_get_more() -> None:
    algorithm = ct.algorithms.dfedpgp(topology="random-push:2")
    e = experiment(net("mlp", torch.float32), ragged("mlp", torch.float32), algorithm)
    _, row = e.run_round(e.start(), 0, evaluate=False)
    W = e.round(0).W
    assert W is not None
    each = 4 * BODY + WEIGHT_BYTES
    assert row["busiest_bytes_up"] == 2 * each
    assert row["busiest_bytes_down"] == max((W[i] != 0).sum() - 1 for i in range(CLIENTS)) * each
    pulled = row_of(ct.algorithms.dfedavg(topology="random-pull:2"))
    assert pulled["busiest_bytes_down"] == 2 * SIZE
    assert pulled["busiest_bytes_up"] >= 2 * SIZE


def test_few_bits_count_where_they_are_few() -> None:
    """Between peers every message, with a server only those of the clients."""
    few = (BODY + HEAD) * 8 // 8 + 4 * SCALE_BYTES
    ring = row_of(ct.algorithms.dfedavg(topology="ring", quantize=8))
    assert (ring["busiest_bytes_up"], ring["busiest_bytes_down"]) == (2 * few, 2 * few)
    server = row_of(ct.algorithms.fedavg(participation=5, quantize=8))
    assert (server["busiest_bytes_up"], server["busiest_bytes_down"]) == (5 * SIZE, 5 * few)
    fewer = row_of(ct.algorithms.fedavg(participation=3, quantize=8))
    assert fewer["busiest_bytes_down"] == max(SIZE, 3 * few) == SIZE  # a client gets more than the server


def test_total_silence_sends_nothing() -> None:
    row = row_of(ct.algorithms.dfedavg(topology="full"), drop_messages=1.0)
    assert row["busiest_bytes_up"] == row["busiest_bytes_down"] == row["messages_sent"] == 0


def test_a_server_of_unequal_clients_carries_the_sum_of_what_they_hold() -> None:
    algorithm = ct.algorithms.heterofl(capacities="b4-b2", participation=1.0)
    e = experiment(net("mlp", torch.float32), ragged("mlp", torch.float32), algorithm)
    _, row = e.run_round(e.start(), 0, evaluate=False)
    assert e.program.submodels is not None
    frozen = [
        (len(a.places), sum(v.numel() for v in a.submodel.model.start.values()))
        for a in e.program.submodels(e.round(0))
    ]
    assert len(frozen) == 2
    assert row["busiest_bytes_up"] == row["busiest_bytes_down"] == 4 * sum(count * size for count, size in frozen)
    assert row["busiest_bytes_up"] * 2 == row["bytes_sent"]
    each = [(count, 16 * h + h + h * 3 + 3) for (count, _), h in zip(frozen, (8, 4), strict=True)]
    assert row["forward_flops"] == sum(count * (size - h - 3) for (count, size), h in zip(each, (8, 4), strict=True))


@pytest.mark.parametrize("graph", ["exponential", "random:4", "random-pull:3", "random-push:3"])
def test_degrees_are_those_of_networkx(graph: str) -> None:
    W = drop_messages(build(graph, 30, seed=1)(2), 0.3, "receiver", np.random.default_rng(0))
    links = nx.from_numpy_array(W.T.numpy(), create_using=nx.DiGraph)  # an edge from the sender to the receiver
    links.remove_edges_from(list(nx.selfloop_edges(links)))
    out, into = degrees(W)
    assert out.tolist() == [d for _, d in links.out_degree()]
    assert into.tolist() == [d for _, d in links.in_degree()]
    (messages,) = over(W, Load(1, 4, 1))
    assert int(messages.out.sum()) == links.number_of_edges()


def test_one_sample_a_participant_is_counted_forward_once() -> None:
    row = row_of(ct.algorithms.fedavg(participation=3, epochs=7))
    assert row["forward_flops"] == 3 * (16 * 8 + 8 * 3)


def test_the_summary_has_the_busiest_round() -> None:
    algorithm = ct.algorithms.dfedpgp(topology="random-push:2", epochs=1, batch_size=4)
    run = ct.fit(net("mlp"), ragged("mlp"), algorithm, rounds=6, progress=False, evaluate_every=6)
    for way in ("busiest_bytes_up", "busiest_bytes_down"):
        assert run.summary[way] == max(row[way] for row in run.history)
    assert len({row["busiest_bytes_down"] for row in run.history}) > 1


def test_every_gossip_step_may_have_a_graph_of_its_own() -> None:
    """Degrees of all steps add up, node by node."""
    algorithm = ct.algorithms.dfedsam_mgs(topology="random-pull:2", gossip_steps=3, fresh_graph=True)
    e = experiment(net("mlp", torch.float32), ragged("mlp", torch.float32), algorithm)
    _, row = e.run_round(e.start(), 0, evaluate=False)
    graphs = [W.numpy() for W in e.round(0).Ws]
    assert len(graphs) == 3
    links = sum((W != 0) & ~np.eye(CLIENTS, dtype=bool) for W in graphs)
    assert row["busiest_bytes_up"] == SIZE * links.sum(0).max()
    assert row["busiest_bytes_down"] == SIZE * links.sum(1).max() == 6 * SIZE
