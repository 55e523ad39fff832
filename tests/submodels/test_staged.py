"""Depth and stages: the published sizes, parts that carry the names of the whole, and the losses of many heads."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from coterie import models
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, entries, stack
from coterie.local.personal import head_layer
from coterie.submodels.depth import deep_supervision, deepest, divergence, mutual, ramp, with_depth
from coterie.submodels.staged import STAGE, at_stage, norm_like, stage_lengths, stage_of, stage_widths, staged


class Mine(nn.Module):
    """A network in stages that is not one of ours: other layers, stages with names, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1))
        self.norm = nn.BatchNorm2d(6)
        self.stages = nn.Sequential()
        self.stages.add_module("low", nn.Sequential(nn.Conv2d(6, 4, 1), nn.Tanh()))
        self.stages.add_module("high", nn.Conv2d(4, 10, 3, stride=2, padding=1))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.linear = nn.Linear(10, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.pool(self.stages(F.relu(self.norm(self.stem(x))))).flatten(1))  # type: ignore[no-any-return]


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "mine":
        return Mine().double()
    return models.build(name, classes=3, input_shape=(2, 8, 8)).double()


NETS = ["resnet8-gn:width=4,groups=2", "resnet8-bn:width=4", "resnet18-gn:width=4,groups=2", "mine"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(module: nn.Module) -> Tensors:
    return {k: v.detach() for k, v in (*module.named_parameters(), *module.named_buffers())}


def stages_of(module: nn.Module) -> int:
    return len(list(module.get_submodule("stages").children()))


def equal(part: Tensors, whole: Tensors) -> bool:
    """By name, shape and value, to the last bit."""
    return part.keys() <= whole.keys() and all(torch.equal(v, whole[k]) for k, v in part.items())


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "which", "parameters", "millions"),
    [
        (with_depth, 1, 450_890, 230.7),
        (with_depth, 2, 1_572_436, 403.7),
        (with_depth, 3, 4_857_950, 557.2),
        (with_depth, 4, 13_256_808, 691.7),
        (at_stage, 1, 150_474, 154.47),
        (at_stage, 2, 676_682, 289.47),
        (at_stage, 3, 2_777_674, 424.09),
        (at_stage, 4, 11_173_962, 558.50),
    ],
)
@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_sizes(cut: Callable[..., nn.Module], which: int, parameters: int, millions: float, norm: str) -> None:
    with torch.device("meta"):
        part = cut(models.build(f"resnet18-{norm}", classes=10, input_shape=(3, 32, 32)), which)
        price = models.cost(part, torch.zeros(1, 3, 32, 32))
    assert entries(part.parameters()) == parameters
    assert price.flops / 1e6 == pytest.approx(millions, abs=0.05)


# --- parts carry the names of the whole ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_a_smaller_depth_is_a_part_of_a_larger_one(name: str) -> None:
    module = small(name)
    S = stages_of(module)
    full = with_depth(module, S)
    with torch.no_grad():
        for p in full.parameters():
            p.add_(1)
    for depth in range(1, S + 1):
        part = with_depth(full, depth)
        assert equal(named(part), named(full))
        assert not {v.data_ptr() for v in named(part).values()} & {v.data_ptr() for v in named(full).values()}
        assert equal(named(with_depth(module, depth)), named(with_depth(module, S)))
        assert len(part.heads) == min(depth, S - 1)
        assert part.complete == (depth == S)
        assert list(named(part)) == [k for k in named(full) if k in named(part)]
    assert equal(named(module), named(with_depth(module, S)))
    assert head_layer(full) == "linear"


@pytest.mark.parametrize("name", NETS)
def test_a_prefix_is_a_part_of_the_whole(name: str) -> None:
    module = small(name)
    S = stages_of(module)
    whole = staged(module)
    parts = [at_stage(whole, s) for s in range(1, S + 1)]
    for s, part in enumerate(parts, 1):
        assert equal(named(part), named(whole))
        assert equal(named(part), named(staged(module)))
        assert not {v.data_ptr() for v in named(part).values()} & {v.data_ptr() for v in named(whole).values()}
        assert {k.split(".")[1] for k in named(part) if k.startswith("heads.")} == ({str(s - 1)} if s < S else set())
    assert named(parts[-1]).keys() == named(module).keys()
    assert named(whole).keys() == {STAGE, *(k for part in parts for k in named(part))}
    assert head_layer(whole) == "linear"


def test_what_was_trained_is_carried_over_when_the_network_grows() -> None:
    whole = staged(small("resnet8-gn:width=4,groups=2"))
    before = named(copy.deepcopy(whole))
    server = dict(before)
    for s in (1, 2, 3):
        part = at_stage(whole, s)
        trained = {k: v + draw(*v.shape, seed=s) for k, v in named(part).items()}
        server |= trained
        whole.load_state_dict(server)
        beyond = [k for k in before if k.startswith(tuple(f"stages.{i}." for i in range(s, 3)))]
        assert all(torch.equal(named(whole)[k], before[k]) for k in beyond)
        if s < 3:
            grown = named(at_stage(whole, s + 1))
            assert all(torch.equal(grown[k], v) for k, v in trained.items() if not k.startswith("heads."))


