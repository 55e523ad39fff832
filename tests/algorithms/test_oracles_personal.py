"""FedProx, pFedMe, APFL and FedAMP: recurrences in NumPy on the quadratic, plain loops of torch, what weights keep."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import coterie as ct
from coterie.algorithms.base import Problem
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, rows
from coterie.engines import Serial, Vectorized
from coterie.models.model import Model, cross_entropy
from coterie.training.experiment import Experiment
from same_numbers import graphed_for
from toys import PLAIN, A, B, C, D, Quadratic, experiment, golden, net, play, ragged

Array = NDArray[np.float64]
ENGINES = pytest.mark.parametrize(
    "engine",
    [Serial, partial(Vectorized, 3), partial(graphed_for, 2)],
    ids=["serial", "vectorized", "graphed"],
)
# Both coordinates of everybody's model side by side, [4, 2]: curvatures and minima.
CURVES, LEAST = np.array([A, C]).T, np.array([B, D]).T
START = np.array([0.5, 1.0])
LR, STEPS, ROUNDS = 0.1, 3, 4


def gradient(x: Array) -> Array:
    return CURVES * (x - LEAST)


def made(name: str, engine: Any, **settings: Any) -> Experiment:
    settings = {**PLAIN, "lr": LR, "steps": STEPS, **settings}
    return experiment(Quadratic(*START), golden(), ct.algorithms.build(name, **settings), engine(), rounds=ROUNDS)


def deployed(e: Experiment, rounds: int = ROUNDS) -> Array:
    """[4, 2] everybody's model."""
    models = e.program.models(play(e, rounds).state)
    return torch.stack([models["u"].expand(4), models["v"].expand(4)], 1).numpy()


def close(x: Array, expected: Array) -> None:
    np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12)


@ENGINES
def test_fedprox(engine: Any) -> None:
    """z_K = p + (1 - lr (a + mu))^K (u - p) with p = (a b + mu u) / (a + mu), in every round."""
    mu, u = 0.7, START
    for _ in range(ROUNDS):
        p = (CURVES * LEAST + mu * u) / (CURVES + mu)
        u = (p + (1 - LR * (CURVES + mu)) ** STEPS * (u - p)).mean(0)
    everywhere = deployed(made("fedprox", engine, mu=mu, participation=1.0))
    close(everywhere, np.tile(u, (4, 1)))


@ENGINES
def test_pfedme(engine: Any) -> None:
    """K inner steps are p + (1 - inner_lr (a + lam))^K (theta - p) with p = (a b + lam w) / (a + lam)."""
    lam, inner_lr, inner_steps, beta = 2.0, 0.15, 2, 0.6
    w = START
    for _ in range(ROUNDS):
        local = theta = np.tile(w, (4, 1))
        for _ in range(STEPS):
            p = (CURVES * LEAST + lam * local) / (CURVES + lam)
            theta = p + (1 - inner_lr * (CURVES + lam)) ** inner_steps * (theta - p)
            local = local - LR * lam * (local - theta)
        w = (1 - beta) * w + beta * local.mean(0)
    settings = {"lam": lam, "inner_lr": inner_lr, "inner_steps": inner_steps, "beta": beta, "participation": 1.0}
    e = made("pfedme", engine, **settings)
    close(deployed(e), theta)
    consensus = e.program.consensus
    assert consensus is not None
    close(torch.stack([*consensus(play(e, ROUNDS).state).values()]).numpy(), w)


@ENGINES
@pytest.mark.parametrize("alpha_lr", [0.0, 0.02])
def test_apfl(alpha_lr: float, engine: Any) -> None:
    """Both models step at the same time; what is deployed has the server's w, which is the mean."""
    alpha, w, v = np.full((4, 1), 0.3), START, np.tile(START, (4, 1))
    for _ in range(ROUNDS):
        local = np.tile(w, (4, 1))
        for _ in range(STEPS):
            h = gradient(alpha * v + (1 - alpha) * local)
            slope = ((v - local) * h).sum(1, keepdims=True)
            local, v = local - LR * gradient(local), v - LR * alpha * h
            alpha = np.clip(alpha - alpha_lr * slope, 0, 1)
        w = local.mean(0)
    assert alpha_lr == 0 or len(np.unique(alpha)) == 4
    e = made("apfl", engine, alpha=0.3, alpha_lr=alpha_lr, participation=1.0)
    close(deployed(e), alpha * v + (1 - alpha) * w)


