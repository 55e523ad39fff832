"""Fed-RoD's network that makes heads: what it makes, what it learns, what persists, and what the generic model is."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import coterie as ct
from coterie.core.errors import UserError
from coterie.training.experiment import Experiment
from coterie.training.schedule import Schedule
from laws import COMMON
from toys import experiment, net, play, ragged

fedrod = ct.algorithms.fedrod
PLAIN: dict[str, Any] = {"momentum": 0.0, "weight_decay": 0.0, "clip": None, "batch_size": None, "steps": 1, "lr": 0.1}
FORMS: dict[str, dict[str, Any]] = {"none": {}, "first": {"hyper": True}, "anew": {"hyper": True, "keep_head": False}}
Tensors = dict[str, Tensor]


def whole(fed: Any, i: int) -> tuple[Tensor, Tensor]:
    return fed.x[fed.train[i]].flatten(1), fed.y[fed.train[i]]


def head_of(u: Tensors, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that the network makes of the classes among y, written out."""
    share = y.bincount(minlength=3).double() / len(y)
    hidden = (u["3.network.0.weight"] @ share + u["3.network.0.bias"]).clamp(min=0)
    made = (u["3.network.2.weight"] @ hidden + u["3.network.2.bias"]).view(3, 9)
    return made[:, :8], made[:, 8]


def seen(u: Tensors, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features, and the generic answer."""
    features = torch.tanh(x @ u["1.weight"].T + u["1.bias"])
    return features, features @ u["3.generic.weight"].T + u["3.generic.bias"]


def learned(cohorts: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Experiment, Any]:
    """An experiment whose network is not zero any more, before its first round."""
    e = experiment(net("mlp"), ragged("mlp"), fedrod(**PLAIN, hyper=True, participation=1.0, **settings))
    monkeypatch.setattr(Schedule, "cohort", lambda self, t: torch.tensor(cohorts[t]).numpy())
    now = e.start()
    draw = torch.Generator().manual_seed(0)
    drawn = {
        k: torch.randn(v.shape, generator=draw, dtype=v.dtype) if "network" in k else v for k, v in now.state.u.items()
    }
    return e, now._replace(state=now.state._replace(u=drawn))


def test_a_head_begins_as_the_networks_and_stays_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    e, now = learned({0: [1, 2], 1: [0, 1]}, monkeypatch, personal_lr=0.0)
    fed, u = e.federation, now.state.u
    models = e.program.models(now.state)
    for i in range(5):  # whoever has no head yet answers with the network's
        weight, bias = head_of(u, whole(fed, i)[1])
        torch.testing.assert_close(models["3.personal.weight"][i], weight)
        torch.testing.assert_close(models["3.personal.bias"][i], bias)
    after, _ = e.run_round(now, 0, evaluate=False)
    assert after.state.v["3.begun"].tolist() == [0, 1, 1, 0, 0]
    torch.testing.assert_close(after.state.v["3.personal.weight"][1], head_of(u, whole(fed, 1)[1])[0])
    other = {k: v * 2 if "network" in k else v for k, v in after.state.u.items()}
    last, _ = e.run_round(after._replace(state=after.state._replace(u=other)), 1, evaluate=False)
    v = last.state.v
    assert v["3.begun"].tolist() == [1, 1, 1, 0, 0]
    assert torch.equal(v["3.personal.weight"][1], after.state.v["3.personal.weight"][1])  # it has its own by now
    torch.testing.assert_close(v["3.personal.weight"][0], head_of(other, whole(fed, 0)[1])[0])
    assert not v["3.personal.weight"][3].any()


def test_one_step_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """q_i and H step along the gradients of their own losses; the server has the mean of H by size."""
    e, now = learned({0: [0, 1, 2, 3, 4]}, monkeypatch, personal_lr=0.3)
    after, _ = e.run_round(now, 0, evaluate=False)
    names = [k for k in now.state.u if "network" in k]
    mean = {k: torch.zeros_like(now.state.u[k]) for k in names}
    for i in range(5):
        x, y = whole(e.federation, i)
        u = {k: v.clone().requires_grad_(k in names) for k, v in now.state.u.items()}
        features, generic = (v.detach() for v in seen(u, x))
        weight, bias = head_of(u, y)
        loss = F.cross_entropy(generic + features @ weight.T + bias, y)
        grads = torch.autograd.grad(loss, [weight, bias, *(u[k] for k in names)])
        torch.testing.assert_close(after.state.v["3.personal.weight"][i], (weight - 0.3 * grads[0]).detach())
        torch.testing.assert_close(after.state.v["3.personal.bias"][i], (bias - 0.3 * grads[1]).detach())
        for k, g in zip(names, grads[2:], strict=True):
            mean[k] += len(y) / 24 * (u[k] - 0.3 * g).detach()
    for k in names:
        torch.testing.assert_close(after.state.u[k], mean[k])


def test_the_generic_model_is_the_same_in_all_forms() -> None:
    """To the last bit; and so is its accuracy, which is the one called global."""
    generic, rows = [], []
    for form in FORMS.values():
        e = experiment(net("mlp"), ragged("mlp"), fedrod(**COMMON, epochs=2, participation=3, personal_lr=0.5, **form))
        now = play(e, 2)
        last, row = e.run_round(now, 2, evaluate=True)
        generic.append({k: v for k, v in last.state.u.items() if "network" not in k})
        rows.append(row)
        u = last.state.u
        right = seen(u, e.federation.test_x.flatten(1))[1].argmax(1) == e.federation.test_y
        assert row["global_accuracy"] == pytest.approx(float(right.double().mean()))
        assert row["consensus_distance"] == 0
    assert all(torch.equal(v, other[k]) for other in generic[1:] for k, v in generic[0].items())
    assert len({row["personal_accuracy_after_train"] for row in rows}) > 1


def test_a_form_without_a_network_has_nothing_to_make_anew() -> None:
    with pytest.raises(UserError, match="add hyper=true"):
        fedrod(keep_head=False)
