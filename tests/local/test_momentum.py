"""Momentum that outlives a round: every method keeps it, as a second implementation does, or refuses it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.core.errors import UserError
from coterie.core.tensors import rows
from quadratic import ENGINES, ETA_U, ETA_V, K_U, OWN, PUSH, a, b, c, close, column, d, plain, shared_only, u0
from toys import Quadratic, experiment, golden, net, play, ragged, scattered

ROUNDS, BETA = 3, 0.9
LASTING: dict[str, Any] = {"momentum": BETA, "keep_optimizer_state": True}


def test_push_sum_keeps_the_momentum_of_numerators() -> None:
    """Both phases of DFedPGP: buffers stay at home, numerators step along them, gradients are at the ratio."""
    e = experiment(Quadratic(), golden(), plain("dfedpgp", topology=column, **OWN, **LASTING))
    state = play(e, ROUNDS, scattered(e)).state
    u, v, mu = u0.clone(), torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    buffer_u, buffer_v = torch.zeros_like(u), torch.zeros_like(v)
    for _ in range(ROUNDS):
        buffer_v = BETA * buffer_v + c * (v - d)
        v = v - ETA_V * buffer_v
        for _ in range(K_U):
            buffer_u = BETA * buffer_u + a * (u / mu - b)
            u = u - ETA_U * buffer_u
        u, mu = PUSH @ u, PUSH @ mu
    close(state.x["u"], u)
    close(state.x["v"], v)
    close(state.memory["momentum"]["u"], buffer_u)


@ENGINES
@pytest.mark.parametrize("tau", [0, 1])
def test_osgp_keeps_it_while_messages_are_on_their_way(engine: Any, tau: int) -> None:
    e = experiment(shared_only(), golden(), plain("osgp", topology=column, tau=tau, **LASTING), engine)
    state = play(e, ROUNDS, scattered(e)).state
    u, mu, buffer = u0.clone(), torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    own, others = (PUSH.diagonal(), PUSH - PUSH.diagonal().diag()) if tau else (torch.zeros(4), PUSH)
    late = torch.zeros(2, 4, dtype=torch.float64)
    for _ in range(ROUNDS):
        for _ in range(K_U):
            buffer = BETA * buffer + a * (u / mu - b)
            u = u - ETA_U * buffer
        sent = torch.stack([others @ u, others @ mu])
        u, mu = torch.stack([own * u, own * mu]) + (late if tau else sent)
        late = sent
    close(state.x["u"], u)
    close(state.mu, mu)


@ENGINES
def test_ditto_keeps_one_for_each_of_its_models(engine: Any) -> None:
    e = experiment(shared_only(), golden(), plain("ditto", participation=1.0, personal_lr=ETA_V, **LASTING), engine)
    state = play(e, ROUNDS).state
    w = torch.tensor(0.5, dtype=torch.float64)
    p = torch.full((4,), 0.5, dtype=torch.float64)
    buffer_w, buffer_p = torch.zeros_like(p), torch.zeros_like(p)
    for _ in range(ROUNDS):
        y = w.repeat(4)
        for _ in range(K_U):
            buffer_p = BETA * buffer_p + a * (p - b) + 0.75 * (p - w)
            p = p - ETA_V * buffer_p
            buffer_w = BETA * buffer_w + a * (y - b)
            y = y - ETA_U * buffer_w
        w = y.mean()
    close(state.own.p["u"], p)
    close(state.server.u["u"], w)


def descended(module: nn.Module, x: dict[str, Tensor], mask: dict[str, Tensor], memory: Any, data: Any) -> None:
    """Two masked steps of one client, in place, with autograd and no part of the package."""
    for _ in range(2):
        point = {k: v.clone().requires_grad_() for k, v in x.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(module, point, data[0]), data[1])
        for k, g in zip(x, torch.autograd.grad(loss, list(point.values())), strict=True):
            memory[k] = BETA * memory[k] + g
            x[k] = (x[k] - 0.05 * memory[k]) * mask[k]


def test_dispfl_keeps_that_of_what_stays_alive() -> None:
    """Where masks move is read from the package; what grows starts without momentum."""
    fed, module = ragged("mlp"), net("mlp")
    settings = {"lr": 0.05, "lr_decay": 1.0, "weight_decay": 0.0, "clip": None, "batch_size": None, "steps": 2}
    e = experiment(module, fed, ct.algorithms.dispfl(topology="full", **settings, **LASTING), rounds=ROUNDS)
    now = e.start()
    n = fed.clients
    x = [rows(now.state.x, i) for i in range(n)]
    memory = [{k: torch.zeros_like(v) for k, v in x[0].items()} for _ in range(n)]
    for t in range(ROUNDS):
        masks = [rows(now.state.mask, i) for i in range(n)]
        for i in range(n):
            x[i] = dict(x[i])
            descended(module, x[i], masks[i], memory[i], (fed.x[fed.train[i]], fed.y[fed.train[i]]))
        now, _ = e.run_round(now, t, evaluate=False)
        total = {k: sum(z[k] for z in x) for k in x[0]}
        alive = {k: sum(m[k].double() for m in masks).clamp(min=1) for k in x[0]}
        new = [rows(now.state.mask, i) for i in range(n)]
        x = [{k: total[k] / alive[k] * new[i][k] for k in total} for i in range(n)]
        memory = [{k: v * masks[i][k] * new[i][k] for k, v in memory[i].items()} for i in range(n)]
    for i in range(n):
        for k, v in x[i].items():
            torch.testing.assert_close(now.state.x[k][i], v, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(now.state.memory["momentum"][k][i], memory[i][k], rtol=1e-9, atol=1e-11)


def test_fedlmt_that_pushes_keeps_it_as_osgp_does() -> None:
    """With every layer whole FedLMT on a graph that pushes is OSGP."""
    same = {"lr": 0.05, "lr_decay": 1.0, "batch_size": 4, "epochs": 1, "clip": None, "weight_decay": 0.0, **LASTING}
    pushing = {"topology": "random-push:2"}
    left = ct.algorithms.fedlmt(keep_layers=99, rank_ratio=1.0, **pushing, **same)
    right = ct.algorithms.osgp(**pushing, **same)
    one, other = (play(experiment(net("mlp"), ragged("mlp"), alg), 2).state for alg in (left, right))
    assert any(v.any() for v in one.memory["momentum"].values())
    for k, v in one.x.items():
        torch.testing.assert_close(v, other.x[k], rtol=1e-12, atol=1e-13)


REFUSED: dict[str, Callable[[], Algorithm]] = {
    "without momentum there is none": lambda: ct.algorithms.fedavg(momentum=0.0, keep_optimizer_state=True),
    "scaffold": lambda: ct.algorithms.scaffold(keep_optimizer_state=True),
    "narrow": lambda: ct.algorithms.heterofl(keep_optimizer_state=True),
}


@pytest.mark.parametrize("which", REFUSED)
def test_elsewhere_it_is_refused(which: str) -> None:
    with pytest.raises(UserError, match="keep_optimizer_state"):
        REFUSED[which]()