def test_initial_values_are_always_the_same_and_disturb_nobody() -> None:
    module = small("resnet8-bn:width=4")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = named(with_depth(module, 2)), named(staged(module))
    assert torch.equal(torch.rand(3), expected)
    assert equal(named(with_depth(module, 2)), first[0])
    assert equal(named(staged(module)), first[1])
    bound = 1 / math.sqrt(8)  # PyTorch's own for a linear layer of 8 inputs
    head = first[1]["heads.1.linear.weight"]
    assert bound / 2 < float(head.abs().max()) <= bound


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_heads_side_by_side_in_training_and_averaged_in_evaluation(name: str) -> None:
    module, x = small(name), draw(4, 2, 8, 8)
    S = stages_of(module)
    for depth in range(1, S + 1):
        net = with_depth(module, depth)
        assert net.training
        assert net(x).shape == (4, depth, 3)
        close(net.eval()(x), torch.stack(net.logits(x), 1).mean(1))
        last = with_depth(net if depth == S else module, depth, deepest_only=True).eval()
        assert last(x).shape == (4, 3)
    assert torch.equal(with_depth(module, S, deepest_only=True).eval()(x), module.eval()(x))
    assert not with_depth(module.eval(), S).training


@pytest.mark.parametrize("name", NETS)
def test_one_chosen_head_answers(name: str) -> None:
    module, x = small(name).eval(), draw(4, 2, 8, 8)
    whole = staged(module)
    assert torch.equal(whole(x), module(x))
    S = len(whole.stages)
    for s in range(1, S + 1):
        whole.stage.copy_(F.one_hot(torch.tensor(s - 1), S))
        assert torch.equal(whole(x), at_stage(whole, s)(x))
    assert torch.equal(at_stage(module, S)(x), module(x))


def test_beyond_the_chosen_stage_there_is_no_gradient() -> None:
    whole = staged(small("resnet8-gn:width=4,groups=2"))
    whole.stage.copy_(torch.tensor([0.0, 1.0, 0.0]))
    F.cross_entropy(whole(draw(4, 2, 8, 8)), torch.tensor([0, 1, 2, 0])).backward()  # type: ignore[no-untyped-call]
    inside = {k for k, _ in at_stage(whole, 2).named_parameters()}
    for k, p in whole.named_parameters():
        assert p.grad is not None
        assert bool(p.grad.any()) == (k in inside)


def test_one_stage_is_the_network_itself() -> None:
    module = models.resnet.ResNet(2, 3, [4], 1, nn.BatchNorm2d).double()
    x = draw(4, 2, 8, 8)
    assert named(at_stage(module, 1)).keys() == named(module).keys() == named(with_depth(module, 1)).keys()
    assert torch.equal(at_stage(module, 1)(x), module(x))
    assert torch.equal(with_depth(module, 1)(x)[:, 0], module(x))
    assert torch.equal(staged(module).stage, torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("make", [lambda m: with_depth(m, 2), staged, lambda m: at_stage(m, 2)], ids=["d", "all", "s"])
def test_clients_at_once_compute_as_one_by_one(name: str, make: Callable[[nn.Module], nn.Module]) -> None:
    module = copy.deepcopy(make(small(name)))
    trained = [k for k, _ in module.named_parameters()]
    clients = []
    for i in (0, 1):
        clients.append({k: v + draw(*v.shape, seed=i) if k in trained else v for k, v in named(module).items()})
        if STAGE in clients[i]:
            clients[i][STAGE] = F.one_hot(torch.tensor(i), len(clients[i][STAGE])).double()
    images, targets = draw(2, 4, 2, 8, 8), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])

    def loss(moving: Tensors, frozen: Tensors, x: Tensor, y: Tensor) -> Tensor:
        z = functional_call(module, moving | {k: v.clone() for k, v in frozen.items()}, (x,))
        return mutual(0.7)(z, y) if z.dim() == 3 else F.cross_entropy(z, y)

    def parts(x: Tensors) -> tuple[Tensors, Tensors]:
        return {k: x[k] for k in trained}, {k: v for k, v in x.items() if k not in trained}

    together = vmap(grad(loss))(*parts(stack(clients)), images, targets)
    for i, x in enumerate(clients):
        alone = grad(loss)(*parts(x), images[i], targets[i])
        for k in trained:
            close(together[k][i], alone[k])


# --- the losses of many heads ----------------------------------------------------------------------------------------


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum(1).mean()


def test_the_losses_are_the_formulas() -> None:
    z, y = draw(5, 3, 4), torch.tensor([0, 3, 1, 2, 2])
    supervised = torch.stack([F.cross_entropy(z[:, s], y) for s in range(3)]).sum()
    close(deep_supervision(z, y), supervised)
    p = z.softmax(2)
    pairs = sum(kl(p[:, j], p[:, s]) for s in range(3) for j in range(3) if j != s)
    close(mutual(0.3)(z, y), supervised + 0.3 / 2 * pairs)
    q = (z / 2).softmax(2)
    close(deepest(0.2, 2.0)(z, y), 0.8 * supervised + 0.2 * 4 * (kl(q[:, 2], q[:, 0]) + kl(q[:, 2], q[:, 1])))


