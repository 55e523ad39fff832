"""Which heads answer, DepthFL's own heads, features that are taught, and rounds that train a new stage alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.algorithms import Algorithm
from coterie.core.errors import UserError
from coterie.engines import Serial, Vectorized
from coterie.submodels.depth import Gate, deepest, with_depth
from laws import COMMON
from toys import experiment, net, play, ragged

alg = ct.algorithms
ONE = {**COMMON, "epochs": 1, "participation": 3}
X = ragged("mlp").test_x


def run(algorithm: Algorithm, engine: Any = None, rounds: int = 8) -> Any:
    return experiment(net("residual"), ragged("mlp"), algorithm, engine or Serial(), rounds=rounds)


def heads_of(u: dict[str, Tensor], x: Tensor = X) -> Tensor:
    """[B, 2, C] what both heads answer, from a network built anew."""
    whole = with_depth(net("residual"), 2)
    whole.load_state_dict({k: v for k, v in u.items() if k != "answering"})
    return whole.train()(x).detach()  # group normalization answers alike in both modes


@pytest.mark.parametrize(("answer", "wanted"), [("mean", [0.5, 0.5]), ("deepest", [0.0, 1.0])])
def test_the_global_model_answers_with_the_heads_there_are(answer: str, wanted: list[float]) -> None:
    for capacities, share in (("2-1", wanted), ("1", [1.0, 0.0])):
        e = run(alg.depthfl(**ONE, capacities=capacities, answer=answer))
        u = play(e, 2).state.u
        z = heads_of(u)
        torch.testing.assert_close(e.model.outputs(u, X), (torch.tensor(share)[:, None] * z).sum(1).to(z))
        small = e.clients(play(e, 2).state)[4].module()  # of depth 1 in both
        torch.testing.assert_close(small(X), z[:, 0])


def test_as_deep_as_the_deepest_of_the_round() -> None:
    e = run(alg.depthfl(**ONE, capacities="1@3-2"))
    now = e.start()
    seen = [now.state.u["answering"].tolist()]
    for t in range(4):
        now = e.run_round(now, t, evaluate=False)[0]
        seen.append(now.state.u["answering"].tolist())
    assert seen == [[1, 0]] * 4 + [[0.5, 0.5]]


def test_shallow_clients_are_not_judged_by_heads_that_nobody_has() -> None:
    """With depth 1 alone the one model is what every client has: the accuracies are the same."""
    e = run(alg.depthfl(**ONE, capacities="1"))
    now, row = e.run_round(play(e, 3), 3, evaluate=True)
    assert row["global_accuracy_local"] == pytest.approx(row["personal_accuracy_after_mix"])
    assert now.state.u["answering"].tolist() == [1, 0]


@pytest.mark.parametrize(("depth", "wanted"), [(1, 433_482), (2, 1_254_996), (3, 3_699_806), (4, 12_098_664)])
def test_depthfls_own_heads_have_their_published_size(depth: int, wanted: int) -> None:
    with torch.device("meta"):
        module = ct.models.build("resnet18-bn", classes=10, input_shape=(3, 32, 32))
        small = with_depth(module, depth, heads="gated")
    assert sum(p.numel() for p in small.parameters()) == wanted


def test_the_gate_by_hand() -> None:
    """By torch's own functions, the upsampling by a factor, as the released code has it."""
    torch.manual_seed(0)
    gate = Gate(nn.BatchNorm2d(4), 4).eval()
    h, p = torch.randn(3, 4, 6, 6), dict(gate.named_parameters())
    v = F.conv2d(F.conv2d(h, p["sep.0.weight"], stride=2, padding=1, groups=4), p["sep.1.weight"]) / np.sqrt(1 + 1e-5)
    v = F.conv2d(F.conv2d(v.relu(), p["sep.4.weight"], padding=1, groups=4), p["sep.5.weight"]) / np.sqrt(1 + 1e-5)
    v = F.interpolate((v.relu() / np.sqrt(1 + 1e-5)).relu(), scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(gate(h), h * torch.sigmoid(v))


def test_features_are_pulled_towards_the_deepest_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    z, f = (torch.randn(5, 3, d, generator=draw, dtype=torch.float64, requires_grad=True) for d in (4, 2))
    y = torch.tensor([0, 1, 2, 3, 0])
    both = deepest(0.3, 2.0, b=0.1, classes=4)(torch.cat([z, f], 2), y)
    pull = sum(((f[i, s] - f[i, 2]) ** 2).sum() for i in range(5) for s in range(2)) / 5
    torch.testing.assert_close(both - deepest(0.3, 2.0)(z, y), 0.1 * pull)
    (slope,) = torch.autograd.grad(both, f)
    torch.testing.assert_close(slope[:, :2], 0.2 / 5 * (f[:, :2] - f[:, 2:]))
    assert not slope[:, 2].any()  # who teaches is not moved


SETTINGS: dict[str, Algorithm] = {
    "heads": alg.depthfl(**ONE, capacities="2-1", heads="depthfl"),
    "features": alg.depthfl(**ONE, capacities="2-1", distill="deepest", feature_l2=0.1),
    "warmup": alg.progfed(**ONE, warmup=1),
}


@pytest.mark.parametrize("which", SETTINGS)
def test_engines_agree(which: str) -> None:
    left, right = (play(run(SETTINGS[which], engine), 4).state.u for engine in (Serial(), Vectorized(2)))
    for k, v in left.items():
        torch.testing.assert_close(right[k], v, rtol=1e-9, atol=1e-10)


def test_features_matter_where_there_is_a_teacher() -> None:
    plain = alg.depthfl(**ONE, capacities="2-1", distill="deepest")
    left, right = (play(run(a), 1).state.u for a in (SETTINGS["features"], plain))
    assert not torch.equal(left["heads.0.conv.weight"], right["heads.0.conv.weight"])
    for distill in ("mutual", "none"):
        with pytest.raises(UserError, match="distill=deepest"):
            alg.depthfl(distill=distill, feature_l2=1e-6)


def test_warm_up_trains_the_new_stage_alone() -> None:
    e = run(alg.progfed(**ONE, warmup=1))  # two rounds of one stage, then six of two, the first of them to warm up
    now, moved = e.start(), []
    for t in range(4):
        before = now.state.u
        now = e.run_round(now, t, evaluate=False)[0]
        changed = {"".join(k.split(".")[:2]) for k, v in now.state.u.items() if not torch.equal(before[k], v)}
        moved.append(changed - {"stage"})
    new = {"stages1", "linearweight", "linearbias"}
    old = {"stemweight", "normweight", "normbias", "stages0"}
    assert moved[2] == new
    assert moved[3] == new | old
    assert not new & (moved[0] | moved[1])
    with pytest.raises(UserError, match="none of the 2 rounds"):
        run(alg.progfed(**ONE, warmup=2)).check()
