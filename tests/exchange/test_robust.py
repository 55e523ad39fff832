"""Where members may lie: rules in place of averages, by themselves, on every engine, and against a liar."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Unpack, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import trim_mean
from torch import Tensor

import coterie as ct
from coterie import topology
from coterie.algorithms import Algorithm
from coterie.algorithms.base import Problem, Program, Round, Trained
from coterie.algorithms.bind import bind
from coterie.algorithms.options import Options, Robust, Training
from coterie.algorithms.peers import Peers
from coterie.cluster.shard_thread import ShardThread
from coterie.cluster.sharded import Sharded
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors
from coterie.engines import Serial, Vectorized, base
from coterie.exchange.mixing import average
from coterie.exchange.robust import RULES, clipped
from coterie.method import method
from coterie.models.model import Model, cross_entropy
from coterie.training.experiment import Experiment
from law import RING, down_u, down_v
from quadratic import ENGINES, close, plain
from shards import SHARD_OF, answered
from toys import Quadratic, experiment, golden, net, play, ragged

Floats = NDArray[np.float64]
alg = ct.algorithms
EACH_RULE = pytest.mark.parametrize("rule", RULES)


def test_settings_name_the_rules() -> None:
    assert get_args(Robust) == tuple(RULES)
    assert [Training(robust=name).rule for name in get_args(Robust)] == list(RULES.values())
    assert Training().rule is None


def drawn(seed: int, senders: int, own_share: float = 0.2) -> tuple[Tensors, Tensor, Tensors]:
    """What one receiver has, the weights of others, and what they have sent: three tensors, one of them a number."""
    g = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"a": (3, 2), "b": (4,), "c": ()}
    own = {k: torch.randn(s, generator=g, dtype=torch.float64) for k, s in shapes.items()}
    weights = torch.rand(senders, generator=g, dtype=torch.float64) + 0.1
    heard = {k: torch.randn(senders, *s, generator=g, dtype=torch.float64) for k, s in shapes.items()}
    return own, weights * (1 - own_share) / weights.sum(), heard


def columns(own: Tensors, heard: Tensors) -> Floats:
    """[entries, values], the own value first."""
    rows = [torch.cat([v.flatten() for v in model.values()]) for model in (own, *each(heard))]
    return torch.stack(rows, 1).numpy()


def each(x: Tensors) -> list[Tensors]:
    return [{k: v[i] for k, v in x.items()} for i in range(len(x["a"]))]


def flat(x: Tensors) -> Floats:
    return torch.cat([v.flatten() for v in x.values()]).numpy()


def quantile_curve(values: Floats, shares: Floats, at: Floats) -> Floats:
    """The value that has the share ``at`` of the weight below it."""
    order = values.argsort()
    return values[order][np.searchsorted(shares[order].cumsum(), at).clip(max=len(values) - 1)]


def by_hand(rule: str, own: Tensors, weights: Tensor, heard: Tensors) -> Floats:
    """The rules as integrals over fine grids and loops of NumPy."""
    w, table = weights.numpy(), columns(own, heard)
    shares = np.concatenate([[1 - w.sum()], w])
    if rule == "clip":
        far = np.sqrt(((table - table[:, :1]) ** 2).sum(0))
        tau = float(quantile_curve(far, shares, np.array([0.5 - 1e-9]))[0])
        scale = np.minimum(1, tau / np.maximum(far, 1e-300))
        return table[:, 0] + ((table - table[:, :1]) * shares * scale).sum(1)
    if rule == "median":
        ends = [[float(quantile_curve(row, shares, np.array([at]))[0]) for row in table] for at in (0.499999, 0.500001)]
        return np.clip(table[:, 0], *np.array(ends))
    beta = max(0.25, w.max())
    grid = beta + (1 - 2 * beta) * (np.arange(200_000) + 0.5) / 200_000
    return np.array([quantile_curve(row, shares, grid).mean() for row in table])


@pytest.mark.parametrize("senders", [2, 3, 6])
@EACH_RULE
def test_rules_are_what_their_formulas_say(rule: str, senders: int) -> None:
    given = drawn(senders, senders)
    np.testing.assert_allclose(flat(RULES[rule](*given)), by_hand(rule, *given), rtol=0, atol=5e-5)


def test_equal_weights_are_the_textbooks_case() -> None:
    own, _, heard = drawn(0, 7)
    table = columns(own, heard)
    eighths = torch.full((7,), 1 / 8, dtype=torch.float64)
    np.testing.assert_allclose(flat(RULES["trimmed"](own, eighths, heard)), trim_mean(table, 0.25, axis=1), rtol=1e-12)
    six = {k: v[:6] for k, v in heard.items()}
    sevenths = torch.full((6,), 1 / 7, dtype=torch.float64)
    np.testing.assert_allclose(flat(RULES["median"](own, sevenths, six)), np.median(table[:, :7], axis=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EACH_RULE
def test_equal_models_stay_to_the_last_bit(rule: str, dtype: torch.dtype) -> None:
    own = {k: v.to(dtype) for k, v in drawn(1, 4)[0].items()}
    heard = {k: v.expand(4, *v.shape) for k, v in own.items()}
    after = RULES[rule](own, drawn(1, 4)[1], heard)
    assert all(torch.equal(after[k], v) and after[k].dtype is dtype for k, v in own.items())


@pytest.mark.parametrize("senders", [0, 1])
@EACH_RULE
def test_one_neighbor_moves_nothing(rule: str, senders: int) -> None:
    """It may be the liar: of two values none can be told to be right. Who hears nobody keeps what it has, too."""
    own, _, heard = drawn(2, senders)
    after = RULES[rule](own, torch.full((senders,), 0.5, dtype=torch.float64), heard)
    assert all(torch.equal(after[k], v) for k, v in own.items())


@EACH_RULE
def test_the_order_of_senders_does_not_matter(rule: str) -> None:
    own, weights, heard = drawn(3, 5)
    order = torch.tensor([3, 0, 4, 2, 1])
    other = RULES[rule](own, weights[order], {k: v[order] for k, v in heard.items()})
    np.testing.assert_allclose(flat(RULES[rule](own, weights, heard)), flat(other), rtol=1e-12)


@pytest.mark.parametrize("large", [10.0, 1e30])
@EACH_RULE
def test_a_liar_gets_no_farther_than_others(rule: str, large: float) -> None:
    """Entries stay between those of honest members; a clipped model stays as near as the farthest of them."""
    g = torch.Generator().manual_seed(4)
    own = {"a": torch.randn(50, generator=g)}
    for n in (2, 3, 6):
        weights = torch.full((n,), 1 / (n + 1), dtype=torch.float64)
        heard = {"a": torch.randn(n, 50, generator=g)}
        lying = {"a": heard["a"].index_fill(0, torch.tensor([1]), large)}
        honest = torch.cat([own["a"][None], heard["a"][[0, *range(2, n)]]])
        after = RULES[rule](own, weights, lying)["a"]
        if rule == "clip":
            assert float((after - own["a"]).norm()) <= float((honest - own["a"]).norm(dim=1).max())
        else:
            assert bool((after <= honest.amax(0) + 1e-5).all())
            assert bool((after >= honest.amin(0) - 1e-5).all())


def test_clipping_far_away_is_plain_mixing() -> None:
    own, weights, heard = drawn(5, 4)
    plainly = (columns(own, heard) * np.concatenate([[1 - float(weights.sum())], weights.numpy()])).sum(1)
    np.testing.assert_allclose(flat(clipped(own, weights, heard, torch.tensor(1e9))), plainly, rtol=1e-12)
    np.testing.assert_array_equal(flat(clipped(own, weights, heard, torch.tensor(0.0))), flat(own))


def test_clipping_shortens_neighbors_that_are_near() -> None:
    """x + 1/4 (0.1) + 1/4 (0.2 / 0.5) (0.5): one neighbor is within the radius of 0.2, the other is not."""
    heard = {"a": torch.tensor([[0.1], [0.5]], dtype=torch.float64)}
    weights = torch.full((2,), 0.25, dtype=torch.float64)
    after = clipped({"a": torch.zeros(1, dtype=torch.float64)}, weights, heard, torch.tensor(0.2, dtype=torch.float64))
    assert float(after["a"]) == pytest.approx(0.025 + 0.05, abs=1e-12)


def loop(rule: str, W: Tensor, x: Tensors) -> Tensors:
    """One receiver after another."""
    dense, made = W.to_dense(), []
    for i in range(len(W)):
        others = [j for j in range(len(W)) if j != i and dense[i, j] > 0]
        made.append(
            RULES[rule]({k: v[i] for k, v in x.items()}, dense[i, others], {k: v[others] for k, v in x.items()})
        )
    return {k: torch.stack([one[k] for one in made]) for k in x}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("graph", ["full", "random-pull:2", "star", "none"])
@EACH_RULE
def test_engines_and_shards_combine_alike(rule: str, graph: str, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hears equally many goes side by side, a few at a time; on a star they hear unequally many."""
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(5, 2, 3, generator=g), "b": torch.randn(5, generator=g)}
    W = topology.build(graph, 5)(0)
    W = W.to_sparse() if sparse else W
    found = [Serial().combine(RULES[rule], W, x), Vectorized(2).combine(RULES[rule], W, x)]
    monkeypatch.setattr(base, "SORTED", 50)
    found.append(Serial().combine(RULES[rule], W, x))
    expected = loop(rule, W, x)
    for shard_of in SHARD_OF.values():
        threads = [ShardThread() for _ in range(shard_of.max() + 1)]
        engines = [Sharded(Serial(), thread, k, shard_of) for k, thread in enumerate(threads)]
        works = [partial(e.combine, RULES[rule], W, {k: v[e.local_clients] for k, v in x.items()}) for e in engines]
        parts = answered(threads, [t.begin(w) for t, w in zip(threads, works, strict=True)])
        order = torch.from_numpy(np.argsort(np.concatenate([e.local_clients for e in engines])))
        found.append({k: torch.cat([part[k] for part in parts])[order] for k in x})
    for made in found:
        torch.testing.assert_close(made, expected)