def attention(w: Array, heard: NDArray[np.bool_], alpha: float, sigma: float) -> Array:
    """xi, row by row."""
    xi = np.zeros((4, 4))
    for i in range(4):
        for j in range(4):
            if i != j and heard[i, j]:
                xi[i, j] = alpha / sigma * np.exp(-((w[i] - w[j]) ** 2).sum() / sigma)
        xi[i] /= max(1.0, xi[i].sum())
        xi[i, i] = 1 - xi[i].sum()
    return xi


@ENGINES
@pytest.mark.parametrize(
    ("topology", "alpha"), [(None, 0.4), (None, 3.0), ("ring", 0.4)], ids=["server", "much attention", "ring"]
)
def test_fedamp(topology: str | None, alpha: float, engine: Any) -> None:
    """With a server everybody is heard, on a ring two are; weights that would be above 1 in sum are scaled down."""
    sigma, lam = 1.5, 0.8
    heard = np.ones((4, 4), bool) if topology is None else ct.topology.ring(4)(0).numpy() > 0
    w = u = np.tile(START, (4, 1))
    capped = False
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            w = w - LR * (gradient(w) + lam / alpha * (w - u))
        xi = attention(w, heard, alpha, sigma)
        capped |= bool((xi.diagonal() < 1e-15).any())
        u = xi @ w
    assert capped == (alpha == 3.0)
    close(deployed(made("fedamp", engine, topology=topology, alpha=alpha, sigma=sigma, lam=lam)), w)


WHOLE = {**PLAIN, "lr": 0.05, "steps": 2, "participation": 1.0, "weighting": "uniform"}  # each step sees all samples


def on_batchnorm(name: str, **settings: Any) -> tuple[Any, list[Tensors], Tensors]:
    """(the program, everybody's model after two rounds, the server's)."""
    algorithm = ct.algorithms.build(name, **{**WHOLE, **settings})
    e = experiment(net("batchnorm"), ragged("batchnorm"), algorithm)
    state = play(e, 2).state
    consensus = e.program.consensus
    assert consensus is not None
    stacked = e.program.models(state)
    return e, [rows(stacked, i) for i in range(5)], consensus(state)


def loss_of(module: nn.Module, e: Experiment, client: int, tensors: Tensors | None = None) -> Tensor:
    """In training mode, which renews the module's own running statistics."""
    x, y = (v[e.federation.train[client]] for v in (e.federation.x, e.federation.y))
    answers = module(x) if tensors is None else functional_call(module, tensors, (x,))
    return functional.cross_entropy(answers, y)


def averaged(modules: Sequence[nn.Module]) -> Tensors:
    states = [m.state_dict() for m in modules]
    return {
        k: torch.stack([s[k] for s in states]).mean(0) if v.is_floating_point() else v for k, v in states[0].items()
    }


def alike(found: Tensors, expected: Tensors) -> None:
    for k, v in expected.items():
        if v.is_floating_point():
            torch.testing.assert_close(found[k], v.detach(), rtol=1e-10, atol=1e-10, msg=lambda m, k=k: f"{k}: {m}")


