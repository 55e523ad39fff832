"""Many clients: the same graphs without anything of size n x n."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie import topology
from coterie.core.errors import UserError
from coterie.engines import Serial
from coterie.topology import draws, facts, graphs, parse, sparse
from laws import METHODS, build, kind_like
from toys import experiment, net, play, ragged

N = 12
# Those that can be compared entry by entry; random-pull and random-push draw otherwise for many clients.
SAME = [
    "one-peer-exponential",
    "ring",
    "grid",
    "exponential",
    "star",
    "none",
    "random:4",
    "random:5",
    "clique:3,count=2",
    "clique:3,turns=2",
]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients are many."""
    for module in (graphs, draws, parse, facts, sparse):
        monkeypatch.setattr(module, "DENSE", 2)


def matrices(text: str, rounds: int = 4) -> list[Tensor]:
    made = topology.build(text, N, seed=3)
    return [made(t) for t in range(rounds)]


@pytest.mark.parametrize("text", [*SAME, "random-pull:4", "random-push:4"])
@pytest.mark.parametrize("limit", [N - 1, N])
def test_a_matrix_is_dense_up_to_so_many_clients(text: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graphs, draws, parse, facts, sparse):
        monkeypatch.setattr(module, "DENSE", limit)
    assert matrices(text, 1)[0].is_sparse == (limit < N)


@pytest.mark.parametrize("text", SAME)
def test_sparse_graphs_are_the_dense_ones(text: str, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    thin = matrices(text)
    monkeypatch.undo()
    thick = matrices(text)
    for a, b in zip(thin, thick, strict=True):
        assert a.is_sparse
        assert not b.is_sparse
        torch.testing.assert_close(a.to_dense(), b, rtol=1e-15, atol=1e-15)
        assert topology.edges(a) == topology.edges(b)
        assert facts.stochasticity(a) == facts.stochasticity(b)
        torch.testing.assert_close(topology.diagonal(a), topology.diagonal(b), rtol=1e-15, atol=1e-15)
        assert torch.equal(topology.support(a).to_dense(), topology.support(b))


@pytest.mark.parametrize(("text", "axis", "kind"), [("random-pull:4", 1, "row"), ("random-push:4", 0, "column")])
def test_drawn_neighbors(text: str, axis: int, kind: str, few: None) -> None:
    seen = torch.zeros(N, N)
    for t, W in enumerate(matrices(text, 300)):
        full = W.to_dense()
        assert facts.stochasticity(W) == kind
        assert ((full > 0).sum(axis) == 5).all()
        assert torch.equal(full, topology.build(text, N, seed=3)(t).to_dense())
        seen += full > 0
    off = seen[~torch.eye(N, dtype=torch.bool)]
    expected = 300 * 4 / (N - 1)
    assert float(((off - expected) ** 2 / expected).mean()) < 2  # about 1 - 4/11


@pytest.mark.parametrize("keeps", ["receiver", "sender"])
def test_silence_is_the_same_in_both_forms(keeps: str, few: None) -> None:
    W = matrices("random:4", 1)[0]
    thin = topology.drop_messages(W, 0.4, keeps, np.random.default_rng(0))
    thick = topology.drop_messages(W.to_dense(), 0.4, keeps, np.random.default_rng(0))
    torch.testing.assert_close(thin.to_dense(), thick, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("row", [r for r in METHODS if build(r).settings.get("topology")])
def test_methods_do_not_notice(row: str, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method between peers computes the same over a sparse ring as over a dense one."""

    def after() -> dict[str, Tensor]:
        method, settings = METHODS[row]
        algorithm = ct.algorithms.build(method, **{**build(row).settings, **settings, "topology": "ring"})
        e = experiment(net(kind_like(row, "mlp")), ragged("mlp"), algorithm, Serial(), drop_messages=0.3)
        return e.program.models(play(e, 2).state)

    thin = after()
    monkeypatch.undo()
    for k, v in after().items():
        torch.testing.assert_close(thin[k], v, rtol=1e-9, atol=1e-9)


def test_ten_thousand_clients_have_no_dense_matrix() -> None:
    n, k = 10_000, 10
    for text in ("ring", "grid", "exponential", f"random:{k}", f"random-pull:{k}", f"random-push:{k}", "star"):
        W = topology.build(text, n)(1)
        assert W.is_sparse
        assert W.values().numel() <= 20 * n
    x = torch.randn(n, 5)
    mixed = Serial().mix(topology.build("random:10", n)(0), {"x": x})["x"]
    torch.testing.assert_close(mixed.mean(0), x.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("look", [topology.spectral_gap, topology.degree, topology.diameter, topology.in_neighbors])
def test_what_needs_the_whole_matrix_is_refused(look: Any) -> None:
    with pytest.raises(UserError, match="too large"):
        look(topology.ring(3000)(0))


def test_everybody_with_everybody_is_refused_for_many() -> None:
    with pytest.raises(UserError, match="server"):
        topology.full(3000)


def test_a_matrix_of_your_own_may_be_sparse() -> None:
    n = 2500
    ring = topology.ring(n)(0)
    made = topology.build(lambda t: ring, n)
    assert made.stochastic == "doubly"
    assert torch.equal(made(0).to_dense(), ring.to_dense())