@EACH_RULE
def test_a_server_on_shards_has_all_rows(rule: str) -> None:
    """Every shard comes to the same, those without members, too."""
    g = torch.Generator().manual_seed(1)
    x, row = {"a": torch.randn(3, 4, generator=g)}, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    own = {"a": torch.randn(4, generator=g), "counter": torch.tensor(3)}
    expected = Serial().combine(RULES[rule], row, x, own)
    assert expected.keys() == x.keys()
    there = {0: [0], 1: [], 2: [1, 2]}  # shard -> places in the cohort
    threads = [ShardThread() for _ in there]
    engines = [Sharded(Serial(), t, k, np.array([0, 1, 2, 2])) for k, t in enumerate(threads)]
    works = [
        partial(e.combine, RULES[rule], row[at], {"a": x["a"][at]}, own)
        for e, at in zip(engines, there.values(), strict=True)
    ]
    for made in answered(threads, [t.begin(w) for t, w in zip(threads, works, strict=True)]):
        torch.testing.assert_close(made, expected)


@ENGINES
def test_a_ring_in_closed_form(engine: Any) -> None:
    """The median of three on the golden quadratic; the missing fourth has no weight."""
    e = experiment(Quadratic(), golden(), plain("dfedavg", topology="ring", robust="median", lr=0.1, steps=2), engine)
    u, v = np.full(4, 0.5), np.full(4, 1.0)
    for _ in range(3):
        u, v = (np.array([np.median(x[row > 0]) for row in RING]) for x in (down_u(u), down_v(v)))
    end = play(e, 3).state.x
    close(end["u"], u)
    close(end["v"], v)


