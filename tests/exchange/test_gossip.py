"""Several exchanges a round: over one graph, or each over a graph of its own."""

from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie.core.errors import UserError
from coterie.topology import clique
from quadratic import ENGINES, close, plain, shared_only
from toys import U0, experiment, golden, net, play, ragged, scattered

START = torch.tensor(U0, dtype=torch.float64)


def drawn(t: int) -> Tensor:
    """A row-stochastic matrix of random weights, another one for every t."""
    W = torch.rand(4, 4, generator=torch.Generator().manual_seed(t), dtype=torch.float64) + 0.05
    return W / W.sum(1, keepdim=True)


def mgs(engine: Any = None, rounds: int = 2, drop_messages: float = 0.0, **settings: Any) -> Any:
    algorithm = plain("dfedsam-mgs", steps=0, **settings)
    e = experiment(shared_only(), golden(), algorithm, engine, drop_messages=drop_messages)
    return play(e, rounds, scattered(e)).state.x["u"]


@ENGINES
def test_fresh_graphs_multiply(engine: Any) -> None:
    """Nobody trains: two rounds of three steps are the six matrices of the topology, one after another."""
    six = reduce(lambda x, t: drawn(t) @ x, range(6), START)
    close(mgs(engine, topology=drawn, gossip_steps=3, fresh_graph=True), six)
    same = reduce(lambda x, t: torch.linalg.matrix_power(drawn(t), 3) @ x, range(2), START)
    close(mgs(engine, topology=drawn, gossip_steps=3), same)
    assert not torch.allclose(six, same)


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_on_a_fixed_graph_fresh_is_the_same(lost: float) -> None:
    for graph in ("ring", "star", "exponential"):
        settings = {"topology": graph, "gossip_steps": 3, "drop_messages": lost}
        fresh, same = (mgs(**settings, fresh_graph=fresh) for fresh in (True, False))
        assert torch.equal(fresh, same)


@pytest.mark.parametrize("n", [12, 2010])
def test_turns_take_clients_that_had_none(n: int) -> None:
    """Sets of all turns are disjoint and drawn together: their matrices multiply to that of all sets at once."""
    one_by_one, at_once = clique(n, 3, turns=4, seed=5), clique(n, 3, count=4, seed=5)
    for t in range(2):
        four = [one_by_one(4 * t + q).to_dense() for q in range(4)]
        sizes = [int((W.diagonal() != 1).sum()) for W in four]
        assert sizes == [3, 3, 3, 3]
        close(reduce(torch.matmul, four), at_once(t).to_dense())
    assert not torch.equal(at_once(0).to_dense(), at_once(1).to_dense())


@pytest.mark.parametrize("bits", [None, 8])
def test_drawing_q_groups_for_q_steps_costs_one_message_a_pair(bits: int | None) -> None:
    """DFedSAM's Appendix B.4 with groups of 2 and 2 steps: every message is one client's own trained model."""
    settings = {"epochs": 1, "batch_size": 4, "quantize": bits}
    e, once = (
        experiment(net("mlp"), ragged("mlp"), ct.algorithms.dfedsam_mgs(topology=topology, **own, **settings), seed=3)
        for topology, own in (
            ("clique:2,turns=2", {"gossip_steps": 2, "fresh_graph": True}),
            ("clique:2,count=2", {"gossip_steps": 1}),
        )
    )
    left, right = (x.run_round(x.start(), 0, evaluate=False) for x in (e, once))
    for k, v in left[0].state.inner.x.items() if bits else left[0].state.x.items():
        torch.testing.assert_close(v, (right[0].state.inner if bits else right[0].state).x[k])
    assert left[1]["messages_sent"] == right[1]["messages_sent"] == 4
    assert left[1]["bytes_sent"] == right[1]["bytes_sent"]


@pytest.mark.parametrize("fresh", [True, False])
def test_what_is_lost_is_lost_step_by_step(fresh: bool) -> None:
    algorithm = ct.algorithms.dfedsam_mgs(topology="random:4", gossip_steps=3, fresh_graph=fresh)
    e = experiment(net("mlp"), ragged("mlp"), algorithm, drop_messages=0.5).changed(offline=0.3)
    r = e.round(2)
    assert len(r.Ws) == 3
    assert not torch.equal(r.Ws[0], r.Ws[1])
    for W in r.Ws:
        close(W.sum(1), torch.ones(5, dtype=torch.float64))
        assert all(float(W[i, i]) == pytest.approx(1) for i in range(5) if i not in r.global_cohort)
    sent = e.program.traffic(e.start().state, r)
    assert sent.totals.messages == sum(int((W > 0).sum()) - 5 for W in r.Ws)


def test_steps_over_one_graph_lose_messages_independently() -> None:
    """Of the messages that the first step loses, the second loses as many as of all others; the graph is one."""
    algorithm = ct.algorithms.dfedsam_mgs(topology="random:2", gossip_steps=2)
    e = experiment(net("mlp"), ragged("mlp"), algorithm, drop_messages=0.3)
    lost = []
    for t in range(200):
        whole, Ws = e.program.topology(t) > 0, e.round(t).Ws
        assert all(bool((whole | (W == 0)).all()) for W in Ws)
        off = whole & ~torch.eye(5, dtype=torch.bool)
        lost.append(torch.stack([W[off] == 0 for W in Ws]))
    first, second = torch.cat(lost, 1).double()
    deviation = (0.3 * 0.7) ** 0.5
    for seen in (first, second, second[first == 1], second[first == 0]):
        assert abs(float(seen.mean()) - 0.3) < 5 * deviation / len(seen) ** 0.5


def test_one_step_has_nothing_fresh() -> None:
    with pytest.raises(UserError, match="raise gossip_steps"):
        ct.algorithms.dfedsam_mgs(gossip_steps=1, fresh_graph=True)


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_a_graph_that_stays_has_nothing_fresh(lost: float) -> None:
    algorithm = ct.algorithms.dfedsam_mgs(topology="ring", gossip_steps=2, fresh_graph=True)
    with pytest.raises(UserError, match="ring is always the same: leave it out"):
        experiment(net("mlp"), ragged("mlp"), algorithm, drop_messages=lost).check()


@pytest.mark.parametrize("method", ["dfedavg", "osgp"])
def test_one_peer_a_round_brings_the_exact_mean(method: str) -> None:
    """Four clients, two rounds, nobody trains: the mean to the last bit; push-sum's weights stay 1."""
    e = experiment(shared_only(), golden(), plain(method, topology="one-peer-exponential", steps=0))
    now = play(e, 2, scattered(e))
    assert e.program.models(now.state)["u"].tolist() == [0.125] * 4
    assert e.run_round(now, 2, evaluate=False)[1]["messages_sent"] == 4
