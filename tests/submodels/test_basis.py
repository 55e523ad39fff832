"""Networks of one basis: the published sizes, banks that all widths share, and the dense convolution behind them."""

import copy
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
from coterie.submodels.basis import BasisConv2d, bank_names, composed, orthogonality

NETS = ["resnet8-gn:width=8,groups=2", "resnet8-bn:width=8", "resnet18-bn:width=8"]


def small(name: str) -> nn.Module:
    return models.build(name, classes=3, input_shape=(2, 8, 8)).double()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(module: nn.Module) -> Tensors:
    return {k: v.detach() for k, v in (*module.named_parameters(), *module.named_buffers())}


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "parameters", "millions"),
    [(0.25, 530_858, 57.1), (0.75, 2_362_986, 207.3), (1.25, 6_013_738, 436.1), (1.75, 11_483_114, 743.6)],
)
def test_table_1_of_fedlmt(fraction: float, parameters: int, millions: float) -> None:
    with torch.device("meta"):
        net = composed(models.build("resnet18-bn", classes=10, input_shape=(3, 32, 32)), fraction)
        price = models.cost(net, torch.zeros(1, 3, 32, 32))
    assert entries(net.parameters()) == parameters
    assert price.flops / 1e6 == pytest.approx(millions, abs=0.05)
    banks = [tuple(net.get_parameter(k).shape) for k in bank_names(net)]
    # m = C / 4 of the block, n = 1 / 8 of what enters it in the full network, for both convolutions
    widths = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    assert banks == [(out // 4, into // 8, 3, 3) for into, out in widths for _ in (1, 2)]


# --- what all widths share -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_banks_are_the_same_in_all_widths(name: str) -> None:
    module = small(name)
    nets = [composed(module, fraction) for fraction in (0.25, 1.0, 1.5)]
    assert bank_names(nets[0]) == bank_names(nets[1]) == bank_names(nets[2])
    for bank in bank_names(nets[0]):
        values = [net.get_parameter(bank) for net in nets]
        assert torch.equal(values[0], values[1])
        assert torch.equal(values[0], values[2])
    assert len({v.data_ptr() for net in nets for v in net.parameters()}) == sum(len(list(n.parameters())) for n in nets)
    for net, fraction in zip(nets, (0.25, 1.0, 1.5), strict=True):
        assert torch.equal(net.get_parameter("stem.weight"), module.get_parameter("stem.weight"))
        assert net.get_parameter("linear.weight").shape[1] == fraction * module.get_parameter("linear.weight").shape[1]


def test_what_is_new_is_always_the_same_and_disturbs_nobody() -> None:
    module = models.build("resnet8-gn:width=8,groups=2", classes=3, input_shape=(2, 8, 8))
    before = copy.deepcopy(named(module))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = composed(module, 0.5)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(v, named(composed(module, 0.5))[k]) for k, v in named(first).items())
    assert all(torch.equal(v, named(module)[k]) for k, v in before.items())
    assert not hasattr(first, "origin")
    assert not composed(module.eval(), 0.5).training


def test_kinds_of_normalization_stay() -> None:
    for name, kind in ((NETS[0], nn.GroupNorm), (NETS[1], nn.BatchNorm2d)):
        norms = [m for m in composed(small(name), 1.5).modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
        assert {type(m) for m in norms} == {kind}
        assert all(not m.track_running_stats for m in norms if isinstance(m, nn.BatchNorm2d))


# --- what they compute -----------------------------------------------------------------------------------------------


def dense(layer: BasisConv2d, x: Tensor) -> Tensor:
    """W[o, g n + c] = sum_b A[o, g m + b] B[b, c], without the channels that are not there."""
    m = len(layer.bank)
    A = layer.coefficients.weight[:, :, 0, 0]
    W = [torch.einsum("ob,bcij->ocij", A[:, g * m : (g + 1) * m], layer.bank) for g in range(layer.groups)]
    return F.conv2d(x, torch.cat(W, 1)[:, : x.shape[1]], stride=layer.stride, padding=1)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2]), st.booleans()
)
def test_the_layer_is_a_dense_convolution(into: int, out: int, m: int, n: int, stride: int, double: bool) -> None:
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-5)
    torch.manual_seed(0)
    layer = BasisConv2d(into, out, stride, draw(m, n, 3, 3)).to(dtype)
    x = draw(2, into, 6, 5, seed=1).to(dtype)
    close(layer(x), dense(layer, x), tolerance)
    assert layer(x).shape == F.conv2d(x, draw(out, into, 3, 3).to(dtype), stride=stride, padding=1).shape
    assert layer.groups == -(-into // n)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("fraction", [0.25, 0.75, 1.25])
def test_the_network_is_one_of_dense_convolutions(name: str, fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = composed(small(name), fraction), draw(3, 2, 8, 8)
    found = net(x)
    assert found.shape == (3, 3)
    monkeypatch.setattr(BasisConv2d, "forward", dense)
    close(found, net(x))


@pytest.mark.parametrize("name", NETS[:2])
def test_clients_at_once_compute_as_one_by_one(name: str) -> None:
    module = copy.deepcopy(composed(small(name), 0.75))
    clients = [{k: v + draw(*v.shape, seed=i) / 4 for k, v in named(module).items()} for i in (1, 2)]
    images, targets = draw(2, 4, 2, 8, 8), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])
    penalty = orthogonality(bank_names(module))

    def loss(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, tensors, (x,)), y) + 10 * penalty(tensors)

    together = vmap(grad(loss))(stack(clients), images, targets)
    for i, tensors in enumerate(clients):
        alone = grad(loss)(tensors, images[i], targets[i])
        for k in tensors:
            close(together[k][i], alone[k])