def test_originals_order_mixes_robustly_too() -> None:
    """D-PSGD as published: the rule is for the points from before the step."""
    steps = plain("dpsgd", variant="lian", topology="ring", robust="median", lr=0.1, steps=1)
    e = experiment(Quadratic(), golden(), steps)
    u, (a, b) = np.full(4, 0.5), (np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, -1.0, 2.0, 1.0]))
    for _ in range(3):
        u = np.array([np.median(u[row > 0]) for row in RING]) - 0.1 * a * (u - b)
    close(play(e, 3).state.x["u"], u)


def test_a_lost_message_is_nobodys() -> None:
    """What is not heard weighs nothing, and its weight is the receiver's own: of three values two are left, or one."""
    e = experiment(Quadratic(), golden(), plain("dfedavg", topology="ring", robust="median"), drop_messages=0.5)
    now = e.start()
    r = e.round(0)
    trained = e.program.train(now.state, r)
    z, W = trained.sent["u"], r.W
    expected = torch.stack([z[i] if int((W[i] > 0).sum()) < 3 else z[W[i] > 0].median() for i in range(4)])
    assert 0 < int((W > 0).sum()) < 12
    close(e.program.exchange(now.state, trained, r).x["u"], expected)


REFUSED = {
    "dfedpgp": "mass, where what is left out would be lost",
    "osgp": "mass, where what is left out would be lost",
    "dispfl": "hold parts of the model",
    "heterofl": "hold parts of the model",
    "depthfl": "hold parts of the model",
    "fedamp": "weights are learned",
    "scaffold": "has to be the mean of the clients'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_takes_no_plain_average_says_why(name: str) -> None:
    with pytest.raises(UserError, match=f"^robust=median takes the place of a plain average, and .*{REFUSED[name]}"):
        experiment(net("mlp"), ragged("mlp"), alg.build(name, robust="median"))


def test_low_rank_over_a_directed_graph_refuses_it_and_over_others_does_not() -> None:
    settings = {"rank_ratio": 0.5, "keep_layers": 1, "robust": "trimmed"}
    experiment(net("mlp"), ragged("mlp"), alg.fedlmt(**settings, topology="ring")).check()
    with pytest.raises(UserError, match="lost to everybody"):
        experiment(net("mlp"), ragged("mlp"), alg.fedlmt(**settings, topology="random-push:2"))


@method()
def silent(p: Problem, t: Training, **options: Unpack[Options]) -> Program[Peers]:
    """Silent: a method of one's own whose exchange knows nothing of rules."""
    return alg.dfedavg(topology="ring").bind(p)._replace(training=t)


def test_a_method_of_ones_own_does_not_ignore_it() -> None:
    problem = Problem(Model(net("mlp"), cross_entropy), 5, 1, 0)
    bind(silent(), problem)
    with pytest.raises(UserError, match=r"silent names none in its program \(rule\): leave robust out"):
        bind(silent(robust="clip"), problem)


def test_parts_of_models_are_refused_at_last() -> None:
    x = {"a": torch.ones(2, 3)}
    with pytest.raises(UserError, match="parts of the model only"):
        average(Serial(), torch.tensor([0.5, 0.5]), x, mass=x, old={"a": torch.ones(3)}, rule=RULES["median"])


LIAR = 3
HONEST = [0, 1, 2, 4, 5, 6]
Lie = Callable[[Tensor, int], Tensor]  # (what the liar should send, round) -> what it sends


def opposite(x: Tensor, t: int) -> Tensor:
    return -x


def noise(x: Tensor, t: int) -> Tensor:
    """As long as what should be sent."""
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(t))
    return drawn * x.norm() / drawn.norm()


