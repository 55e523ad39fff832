"""Laws and closed forms of the topologies, and what people see of them."""

import pickle
import sys
from collections.abc import Callable
from functools import partial
from math import ceil, cos, log2, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie import topology as tp
from coterie.cli.show.topology import draw_png, show_topology
from coterie.core.errors import UserError
from coterie.core.spec import scaled

TEXTS = [
    "ring",
    "exponential",
    "full",
    "star",
    "none",
    "grid",
    "random:3",
    "random:4",
    "random-pull:3",
    "random-push:3",
    "clique:3,count=2",
    "clique:3,turns=2",
    "one-peer-exponential",
]
FIXED = TEXTS[:6]


def law(**drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`given` without a time limit for one example: the machine may be busy."""
    return lambda test: settings(deadline=None)(given(**drawn)(test))


def alpha(n: int, k: int) -> float:
    """What is left of the squared distance to the mean after one mix with k random neighbors, on average."""
    return (n / (k + 1) - 1) / (n - 1)


def neighbors(topology: tp.Topology, t: int = 0) -> list[set[int]]:
    return [set(row) for row in tp.in_neighbors(topology(t))]


def weights(W: Tensor) -> set[float]:
    return set(W.flatten().tolist())


def lam(topology: tp.Topology) -> float:
    return 1 - tp.spectral_gap(topology(0))


def centered(*shape: int, seed: int = 0) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return x - x.mean(0)


def circulant(n: int, offsets: tuple[int, ...]) -> Tensor:
    eye = torch.eye(n)
    return sum((eye.roll(s * offset, 1) for offset in offsets for s in (1, -1)), torch.zeros(n, n))


# Laws of every topology


@pytest.mark.parametrize("text", TEXTS)
@law(half=st.integers(4, 14), seed=st.integers(0, 99), t=st.integers(0, 999))
def test_sums_signs_and_self_loops(text: str, half: int, seed: int, t: int) -> None:
    topology = tp.build(text, 2 * half, seed)
    W = topology(t)
    assert W.dtype == torch.float64
    assert W.shape == (2 * half, 2 * half)
    assert (W >= 0).all()
    assert (W.diagonal() > 0).all()
    axes = {"doubly": (0, 1), "row": (1,), "column": (0,)}[topology.stochastic]
    for axis in axes:
        assert (W.sum(axis) - 1).abs().max() < 1e-12
    assert tp.stochasticity(W) in (topology.stochastic, "doubly")
    assert torch.equal(tp.build(topology.name, 2 * half, seed)(t), W)


@pytest.mark.parametrize("text", [text for text in TEXTS if "pu" not in text])
@law(half=st.integers(4, 14), t=st.integers(0, 999))
def test_doubly_stochastic_mixing_keeps_the_mean_and_contracts(text: str, half: int, t: int) -> None:
    W = tp.build(text, 2 * half)(t)
    x = torch.from_numpy(np.random.default_rng(t).normal(size=(2 * half, 3)))
    mean = x.mean(0)
    assert ((W @ x).mean(0) - mean).abs().max() < 1e-12
    left = 1 - tp.spectral_gap(W)
    for column in range(3):
        before, after = (x - mean)[:, column].norm(), (W @ x - mean)[:, column].norm()
        assert after <= left * before + 1e-12


@pytest.mark.parametrize("text", ["ring", "full", "star", "none", "grid", "random:3", "random:4", "clique:3,count=2"])
@law(half=st.integers(4, 14), t=st.integers(0, 999))
def test_undirected_ones_are_symmetric(text: str, half: int, t: int) -> None:
    W = tp.build(text, 2 * half)(t)
    assert torch.allclose(W, W.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("text", TEXTS)
def test_the_draw_depends_on_seed_and_round_only(text: str) -> None:
    one, two, other = tp.build(text, 12, 7), tp.build(text, 12, 7), tp.build(text, 12, 8)
    later = one(5)
    assert torch.equal(later, two(5))
    assert torch.equal(pickle.loads(pickle.dumps(one))(5), later)
    assert one.fixed == (text in FIXED)
    assert torch.equal(one(4), later) == one.fixed
    assert torch.equal(other(5), later) == (one.fixed or text == "one-peer-exponential")  # which draws nothing
    if one.fixed:
        assert one(0) is one(1)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 16, 100])
def test_one_peer_after_another(n: int) -> None:
    """Who sends to whom, counted as the original code does: offsets 2^0 to 2^floor(log2(n - 1)), then again."""
    graph = tp.build("one-peer-exponential", n)
    powers = int(log2(n - 1)) + 1
    for t in range(2 * powers + 1):
        W = graph(t)
        to = tp.in_neighbors(W.T)
        assert to == [[(i + 2 ** (t % powers)) % n] for i in range(n)]
        assert (W.sum(0) == 1).all()
        assert (W.sum(1) == 1).all()
        assert weights(W) <= {0.0, 0.5}
    assert (graph.stochastic, tp.edges(graph(0)), tp.degree(graph(0))) == ("doubly", n, (1, 1.0, 1))
    product = torch.linalg.multi_dot([graph(t) for t in range(3, 3 + powers)]) if powers > 1 else graph(3)
    assert torch.equal(product, torch.full((n, n), 1 / n, dtype=torch.float64)) == (n & (n - 1) == 0)


@pytest.mark.parametrize("transposed", [False, True], ids=["row", "column"])
def test_the_gap_of_an_unsymmetric_graph_is_its_second_eigenvalue(transposed: bool) -> None:
    """The eigenvalues of a triangular W stand on its diagonal: 1, 0.6, 0.2 and 0.1."""
    W = torch.tensor(
        [[1.0, 0.0, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0], [0.5, 0.3, 0.2, 0.0], [0.3, 0.3, 0.3, 0.1]], dtype=torch.float64
    )
    assert tp.stochasticity(W) == "row"
    assert tp.spectral_gap(W.T if transposed else W) == pytest.approx(0.4, abs=1e-9)


@pytest.mark.parametrize("make", [tp.ring, tp.grid, tp.exponential, tp.one_peer_exponential, tp.full, tp.star, tp.none])
def test_one_client_is_alone(make: Callable[[int], tp.Topology]) -> None:
    W = make(1)(0)
    assert torch.equal(W, torch.ones(1, 1, dtype=torch.float64))
    assert tp.spectral_gap(W) == 1
    assert (tp.degree(W), tp.edges(W), tp.diameter(W)) == ((0, 0.0, 0), 0, 0)


# Closed forms of the fixed ones


@law(n=st.integers(3, 60))
def test_ring(n: int) -> None:
    ring = tp.ring(n)
    assert neighbors(ring) == [{(i - 1) % n, (i + 1) % n} for i in range(n)]
    assert weights(ring(0)) <= {0.0, 1 / 3}
    assert lam(ring) == pytest.approx(max(abs(1 + 2 * cos(2 * pi * k / n)) / 3 for k in range(1, n)), abs=1e-9)
    assert tp.diameter(ring(0)) == n // 2


@law(rows=st.integers(2, 7), columns=st.integers(2, 7))
def test_grid(rows: int, columns: int) -> None:
    grid = tp.grid(rows * columns, rows=rows)
    for i, heard in enumerate(neighbors(grid)):
        r, c = divmod(i, columns)
        near = {((r + a) % rows, (c + b) % columns) for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1))}
        assert heard == {a * columns + b for a, b in near}
        assert grid(0)[i, i] == 1 / (1 + len(near))

    # A side of two has one neighbor, not two, in its direction.
    def part(k: int, side: int) -> float:
        return (2 if side > 2 else 1) * cos(2 * pi * k / side)

    weight = 1 + part(0, rows) + part(0, columns)
    waves = [(p, q) for p in range(rows) for q in range(columns) if p or q]
    closed = max(abs(1 + part(p, rows) + part(q, columns)) / weight for p, q in waves)
    assert lam(grid) == pytest.approx(closed, abs=1e-9)
    assert tp.diameter(grid(0)) == rows // 2 + columns // 2


@law(n=st.integers(2, 130))
def test_exponential(n: int) -> None:
    q = ceil(log2(n))
    topology = tp.exponential(n)
    assert neighbors(topology) == [{(i + 2**k) % n for k in range(q)} for i in range(n)]
    assert weights(topology(0)) <= {0.0, 1 / (q + 1)}
    waves = abs(np.fft.fft(topology(0)[0].numpy()))[1:]
    assert lam(topology) == pytest.approx(waves.max(), abs=1e-9)
    if n % 2 == 0:
        assert lam(topology) == pytest.approx((q - 1) / (q + 1), abs=1e-9)


@law(n=st.integers(3, 40))
def test_full_none_and_star(n: int) -> None:
    assert torch.equal(tp.full(n)(0), torch.full((n, n), 1 / n, dtype=torch.float64))
    assert lam(tp.full(n)) == pytest.approx(0, abs=1e-9)
    assert torch.equal(tp.none(n)(0), torch.eye(n, dtype=torch.float64))
    assert lam(tp.none(n)) == pytest.approx(1, abs=1e-9)
    assert neighbors(tp.star(n)) == [set(range(1, n)), *([{0}] * (n - 1))]
    assert lam(tp.star(n)) == pytest.approx(1 - 1 / n, abs=1e-9)
    assert [tp.diameter(make(n)(0)) for make in (tp.full, tp.none, tp.star)] == [1, None, 2]


@pytest.mark.parametrize(
    ("topology", "golden"),
    [
        (tp.ring(3), 0),
        (tp.ring(4), 1 / 3),
        (tp.ring(5), 0.5393446629),
        (tp.ring(16), 0.9492530217),
        (tp.ring(100), 0.9986844856),
        (tp.grid(9), 0.4),
        (tp.grid(16), 0.6),
        (tp.grid(100), 0.9236067977),
        (tp.grid(6), 0.5),
        (tp.exponential(8), 0.5),
        (tp.exponential(16), 0.6),
        (tp.exponential(100), 0.75),
        (tp.star(5), 0.8),
        # i±1 and i±9 of 100, a circulant the published code of one method calls a grid
        (tp.build(lambda t: tp.metropolis(circulant(100, (1, 9))), 100), 0.9369418616),
        (tp.grid(100, apart=9), 0.9369418616),
    ],
)
def test_golden_lambda(topology: tp.Topology, golden: float) -> None:
    assert lam(topology) == pytest.approx(golden, abs=1e-9)


def test_coinciding_neighbors_are_merged() -> None:
    assert torch.equal(tp.ring(2)(0), torch.full((2, 2), 0.5, dtype=torch.float64))
    assert torch.equal(tp.exponential(2)(0), tp.ring(2)(0))
    assert torch.equal(tp.star(2)(0), tp.ring(2)(0))
    assert tp.degree(tp.grid(4)(0)) == (2, 2.0, 2)
    assert tp.degree(tp.grid(6)(0)) == (3, 3.0, 3)


def test_ring_of_four_leaves_exactly_a_third() -> None:
    x = centered(4, 50)
    ratio = (tp.ring(4)(0) @ x).norm(dim=0) / x.norm(dim=0)
    assert (ratio - 1 / 3).abs().max() < 1e-12


@law(n=st.integers(2, 20), seed=st.integers(0, 99))
def test_metropolis_of_any_undirected_graph(n: int, seed: int) -> None:
    half = torch.from_numpy(np.random.default_rng(seed).random((n, n)) < 0.3).triu(1)
    adjacency = half | half.T
    before = adjacency.clone()
    W, degrees = tp.metropolis(adjacency), adjacency.sum(1)
    assert torch.equal(adjacency, before)
    assert torch.equal(W, W.T)
    assert (W.sum(1) - 1).abs().max() < 1e-12
    for i, j in adjacency.nonzero().tolist():
        assert W[i, j] == 1 / (1 + max(degrees[i], degrees[j]).double())
    off = ~torch.eye(n, dtype=torch.bool)
    assert torch.equal((W != 0) & off, adjacency)
    assert (W.diagonal() > 0).all()


def test_star_of_five_by_hand() -> None:
    assert torch.allclose(tp.star(5)(0).diagonal(), torch.tensor([0.2, 0.8, 0.8, 0.8, 0.8]).double(), atol=1e-15)
    assert tp.star(5)(0)[0].tolist() == pytest.approx([0.2] * 5, abs=1e-15)


# The random ones


@law(n=st.integers(2, 30), data=st.data(), t=st.integers(0, 999))
def test_random_is_regular(n: int, data: st.DataObject, t: int) -> None:
    k = data.draw(st.integers(1, n - 1).filter(lambda k: k % 2 == 0 or n % 2 == 0))
    W = tp.random(n, k)(t)
    assert tp.degree(W) == (k, k, k)
    assert torch.equal(W, W.T)
    assert weights(W) <= {0.0, 1 / (k + 1)}
    reach = [*range(-(k // 2), 0), *range(1, k // 2 + 1), *([n // 2] * (k % 2))]
    base = np.abs(np.fft.fft(np.isin(np.arange(n), [0, *(offset % n for offset in reach)])))[1:] / (k + 1)
    assert 1 - tp.spectral_gap(W) == pytest.approx(base.max(), abs=1e-9)


@law(n=st.integers(2, 30), data=st.data(), t=st.integers(0, 999))
def test_pull_and_push_have_exactly_k_others(n: int, data: st.DataObject, t: int) -> None:
    k = data.draw(st.integers(1, n - 1))
    pull, push = tp.random_pull(n, k)(t), tp.random_push(n, k)(t)
    assert [len(row) for row in tp.in_neighbors(pull)] == [k] * n
    assert [len(row) for row in tp.in_neighbors(push.T)] == [k] * n
    assert weights(pull) | weights(push) <= {0.0, 1 / (k + 1)}


@pytest.mark.parametrize(("n", "k", "draws"), [(20, 4, 4000), (100, 10, 400)])
@pytest.mark.parametrize("make", [tp.random, tp.random_pull])
def test_expected_contraction(make: Callable[..., tp.Topology], n: int, k: int, draws: int) -> None:
    x = centered(n, seed=n)
    topology = make(n, k, seed=1)
    left = torch.stack([(topology(t) @ x).square().sum() for t in range(draws)]) / x.square().sum()
    assert abs(left.mean() - alpha(n, k)) < 4 * left.std() / draws**0.5


def test_alpha_by_hand() -> None:
    assert alpha(20, 4) == pytest.approx(0.1578947, abs=1e-7)
    assert alpha(100, 10) == pytest.approx(0.0817264, abs=1e-7)


def test_pull_in_expectation_and_the_drift_of_its_mean() -> None:
    n, k, draws = 20, 4, 4000
    topology, x = tp.random_pull(n, k), centered(20)
    Ws = torch.stack([topology(t) for t in range(draws)])
    eye = torch.eye(n, dtype=torch.float64)
    expected = eye / (k + 1) + k / ((k + 1) * (n - 1)) * (1 - eye)
    # One entry is a coin of 0 or 1/(k+1), whose standard deviation is at most 1/(2(k+1)); there are 400 of them.
    assert (Ws.mean(0) - expected).abs().max() < 5 / (2 * (k + 1)) / draws**0.5
    mixed = Ws @ x
    drift = n * mixed.mean(1).square().mean() / x.square().sum()
    spread = (mixed - mixed.mean(1, keepdim=True)).square().sum(1).mean() / x.square().sum()
    assert drift == pytest.approx(0.007, abs=0.001)
    assert spread == pytest.approx(0.151, abs=0.002)
    assert mixed.mean(1).abs().min() > 0


def test_push_keeps_the_sum_while_row_sums_vary() -> None:
    topology, x = tp.random_push(20, 4), torch.from_numpy(np.random.default_rng(0).normal(size=(20, 5)))
    rows = torch.stack([topology(t).sum(1) for t in range(50)])
    for t in range(50):
        assert ((topology(t) @ x).sum(0) - x.sum(0)).abs().max() < 1e-12
    assert rows.std() > 0.1
    assert rows.mean() == pytest.approx(1, abs=1e-12)


@law(n=st.integers(1, 30), data=st.data(), t=st.integers(0, 999))
def test_cliques_are_disjoint_and_the_rest_is_idle(n: int, data: st.DataObject, t: int) -> None:
    size = data.draw(st.integers(1, n))
    count = data.draw(st.integers(1, n // size))
    W = tp.clique(n, size, count)(t)
    groups = {frozenset(row.nonzero().flatten().tolist()) for row in W}
    assert sum(map(len, groups)) == n
    assert sorted(map(len, groups)) == sorted([size] * count + [1] * (n - size * count))
    assert weights(W) <= {0.0, 1 / size, 1.0}


# Measurements


def test_facts_follow_the_direction_of_messages() -> None:
    W = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    assert tp.in_neighbors(W) == [[1], [2], []]
    assert tp.in_neighbors(W.T) == [[], [0], [1]]
    assert (tp.degree(W), tp.edges(W), tp.diameter(W)) == ((0, 2 / 3, 1), 2, None)
    assert tp.spectral_gap(W) == pytest.approx(0.5, abs=1e-9)
    assert tp.spectral_gap(W.T) == pytest.approx(0.5, abs=1e-9)
    W[2, 0] = W[2, 2] = 0.5
    assert tp.diameter(W) == 2


@law(n=st.integers(1, 12), seed=st.integers(0, 99))
def test_diameter_equals_a_search(n: int, seed: int) -> None:
    W = torch.from_numpy(np.random.default_rng(seed).random((n, n)) < 0.35).double()
    heard = tp.in_neighbors(W)
    steps, connected = [0] * n, True
    for i in range(n):
        reached = {i}
        while (further := reached.union(*(heard[j] for j in reached))) != reached:
            reached, steps[i] = further, steps[i] + 1
        connected &= len(reached) == n
    assert tp.diameter(W) == (max(steps) if connected else None)


# Texts, functions and mistakes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ring", "ring"),
        ("random:10", "random:10"),
        ("random:k=10", "random:10"),
        ("random_pull:10", "random-pull:10"),
        ("random-push:10", "random-push:10"),
        ("clique:5,count=2", "clique:5,count=2"),
        ("clique:5,count=1", "clique:5"),
        ("clique:5,turns=2", "clique:5,turns=2"),
        ("grid:rows=4", "grid:rows=4"),
        ("grid", "grid:rows=3"),
        (" star ", "star"),
    ],
)
def test_texts(text: str, name: str) -> None:
    assert tp.build(text, 12).name == name


def test_build_hands_the_seed_on_and_keeps_a_topology() -> None:
    assert torch.equal(tp.build("random:4", 12, seed=3)(2), tp.random(12, 4, seed=3)(2))
    ring = tp.ring(4)
    assert tp.build(ring, 4) is ring
    assert tp.ring(np.int64(4)).n == 4  # type: ignore[arg-type]
    assert set(tp.BUILDERS) == {text.partition(":")[0] for text in TEXTS}


def always(W: Tensor, t: int) -> Tensor:
    return W


def test_functions_are_wrapped_and_recognized() -> None:
    row = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    kinds = [tp.build(partial(always, W), 2).stochastic for W in (row, row.T, torch.eye(2), torch.eye(2).to_sparse())]
    assert kinds == ["row", "column", "doubly", "doubly"]
    lists: Any = lambda t: [[1.0, 0.0], [1 / (t + 2), 1 - 1 / (t + 2)]]  # noqa: E731
    assert tp.build(lists, 2)(2).tolist() == [[1.0, 0.0], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("text", "n", "message"),
    [
        ("rnig", 4, "did you mean ring"),
        ("moon", 4, "choose one of clique, exponential, full"),
        ("random", 8, "topology random needs k (an integer): write random:k=VALUE"),
        ("clique", 40, "topology clique needs size (an integer): write clique:size=VALUE"),
        ("random:10", 8, "needs more than 10 clients, there are 8: use random:7 or fewer, or at least 11 clients"),
        ("random-pull:8", 8, "use random-pull:7 or fewer"),
        ("random-push:1", 1, "use none, or 2 clients"),
        ("random:3", 7, "use random:2 or random:4, or 8 clients"),
        ("random:1", 7, "use random:2, or 8 clients"),
        ("random:0", 7, "k=0 is out of range: it must be a number at least 1"),
        ("random:ten", 7, "k='ten' does not fit topology random: k takes an integer"),
        ("random:2.5", 7, "k='2.5' does not fit topology random: k takes an integer"),
        ("random:true", 7, "k='true' does not fit topology random: k takes an integer"),
        ("random:3,4", 8, "topology random has no place for '4': it takes k"),
        ("random:3,k=4", 8, "k twice: keep one of 3 and 4"),
        ("random:kk=4", 8, "did you mean k"),
        ("ring:3", 8, "topology ring has no place for '3': it takes no options"),
        ("ring:rows=3", 8, "topology ring has no option 'rows': it takes no options"),
        ("ring", 0, "n=0 is out of range: it must be a number at least 1"),
        ("grid", 7, "use ring, or grid with 8 clients"),
        ("grid", 2, "use ring, or grid with 4 clients"),
        ("grid:rows=5", 12, "12 clients do not fill 5 equal rows: use grid:rows=3"),
        ("grid:rows=5", 13, "use ring, or grid with 14 clients"),
        ("grid:rows=12", 12, "use ring, or grid:rows=3"),
        ("grid:rows=0", 12, "rows=0 is out of range: it must be a number at least 1"),
        ("grid:apart=9", 18, "needs more than 18 clients, there are 18: use grid or ring"),
        ("grid:rows=3,apart=4", 12, "give one of rows and apart"),
        ("clique:5,count=3", 12, "needs 15 clients, there are 12: use clique:5,count=2"),
        ("clique:5,turns=3", 12, "needs 15 clients, there are 12: use clique:5,turns=2"),
        ("clique:50", 12, "use clique:12 or smaller"),
        ("clique:5,count=0", 12, "count=0 is out of range: it must be a number at least 1"),
    ],
)
def test_a_wrong_text_names_its_fix(text: str, n: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        tp.build(text, n)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (tp.ring(3), "made for 3 clients, there are 2: make it with n=2"),
        (torch.eye(2), "lambda t: W"),
        (lambda t: torch.eye(3), "is 3 x 3: return 2 x 2"),
        (lambda t: 1.0, "a single number: return 2 x 2"),
        (lambda t: None, "a NoneType: return a tensor"),
        (lambda t: torch.tensor([[2.0, -1.0], [0.0, 1.0]]), "negative or no number in places"),
        (lambda t: torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "zero on the diagonal"),
        (lambda t: torch.ones(2, 2), "divide each row by its sum"),
        (lambda t: torch.full((2, 2), torch.nan), "negative or no number in places"),
    ],
)
def test_a_wrong_topology_names_its_fix(wrong: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tp.build(wrong, 2)  # type: ignore[arg-type]


def test_a_function_may_not_change_its_kind() -> None:
    kinds = [torch.eye(2), torch.tensor([[0.5, 0.5], [0.0, 1.0]])]
    wrapped = tp.build(lambda t: kinds[t], 2)
    with pytest.raises(UserError, match="round 1 is not doubly stochastic as that of round 0"):
        wrapped(1)


def test_matrices_that_cannot_be_measured() -> None:
    with pytest.raises(UserError, match="must be square"):
        tp.spectral_gap(torch.ones(2, 3))
    with pytest.raises(UserError, match="symmetric adjacency"):
        tp.metropolis(torch.tensor([[0, 1], [0, 0]]))


# What people see


@pytest.mark.parametrize(("text", "n"), [("random-pull:2", 9), ("ring", 40), ("none", 1)])
def test_png(text: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    path = tmp_path / "graph.png"
    draw_png(tp.build(text, n)(0), path, title=text)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_png_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    W = tp.ring(3)(0)
    with pytest.raises(UserError, match=r"write it to graph\.png"):
        draw_png(W, Path("graph.pdf"), "")
    with pytest.raises(UserError, match="name a folder you can write to"):
        draw_png(W, tmp_path / "missing" / "graph.png", "")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[report\]'"):
        draw_png(W, tmp_path / "graph.png", "")


def test_command_for_a_random_topology(capsys: pytest.CaptureFixture[str]) -> None:
    show_topology("random-pull:10", 100, "resnet18", 11_168_832, round=2)
    text = capsys.readouterr().out
    for fact in ("round 2", "row-stochastic", "rounds 2 to 21", "10 least, 10 mean", "1,000", "44.7 GB", "resnet18"):
        assert fact in text
    assert "44,675,328,000 bytes" in text


def test_command_for_a_fixed_topology(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    show_topology("ring", 5, "cnn", 582_026)
    text = capsys.readouterr().out
    assert f"{1 - 0.5393446629:.6f}" in text
    assert "10 messages x 582,026 parameters of cnn x 4 bytes" in text
    assert "mean spectral gap" not in text
    path = tmp_path / "graph.png"
    show_topology("none", 2, "cnn", 582_026, png=path)
    text = capsys.readouterr().out
    assert "not everybody reaches everybody" in text
    assert f"drawn to {path}" in text
    assert path.exists()
    with pytest.raises(UserError, match="0 or more, not -1"):
        show_topology("ring", 5, "cnn", 582_026, round=-1)


def test_bytes_for_people() -> None:
    assert [scaled(10**k, "B") for k in (2, 3, 6, 18)] == ["100 B", "1 kB", "1 MB", "1 EB"]