def test_a_teacher_gets_no_gradient() -> None:
    z, y, B, k, w = draw(5, 3, 4), torch.tensor([0, 3, 1, 2, 2]), 5, 3, 0.3
    p = z.softmax(2)
    own = grad(deep_supervision)(z, y)
    close(grad(mutual(w))(z, y) - own, w / (k - 1) / B * (k * p - p.sum(1, keepdim=True)))  # as students only
    tau, a = 2.0, 0.2
    q = (z / tau).softmax(2)
    close(grad(deepest(a, tau))(z, y) - (1 - a) * own, a * tau / B * (q - q[:, 2:]))  # zero for the last
    teacher, student = draw(5, 4, seed=1).requires_grad_(), draw(5, 4, seed=2).requires_grad_()
    divergence(teacher, student).sum().backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    assert student.grad is not None


def test_equal_heads_teach_nothing() -> None:
    z, y = draw(5, 1, 4).expand(5, 3, 4).clone(), torch.tensor([0, 3, 1, 2, 2])
    assert torch.equal(divergence(z[:, 0], z[:, 1]), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(mutual(1.0)(z, y), deep_supervision(z, y))
    close(deepest(0.5, 3.0)(z, y), 0.5 * deep_supervision(z, y))


def test_without_weight_only_the_labels_teach() -> None:
    z, y = draw(5, 3, 4), torch.tensor([0, 3, 1, 2, 2])
    for loss in (mutual(0.0), deepest(0.0, 3.0), mutual(torch.tensor(0.0, dtype=torch.float64))):
        assert torch.equal(loss(z, y), deep_supervision(z, y))
        assert torch.equal(grad(loss)(z, y), grad(deep_supervision)(z, y))


def test_a_single_head_has_nobody_to_learn_from() -> None:
    z, y = draw(5, 1, 4), torch.tensor([0, 3, 1, 2, 2])
    assert torch.equal(mutual(1.0)(z, y), F.cross_entropy(z[:, 0], y))
    close(deepest(0.2, 2.0)(z, y), 0.8 * F.cross_entropy(z[:, 0], y))


@pytest.mark.parametrize("loss", [deep_supervision, mutual(0.4), deepest(0.3, 2.0)])
def test_the_mean_over_samples_is_the_loss_of_the_batch(loss: Any) -> None:
    z, y = draw(5, 3, 4), torch.tensor([0, 3, 1, 2, 2])
    close(vmap(lambda o, t: loss(o[None], t[None]))(z, y).mean(), loss(z, y))


def test_the_ramp() -> None:
    assert ramp(0) == pytest.approx(0.006737947, abs=1e-9)
    assert ramp(150) == pytest.approx(math.exp(-1.25))
    assert ramp(300) == ramp(301) == 1.0


# --- when the network grows ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 7))
def test_lengths_sum_to_all_rounds(T: int, S: int) -> None:
    lengths = stage_lengths(T, S)
    assert sum(lengths) == T
    assert lengths[:-1] == [T // (2 * S)] * (S - 1)
    assert [stage_of(t, T, S) for t in range(T)] == [s for s, n in enumerate(lengths, 1) for _ in range(n)]
    assert stage_of(T, T, S) == S


# --- refusals --------------------------------------------------------------------------------------------------------


def stemless() -> nn.Module:
    module = Mine()
    module.stem = nn.Sequential(nn.Flatten(2))
    return module


def unusual() -> nn.Module:
    module = Mine()
    module.norm = nn.InstanceNorm2d(6)  # type: ignore[assignment]
    return module


def stageless() -> nn.Module:
    module = Mine()
    module.stages = nn.Sequential()
    return module


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (lambda: with_depth(small("mlp"), 1), "the model is not built in stages: take resnet8-gn"),
        (lambda: staged(small("mlp")), "(missing: stem, norm, stages, pool, linear)"),
        (lambda: at_stage(stageless(), 1), "(missing: stages)"),
        (lambda: with_depth(with_depth(Mine(), 1), 1), "(missing: pool, linear)"),
        (lambda: with_depth(Mine(), 0), "depth=0 must be between 1 and 2"),
        (lambda: with_depth(Mine(), 3), "depth=3 must be between 1 and 2"),
        (lambda: at_stage(Mine(), 3), "stage=3 must be between 1 and 2"),
        (lambda: stage_widths(stemless()), "let it begin with an nn.Conv2d"),
        (lambda: with_depth(unusual(), 1), "InstanceNorm2d cannot be resized: use nn.GroupNorm or nn.BatchNorm2d"),
        (lambda: norm_like(nn.GroupNorm(4, 8), 6), "groups=4 does not divide a layer's 6 channels"),
        (lambda: deepest(1.5, 1.0), "a=1.5 must be between 0 and 1"),
        (lambda: deepest(0.5, 0.0), "tau=0.0 must be above 0"),
        (lambda: stage_lengths(0, 3), "at least one of each"),
    ],
)
def test_wrong_requests_are_one_sentence(request_: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        request_()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