# --- the penalty -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_banks_start_without_penalty(dtype: torch.dtype) -> None:
    net = composed(models.build("resnet18-bn:width=16", classes=3, input_shape=(2, 8, 8)).to(dtype), 0.5)
    assert float(orthogonality(bank_names(net))(named(net))) < 1e-10


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 2), st.integers(0, 99))
def test_no_penalty_means_orthonormal(m: int, n: int, seed: int) -> None:
    rows = torch.linalg.qr(draw(9 * n, m, seed=seed))[0].T
    penalty = orthogonality(["a.bank"])
    assert float(penalty({"a.bank": rows.reshape(m, n, 3, 3)})) < 1e-10
    other = rows + draw(m, 9 * n, seed=seed + 1) / 10
    gap = other @ other.T - torch.eye(m, dtype=torch.float64)
    assert float(gap.abs().max()) > 1e-6
    close(penalty({"a.bank": other.reshape(m, n, 3, 3)}), (gap**2).sum() / m**2)  # a mean over entries, not a sum


def test_the_penalty_adds_up_over_banks() -> None:
    tensors = {
        "a.bank": draw(2, 1, 3, 3),
        "b.bank": draw(3, 2, 3, 3, seed=1),
        "b.coefficients.weight": draw(4, 6, 1, 1),
    }
    alone = [orthogonality([k])(tensors) for k in ("a.bank", "b.bank")]
    close(orthogonality(["a.bank", "b.bank"])(tensors), alone[0] + alone[1])
    assert float(orthogonality([])(tensors)) == 0
    B = tensors["a.bank"].flatten(1)
    slope = grad(orthogonality(["a.bank"]))(tensors)
    close(slope["a.bank"].flatten(1), 4 / 4 * (B @ B.T - torch.eye(2, dtype=torch.float64)) @ B)
    assert not slope["b.bank"].any()


# --- refusals --------------------------------------------------------------------------------------------------------


def foreign() -> nn.Module:
    module = small(NETS[0])
    module.get_submodule("stages.1").add_module("1", nn.Conv2d(16, 16, 3, padding=1))
    return module


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (lambda: composed(small("mlp"), 0.5), "the model is not built in stages"),
        (lambda: composed(foreign(), 0.5), "a Conv2d cannot be composed of a basis: build the stages of"),
        (lambda: composed(small(NETS[1]), 0.0), "fraction=0.0 must be above 0"),
        (lambda: composed(small(NETS[1]), float("nan")), "fraction=nan must be above 0"),
        (lambda: composed(small(NETS[1]), 0.5, n_basis=0.0), "n_basis=0.0 must be above 0"),
        (lambda: composed(small(NETS[1]), 0.5, basis_fraction=-1.0), "basis_fraction=-1.0 must be above 0"),
        (
            lambda: composed(models.build("resnet8-gn", classes=3, input_shape=(1, 8, 8)), 0.25),
            "groups=8 does not divide a layer's 4 channels: choose groups=4",
        ),
    ],
)
def test_wrong_requests_are_one_sentence(request_: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        request_()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