def test_apfl_against_plain_loops_with_running_statistics() -> None:
    """Two modules for each client, as one would write it: both have the statistics of their own passes."""
    e, deployed, server = on_batchnorm("apfl", alpha=0.3, alpha_lr=0.05)
    common, own, shares = (
        net("batchnorm"),
        [net("batchnorm") for _ in range(5)],
        [torch.tensor(0.3, dtype=torch.float64)] * 5,
    )
    for _ in range(2):
        locals_ = [copy.deepcopy(common) for _ in range(5)]
        for i, (w, v) in enumerate(zip(locals_, own, strict=True)):
            w.train(), v.train()
            for _ in range(2):
                weights = {k: x.detach().clone().requires_grad_() for k, x in w.named_parameters()}
                pairs = zip(v.parameters(), weights.values(), strict=True)
                mixture = dict(zip(weights, (shares[i] * y + (1 - shares[i]) * x for y, x in pairs), strict=True))
                mixture = {k: x.detach().requires_grad_() for k, x in mixture.items()}
                h = torch.autograd.grad(loss_of(v, e, i, mixture), list(mixture.values()))
                g = torch.autograd.grad(loss_of(w, e, i), list(w.parameters()))
                with torch.no_grad():
                    both = list(zip(v.parameters(), w.parameters(), g, h, strict=True))
                    slope = sum(((y - x) * slant).sum() for y, x, _, slant in both)
                    for y, x, steep, slant in both:
                        x -= 0.05 * steep
                        y -= 0.05 * shares[i] * slant
                shares[i] = (shares[i] - 0.05 * slope).clamp(0, 1)
        common.load_state_dict(averaged(locals_))
    alike(server, common.state_dict())
    for found, v, share in zip(deployed, own, shares, strict=True):
        w = dict(common.named_parameters())
        mixture = {k: share * y + (1 - share) * w[k] for k, y in v.named_parameters()}
        alike(found, v.state_dict() | mixture)


def test_pfedme_against_plain_loops_with_running_statistics() -> None:
    """The released code's loop: theta goes on from batch to batch, and its passes renew the statistics."""
    lam, inner_lr = 3.0, 0.1
    e, deployed, server = on_batchnorm("pfedme", lam=lam, inner_lr=inner_lr, inner_steps=2, beta=0.5)
    common = net("batchnorm")
    for _ in range(2):
        thetas = [copy.deepcopy(common).train() for _ in range(5)]
        sent = [copy.deepcopy(common) for _ in range(5)]
        for i, (theta, w) in enumerate(zip(thetas, sent, strict=True)):
            for _ in range(2):
                for _ in range(2):
                    g = torch.autograd.grad(loss_of(theta, e, i), list(theta.parameters()))
                    with torch.no_grad():
                        for x, y, steep in zip(theta.parameters(), w.parameters(), g, strict=True):
                            x -= inner_lr * (steep + lam * (x - y))
                with torch.no_grad():
                    for x, y in zip(theta.parameters(), w.parameters(), strict=True):
                        y -= 0.05 * lam * (y - x)
            w.load_state_dict(theta.state_dict() | dict(w.named_parameters()))  # the statistics go along
        before, mean = common.state_dict(), averaged(sent)
        moved = {k: v + 0.5 * (mean[k] - v) if v.is_floating_point() else v for k, v in before.items()}
        common.load_state_dict(moved)
    alike(server, common.state_dict())
    for found, theta in zip(deployed, thetas, strict=True):
        alike(found, theta.state_dict())


def test_apfl_with_nothing_of_its_own_is_fedavg() -> None:
    """But for running statistics: the client's own model, which nobody trains, still sees its batches."""
    _, deployed, server = on_batchnorm("apfl", alpha=0.0)
    e = experiment(net("batchnorm"), ragged("batchnorm"), ct.algorithms.build("fedavg", **WHOLE))
    u = play(e, 2).state.u
    parameters = dict(e.model.module.named_parameters())
    assert all(torch.equal(server[k], v) for k, v in u.items())
    assert all(torch.equal(found[k], u[k]) for found in deployed for k in parameters)


def test_pfedme_with_single_steps_is_fedavg() -> None:
    """theta = w - inner_lr g, so w steps by lr lam inner_lr: the server's models are the same."""
    settings = {**WHOLE, "steps": 1, "batch_size": 4}
    moreau = ct.algorithms.build("pfedme", **{**settings, "lam": 4.0, "inner_lr": 0.5, "inner_steps": 1})
    plain = ct.algorithms.build("fedavg", **{**settings, "lr": 0.05 * 4.0 * 0.5})
    ends = [play(experiment(net("mlp"), ragged("mlp"), x), 3).state for x in (moreau, plain)]
    alike(ends[0].server.u, ends[1].u)


