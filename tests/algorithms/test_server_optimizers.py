"""The server's optimizer: closed forms, what it reduces to, shards, and what it leaves as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie import algorithms
from coterie.cluster.shard import outline
from coterie.core.errors import UserError
from coterie.engines import Serial
from laws import LAWS, METHODS, kind_like
from quadratic import ENGINES, ETA_U, K_U, a, b, c, close, d, plain
from shards import SHARD_OF, assert_close, conduct, put_together, shards_of
from toys import Quadratic, experiment, golden, models, net, play, ragged

ROUNDS = 4
SERVED = [law.method for law in LAWS if law.method not in ("local", "pooled", "fedamp", "fedhmv2")]
SERVED = [m for m in SERVED if algorithms.build(m).settings.get("topology") is None]


def trained(u: Tensor) -> Tensor:
    """The mean of what four clients come to from one point."""
    return (b + (1 - ETA_U * a) ** K_U * (u - b)).mean()


def with_torch(rate: float, beta: float) -> list[float]:
    """FedAvgM is SGD with momentum along the way back from the mean."""
    u = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([u], lr=rate, momentum=beta)
    return [_step(sgd, u) for _ in range(ROUNDS)]


def _step(sgd: torch.optim.Optimizer, u: Tensor) -> float:
    u.grad = u.detach() - trained(u.detach())
    sgd.step()
    return float(u.detach())


def published(kind: str, rate: float, beta_1: float, beta_2: float, tau: float) -> list[float]:
    """Algorithm 2 of "Adaptive Federated Optimization", number by number."""
    u, m, v, found = 0.5, 0.0, tau**2, []
    for _ in range(ROUNDS):
        delta = float(trained(torch.tensor(u, dtype=torch.float64))) - u
        m = beta_1 * m + (1 - beta_1) * delta
        sign = (v > delta**2) - (v < delta**2)
        v = {
            "adagrad": v + delta**2,
            "yogi": v - (1 - beta_2) * delta**2 * sign,
            "adam": beta_2 * v + (1 - beta_2) * delta**2,
        }[kind]
        u = u + rate * m / (v**0.5 + tau)
        found.append(u)
    return found


FORMS: dict[str, Callable[[], list[float]]] = {
    "momentum": lambda: with_torch(1.0, 0.9),
    "momentum:lr=0.5,beta=0.6": lambda: with_torch(0.5, 0.6),
    "adam": lambda: published("adam", 0.01, 0.9, 0.99, 1e-3),
    "adam:lr=0.2,beta_1=0.5,beta_2=0.7,tau=0.1": lambda: published("adam", 0.2, 0.5, 0.7, 0.1),
    "yogi:lr=0.2,beta_2=0.7,tau=0.05": lambda: published("yogi", 0.2, 0.9, 0.7, 0.05),
    "adagrad:lr=0.3": lambda: published("adagrad", 0.3, 0.0, 0.0, 1e-3),
}


@ENGINES
@pytest.mark.parametrize("text", FORMS)
def test_closed_forms(text: str, engine: Any) -> None:
    e = experiment(Quadratic(), golden(), plain("fedavg", participation=1.0, server_optimizer=text), engine)
    now = e.start()
    for t, expected in enumerate(FORMS[text]()):
        now, _ = e.run_round(now, t, evaluate=False)
        close(now.state.u["u"], expected)


@pytest.mark.parametrize("method", SERVED)
def test_sgd_at_rate_1_is_the_plain_mean_to_the_bit(method: str) -> None:
    """And a momentum of 0 at the method's own rate is what the method does, to rounding."""
    row = next(case for case, (name, _) in METHODS.items() if name == method)
    settings = {k: v for k, v in METHODS[row][1].items() if k not in ("outer_lr", "beta")}
    rate = {k: 1.0 for k in ("outer_lr", "beta") if k in algorithms.build(method).settings}
    kind = kind_like(row, "batchnorm")

    def ends(text: str, **own: Any) -> Any:
        given = {"lr": 0.05, "batch_size": 4, **settings, **own, "server_optimizer": text}
        return models(experiment(net(kind), ragged(kind), algorithms.build(method, **given)), 2)

    plainly, sgd, still = ends("sgd", **rate), ends("sgd:lr=1"), ends("momentum:beta=0", **rate)
    for name, v in plainly.items():
        assert torch.equal(v, sgd[name])
        torch.testing.assert_close(still[name], v, rtol=1e-12, atol=1e-13)


def test_personal_parts_and_running_statistics_stay_as_they_are() -> None:
    """One round from the same point: nothing but the common parameters differs."""
    common = {"participation": 1.0, "epochs": 1, "batch_size": 4}
    both = []
    for text in ("sgd", "adam:lr=0.1"):
        alg = ct.algorithms.fedper(server_optimizer=text, **common)
        both.append(play(experiment(net("batchnorm"), ragged("batchnorm"), alg), 1))
    one, other = (now.state for now in both)
    parameters = {k for k, _ in net("batchnorm").named_parameters()}
    assert all(torch.equal(v, other.v[k]) for k, v in one.v.items())
    assert all(torch.equal(v, other.u[k]) is (k not in parameters) for k, v in one.u.items())
    assert other.outer.keys() == {"first", "second"}
    assert other.outer["first"].keys() == parameters & one.u.keys()


@ENGINES
def test_control_variates_stay_mean_gradients(engine: Any) -> None:
    e = experiment(Quadratic(), golden(), plain("scaffold", participation=1.0, server_optimizer="adam:lr=0.1"), engine)
    state = play(e, 1).state
    close(state.c_i["u"], (0.5 - (b + (1 - ETA_U * a) ** K_U * (0.5 - b))) / (K_U * ETA_U))
    close(state.c_i["v"], (1.0 - (d + (1 - ETA_U * c) ** K_U * (1.0 - d))) / (K_U * ETA_U))


@pytest.mark.parametrize("row", ["fedper", "scaffold", "ditto", "heterofl"])
def test_shards_step_alike(row: str) -> None:
    method, settings = METHODS[row]
    kind = kind_like(row, "groupnorm")
    alg = algorithms.build(method, **{"lr": 0.05, "batch_size": 4, **settings, "server_optimizer": "yogi:lr=0.1"})
    e = experiment(net(kind), ragged(kind), alg, Serial(), rounds=4)
    shards = shards_of(e, SHARD_OF[2])
    conduct(shards, "start")
    now = e.start()
    for t in range(2):
        now, _ = e.run_round(now, t, evaluate=False)
        results = conduct(shards, "run_round", t, False)
    assert any("outer/second/" in name for name in e.saved(now))
    assert_close(put_together(shards, [saved for _, saved in results], outline(e).stacked), e.saved(now))


SENTENCES = {
    "adm": "did you mean adam",
    "adam:rate=1": "no option 'rate'",
    "adam:tau=0": "above 0",
    "momentum:beta=1": "below 1",
}


@pytest.mark.parametrize("text", SENTENCES)
def test_what_is_wrong_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=SENTENCES[text]):
        experiment(Quadratic(), golden(), ct.algorithms.fedavg(server_optimizer=text))