def lying(algorithm: Algorithm, lie: Lie) -> Algorithm:
    """The method with one member that trains as the others do and sends something else, within bounds."""

    def bind(p: Problem) -> Program[Any]:
        program = algorithm.bind(p)

        def train(s: Any, r: Round) -> Trained:
            done = program.train(s, r)
            who = torch.tensor([LIAR])
            sent = {k: v.index_copy(0, who, lie(v[LIAR], r.index)[None]) for k, v in done.sent.items()}
            return done._replace(sent=sent)

        return program._replace(train=train)

    return replace(algorithm, bind=bind)


def ended(algorithm: Algorithm, partition: str) -> float:
    """The mean personal accuracy of the six honest ones after five rounds on the digits, in %."""
    fed = ct.data.federate("digits", clients=7, partition=partition, seed=0)
    model = Model(ct.models.build("mlp", fed), cross_entropy)
    e = Experiment.of(model, fed, algorithm, Vectorized(7), 0, 5)
    now = e.start()
    for t in range(5):
        now, _ = e.run_round(now, t, evaluate=t == 4)
    assert now.values is not None
    return 100 * float(now.values["after_mix"][HONEST, 0].mean())


CLAIMS: dict[str, tuple[str, dict[str, Any], str, Lie]] = {
    "everybody hears everybody": ("dfedavgm", {"topology": "full"}, "iid", opposite),
    "noise": ("dfedavgm", {"topology": "random:4"}, "iid", noise),
    "ring": ("dfedavgm", {"topology": "ring"}, "iid", opposite),
    "personal heads": ("dfedalt", {"topology": "random:4", "personal_lr": 0.05}, "dirichlet:0.3", opposite),
    "server": ("fedavg", {"participation": 1.0}, "iid", opposite),
}


@cache
def undisturbed(claim: str) -> tuple[float, float]:
    """What the honest ones have with plain averages: without a liar, and with it."""
    method, settings, partition, lie = CLAIMS[claim]
    algorithm = alg.build(method, lr=0.05, batch_size=16, epochs=1, **settings)
    return ended(algorithm, partition), ended(lying(algorithm, lie), partition)


@pytest.mark.parametrize("claim", CLAIMS)
@EACH_RULE
def test_one_liar_in_seven_costs_less_than_five_points(rule: str, claim: str) -> None:
    method, settings, partition, lie = CLAIMS[claim]
    algorithm = alg.build(method, lr=0.05, batch_size=16, epochs=1, robust=rule, **settings)
    without, betrayed = undisturbed(claim)
    assert betrayed < without - 5
    assert ended(lying(algorithm, lie), partition) > without - 5