class TestFedAMP:
    """What its weights keep to."""

    def weights(self, topology: str | None, drop_messages: float = 0.0) -> list[Tensor]:
        """W of every exchange, as the engine mixes with it."""
        seen: list[Tensor] = []

        class Watched(Serial):
            def mix(self, W: Tensor, x: Tensors) -> Tensors:
                seen.append(W)
                return super().mix(W, x)

        settings = {**PLAIN, "lr": 0.05, "steps": 1, "sigma": 0.5, "alpha": 0.05}
        algorithm = ct.algorithms.fedamp(topology=topology, **settings)
        play(experiment(net("mlp"), ragged("mlp"), algorithm, Watched(), drop_messages=drop_messages), 3)
        assert len(seen) == 3
        return seen

    @pytest.mark.parametrize("topology", [None, "ring", "random-pull:2"])
    def test_rows_are_means_over_those_who_are_heard(self, topology: str | None) -> None:
        graph = ct.topology.build(topology or "full", 5, 0)
        for t, W in enumerate(self.weights(topology)):
            torch.testing.assert_close(W.sum(1), torch.ones(5).double(), rtol=0, atol=1e-15)
            assert bool((W >= 0).all())
            assert torch.equal(W > 0, graph(t) > 0)

    def test_who_is_more_alike_counts_more(self) -> None:
        """Each row has as many different weights as others are heard, and none is the graph's own."""
        for W in self.weights(None):
            off = W[~torch.eye(5, dtype=torch.bool)].view(5, 4)
            assert all(len(row.unique()) == 4 for row in off)

    def test_a_message_that_is_lost_counts_nothing(self) -> None:
        for W in self.weights("ring", drop_messages=1.0):
            assert torch.equal(W, torch.eye(5).double())

    def test_models_travel_once(self) -> None:
        """With a server all up and all down again, between peers one along every link; nothing else is counted."""
        for topology, messages, busiest in ((None, 10, 5), ("ring", 10, 2)):
            e = experiment(net("batchnorm"), ragged("batchnorm"), ct.algorithms.fedamp(topology=topology))
            sent = e.program.traffic(e.start().state, e.round(0))
            numbers = sum(v.numel() for v in e.model.module.parameters())
            assert (sent.totals.messages, sent.totals.parameters) == (messages, messages * numbers)
            assert sent.totals.busiest_up == sent.totals.busiest_down == busiest * numbers * 8

    def test_too_many_clients_for_all_pairs(self) -> None:
        many = Problem(Model(net("mlp"), cross_entropy), clients=2001, rounds=1, seed=0)
        with pytest.raises(UserError, match="everybody with everybody, 2001 are too many: give it a topology"):
            ct.algorithms.fedamp().bind(many)

    @pytest.mark.parametrize("lost", [{"drop_messages": 0.2}, {"offline": 0.2}], ids=["drop_messages", "offline"])
    def test_a_server_loses_no_messages(self, lost: dict[str, float]) -> None:
        e = experiment(net("mlp"), ragged("mlp"), ct.algorithms.fedamp()).changed(**lost)
        with pytest.raises(UserError, match="fedamp has a server: give it a topology instead"):
            e.check()


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("pfedme", {"lam": 0.0}, "lam=0.0 is out of range: it must be a number above 0"),
        ("pfedme", {"inner_steps": 0}, "inner_steps=0 is out of range: it must be a number between 1 and 1000"),
        ("fedamp", {"alpha": 0.0}, "alpha=0.0 is out of range: it must be a number above 0"),
        ("fedamp", {"sigma": -1.0}, "sigma=-1.0 is out of range"),
        ("fedamp", {"topology": "random-push:2"}, "column-stochastic"),
        ("apfl", {"alpha": 1.5}, "alpha=1.5 is out of range: it must be a number between 0 and 1"),
        ("fedprox", {"mu": -0.1}, "mu=-0.1 is out of range"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        experiment(net("mlp"), ragged("mlp"), ct.algorithms.build(method, **settings)).check()
