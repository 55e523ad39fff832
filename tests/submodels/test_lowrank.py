"""Low-rank views: the published sizes, and the identities behind them in float64."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coterie import algorithms, models
from coterie import submodels as views
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, entries, stack
from coterie.engines import Serial, Vectorized
from coterie.submodels.factors import matrices, product, spectral, squared_svd, unrolled
from toys import experiment, ragged
from toys import models as played


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def meta(name: str, classes: int, shape: tuple[int, ...]) -> nn.Module:
    with torch.device("meta"):
        return models.build(name, classes=classes, input_shape=shape)


def conv_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1),
        nn.Flatten(),
        nn.Linear(32, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    ).double()


MODULES: dict[str, tuple[Any, Any]] = {
    "conv": (conv_net, lambda: draw(4, 2, 4, 4)),
    "resnet8-bn": (
        lambda: models.build("resnet8-bn", classes=3, input_shape=(2, 8, 8)).double(),
        lambda: draw(4, 2, 8, 8),
    ),
    "transformer": (
        lambda: models.build(
            "transformer-mlm", classes=11, input_shape=(5,), dim=8, heads=2, hidden=12, layers=1
        ).double(),
        lambda: torch.arange(15).view(3, 5) % 12,
    ),
}


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "ratio", "parameters", "millions"),
    [
        (1, 0.03, 421_962, 23.53),
        (3, 0.15, 1_430_538, 139.53),
        (5, 0.4, 3_431_946, 282.66),
        (9, 0.01, 926_922, 296.42),
        (9, 0.15, 1_957_962, 324.34),
        (9, 0.6, 5_275_722, 415.18),
        (9, 1.4, 11_173_962, 576.00),
        (17, 0.5, 11_173_962, 558.50),
        (99, 0.5, 11_173_962, 558.50),
    ],
)
def test_table_1_of_fedlmt(keep: int, ratio: float, parameters: int, millions: float) -> None:
    low = views.factorize(meta("resnet18-bn", 10, (3, 32, 32)), ratio, keep)
    assert entries(low.parameters()) == parameters
    price = models.cost(low, torch.zeros(1, 3, 32, 32, device="meta"))
    assert price.flops / 1e6 == pytest.approx(millions, abs=0.005)
    assert entries(views.recover(low).parameters()) == 11_173_962


@pytest.mark.parametrize(
    ("keep", "ratio", "parameters"), [(1, 0.03, 825_546), (3, 0.15, 3_416_202), (5, 0.4, 8_693_130)]
)
def test_the_rank_of_definition_3_1(keep: int, ratio: float, parameters: int) -> None:
    """r = round(ratio min(3 c_out, 3 c_in)) a 3 x 3 kernel, which then has 3 r (c_in + c_out) entries."""
    full = meta("resnet18-bn", 10, (3, 32, 32))
    low = views.factorize(full, ratio, keep, rank_mode="definition")
    assert entries(low.parameters()) == parameters
    kernels = [v.shape for k, v in full.named_parameters() if v.dim() == 4 and v.shape[-1] == 3][keep:]
    by_hand = [3 * round(ratio * 3 * min(o, i)) * (i + o) - 9 * i * o for o, i, _, _ in kernels]
    assert entries(full.parameters()) + sum(by_hand) == parameters


def test_definition_3_1_is_about_kernels_only_and_exact_at_1() -> None:
    net = conv_net()
    matrices = [views.factorize(net, 0.5, "0, 2", rank_mode=mode) for mode in ("channels", "definition")]
    assert [v.shape for v in matrices[0].parameters()] == [v.shape for v in matrices[1].parameters()]
    whole = views.recover(views.factorize(net, 1.0, "none", rank_mode="definition"))
    for k, v in net.named_parameters():
        torch.testing.assert_close(whole.get_parameter(k), v, rtol=1e-5, atol=1e-6)


def test_a_hundred_classes() -> None:
    assert entries(views.factorize(meta("resnet18-gn", 100, (3, 32, 32)), 0.15, 3).parameters()) == 1_476_708


@pytest.mark.parametrize(("keep", "ranks"), [(1, {2, 4, 8, 15}), (3, {2, 4, 8, 15}), (13, {15})])
def test_ranks_follow_the_output_channels(keep: int, ranks: set[int]) -> None:
    low = views.factorize(meta("resnet18-bn", 10, (3, 32, 32)), 0.03, keep)
    assert {low.get_parameter(p.U).shape[1] for p in views.factor_pairs(low)} == ranks
    assert len(views.factor_pairs(low)) == 17 - keep


@pytest.mark.parametrize("ratio", [0.01, 0.15, 0.6, 1.4])
def test_the_common_front_of_pfedlmt(ratio: float) -> None:
    low = views.factorize(meta("resnet18-bn", 10, (3, 32, 32)), ratio, 9)
    assert entries(v for k, v in low.named_parameters() if k in views.front_names(low)) == 675_392


def test_the_front_of_a_whole_model_is_all_but_the_head() -> None:
    module = meta("resnet18-bn", 10, (3, 32, 32))
    front = views.front_names(views.factorize(module, 0.5, 17))
    assert {k for k, _ in module.named_parameters()} - front == {"linear.weight", "linear.bias"}


def test_the_transformer_at_rank_30() -> None:
    low = views.factorize(meta("transformer-mlm", 33_279, (64,)), 30 / 128, keep_layers="*.attention.*")
    assert entries(low.parameters()) == 2_646_817
    price = models.cost(low, torch.zeros(1, 64, dtype=torch.int64, device="meta"))
    assert price.flops / 1e6 == pytest.approx(106, abs=0.5)
    assert {low.get_parameter(p.U).shape[1] for p in views.factor_pairs(low)} == {30, 15}


# --- what is factorized ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "layers"),
    [
        (1, ["2", "7"]),
        (2, ["7"]),
        (3, []),
        ("none", ["0", "2", "7", "9"]),
        ("stem, head", ["2", "7"]),
        (["head"], ["0", "2", "7"]),
        (["7", "[02]"], ["9"]),
    ],
)
def test_which_layers_stay_whole(keep: Any, layers: list[str]) -> None:
    low = views.factorize(conv_net(), 0.5, keep)
    assert [p.weight for p in views.factor_pairs(low)] == [f"{name}.weight" for name in layers]


def test_layers_that_only_look_alike_are_left_alone() -> None:
    module = nn.ModuleDict(
        {
            "stem": nn.Linear(4, 4),
            "up": nn.ConvTranspose2d(4, 4, 3),
            "attend": nn.MultiheadAttention(4, 2),
            "point": nn.Conv2d(4, 4, 1),
            "head": nn.Linear(4, 2),
        }
    )
    assert [p.weight for p in views.factor_pairs(views.factorize(module, 0.5, "none"))] == [
        "stem.weight",
        "head.weight",
    ]


def tied() -> nn.Module:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    ("module", "request_", "sentence"),
    [
        (conv_net, {"rank_ratio": 0.0}, "rank_ratio=0.0 must be above 0"),
        (conv_net, {"rank_ratio": float("nan")}, "must be a finite number"),
        (conv_net, {"rank_ratio": 1.4, "rank_mode": "definition"}, "at most 1, or rank_mode=channels"),
        (conv_net, {"rank_mode": "definitoin"}, "did you mean definition"),
        (conv_net, {"keep_layers": 0}, "keep_layers=0 must be at least 1, or 'none'"),
        (conv_net, {"keep_layers": "conv*"}, "'conv*' in keep_layers matches no layer: choose among 0, 2, 7, 9"),
        (conv_net, {"init": "spectrall"}, "did you mean spectral?"),
        (
            lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2)),
            {},
            "layer '1' cannot be factorized because of its 2 groups: name it in keep_layers",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding_mode="circular")),
            {},
            "its padding mode 'circular'",
        ),
        (lambda: nn.Embedding(4, 4, max_norm=1.0), {"keep_layers": "none"}, "its option max_norm"),
        (tied, {"keep_layers": "1"}, "because of a weight that is shared (0.weight, 2.weight)"),
    ],
)
def test_wrong_requests_are_one_sentence(module: Any, request_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        views.factorize(module(), **{"rank_ratio": 0.5, **request_})
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_kept_may_be_tied_or_grouped() -> None:
    low = views.factorize(tied(), 0.5, "0, 2")
    assert low[0].weight is low[2].weight  # type: ignore[index]


# --- factors and products --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.booleans(),
    st.integers(0, 999),
)
def test_a_factorized_convolution_is_the_convolution(
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    conv = nn.Conv2d(*channels, kernel, stride, padding, dilation, bias=bias).double()
    full = min(unrolled(conv.weight).shape)
    low = views.LowRankConv2d(conv, *spectral(conv.weight, full))
    x = draw(2, channels[0], 8, 9, seed=seed)
    close(low(x), conv(x))
    again = low.ordinary()
    close(again(x), conv(x))
    assert repr(again) == repr(conv)
    close(low.weight, conv.weight)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding: str) -> None:
    conv = nn.Conv2d(2, 3, (4, 3), padding=padding, dilation=2).double()
    low = views.LowRankConv2d(conv, *spectral(conv.weight, 8))
    x = draw(2, 2, 9, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an even kernel pads unequally, at a cost
        close(low(x), conv(x))


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_recovered_modules_give_the_same_outputs(kind: str, dtype: torch.dtype, ratio: float) -> None:
    build, sample = MODULES[kind]
    low = views.factorize(build().to(dtype), ratio, "none").eval()
    whole = views.recover(low)
    x = sample() if kind == "transformer" else sample().to(dtype)
    close(whole(x), low(x), 1e-5 if dtype is torch.float32 else 1e-12)
    assert {k: v.shape for k, v in whole.named_parameters()} == {k: v.shape for k, v in build().named_parameters()}
    assert not list(views.factor_pairs(whole))
    assert not whole.training


@pytest.mark.parametrize("kind", MODULES)
def test_full_rank_changes_nothing(kind: str) -> None:
    build, sample = MODULES[kind]
    module = build().eval()
    low = views.factorize(module, 4.0, "none")
    close(low(sample()), module(sample()), 1e-11)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([None, (1, 1), (2, 3), (3, 3)]), st.integers(1, 24))
def test_spectral_factors_are_the_nearest_of_equal_size(m: int, n: int, kernel: Any, rank: int) -> None:
    weight = draw(m, n, *(kernel or ()), seed=m + 7 * n)
    U, V = spectral(weight, rank)
    sigma = torch.linalg.svdvals(unrolled(weight))
    error = (weight - product(U, V)).square().sum()
    close(error, sigma[rank:].square().sum(), 1e-10)
    S = torch.diag(torch.cat([sigma[:rank], sigma.new_zeros(max(0, rank - len(sigma)))]))
    left, right = matrices(U, V)
    close(left.T @ left, S, 1e-10)
    close(right.T @ right, S, 1e-10)


@pytest.mark.parametrize("shape", [(40, 40), (60, 24), (24, 60)])
@pytest.mark.parametrize("rank", [7, 24])
def test_squares_decompose_as_well(shape: tuple[int, int], rank: int) -> None:
    """As a GPU does it: no less exact than singular values in single precision, also below full rank."""
    W = (draw(shape[0], rank) @ draw(rank, shape[1], seed=1)).float()
    A, S, Bt = squared_svd(W)
    exact = torch.linalg.svdvals(W.double())
    assert A.dtype == S.dtype == Bt.dtype == torch.float32
    close(S.double(), exact, 1e-6 * float(exact[0]))
    for kept in (3, 7, min(shape)):
        error = (W - (A[:, :kept] * S[:kept]) @ Bt[:kept]).double().norm()
        close(error, exact[kept:].square().sum().sqrt(), 1e-6 * float(exact[0]))
    full = min(rank, *shape)
    close(A[:, :full].T @ A[:, :full], torch.eye(full), 1e-5)
    close(Bt[:full] @ Bt[:full].T, torch.eye(full), 1e-5)


def test_the_layout_is_the_papers() -> None:
    U, V = draw(4, 2, 3, 1), draw(2, 5, 1, 3, seed=1)
    left, right = matrices(U, V)
    W = product(U, V)
    for o, i, a, b in [(0, 0, 0, 0), (3, 4, 2, 1), (1, 2, 0, 2)]:
        assert torch.equal(left[o * 3 + a], U[o, :, a, 0])
        assert torch.equal(right[i * 3 + b], V[:, i, 0, b])
        close(W[o, i, a, b], left[o * 3 + a] @ right[i * 3 + b])
    assert entries((U, V)) == 3 * 2 * (5 + 4)


def test_kaiming_factors_depend_on_the_seed_alone() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(64, 64, 3), nn.Embedding(500, 64), nn.Linear(400, 300))
    state = torch.get_rng_state()
    first = views.factorize(net, 0.5, "stem", init="kaiming", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    again, other = (views.factorize(net, 0.5, "stem", init="kaiming", seed=s) for s in (1, 2))
    same = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert not torch.equal(first[1].U, other[1].U)  # type: ignore[index]
    without, zero = (views.factorize(net, 0.5, "stem", init="kaiming", **seed) for seed in ({}, {"seed": 0}))
    assert torch.equal(without[1].U, zero[1].U)  # type: ignore[index]
    deviations = {k: float(v.std()) for k, v in first.state_dict().items() if k.endswith(("U", "V"))}
    fan_out = {"1.U": 64 * 3, "1.V": 32 * 3, "2.U": 32, "2.V": 64, "3.U": 300, "3.V": 150}
    assert deviations == {k: pytest.approx((2 / fan) ** 0.5, rel=0.05) for k, fan in fan_out.items()}


def test_an_embedding_keeps_its_padding_row() -> None:
    table = nn.Embedding(6, 4, padding_idx=2).double()
    low = views.factorize(table, 1.0, "none")
    assert low(torch.tensor([2])).abs().max() < 1e-12
    low(torch.tensor([2, 3])).sum().backward()
    assert not low.get_parameter("U").grad[2].any()  # type: ignore[index]
    assert views.recover(low).padding_idx == 2


# --- as modules ------------------------------------------------------------------------------------------------------


def test_the_given_module_stays_as_it_is() -> None:
    module = conv_net()
    before = copy.deepcopy(module.state_dict())
    low = views.factorize(module, 0.5)
    with torch.no_grad():
        for value in low.parameters():
            value.zero_()
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_states_copies_modes_and_frozen_layers() -> None:
    module = conv_net().eval()
    module[7].requires_grad_(False)  # type: ignore[index]
    low = views.factorize(module, 0.5)
    assert not any(layer.training for layer in low.modules())
    assert {k for k, v in low.named_parameters() if not v.requires_grad} == {"7.U", "7.V", "7.bias"}
    with torch.no_grad():
        whole = views.recover(low)
    assert {k for k, v in whole.named_parameters() if not v.requires_grad} == {"7.weight", "7.bias"}
    other = views.factorize(conv_net(), 0.5, init="kaiming")
    other.load_state_dict(low.state_dict())
    x = draw(2, 2, 4, 4)
    assert torch.equal(other(x), low(x))
    assert torch.equal(copy.deepcopy(low)(x), low(x))


def test_a_view_of_a_named_model_does_not_claim_to_be_it() -> None:
    module = models.build("mlp", classes=3, input_shape=(4,))
    assert hasattr(module, "origin")
    assert not hasattr(views.factorize(module, 0.5), "origin")


def test_code_that_reads_the_weight_still_works() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double().eval()
    low = views.factorize(layer, 0.5, "none")
    x = draw(2, 3, 8)
    with torch.no_grad():  # a fused kernel reads linear1.weight here
        close(low(x), views.recover(low)(x))


@pytest.mark.parametrize("kind", MODULES)
def test_low_rank_modules_can_be_lifted_over_clients(kind: str) -> None:
    build, sample = MODULES[kind]
    low, x = views.factorize(build(), 0.5, "none").eval(), sample()
    clients = [{k: (v + 0.01 * i).detach() for k, v in low.named_parameters()} for i in range(3)]

    def loss(tensors: Tensors) -> Tensor:
        outputs: Tensor = functional_call(low, tensors, (x,))
        return outputs.square().mean()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = vmap(grad(loss))(stack(clients))
    for i, mine in enumerate(clients):
        for k, g in grad(loss)(mine).items():
            close(together[k][i], g, 1e-9)


def test_factors_of_each_client_are_lifted_in_half_precision() -> None:
    """What comes out of the first convolution, the same for all, is rounded before the second one is lifted."""
    low, x = views.factorize(nn.Conv2d(3, 8, 3), 0.5, "none"), torch.randn(2, 3, 6, 6)

    def answer(U: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            outputs: Tensor = functional_call(low, {"U": U, "bias": bias}, (x,))
            return outputs

    clients = [(low.U.detach() + i, low.bias.detach() + i) for i in range(2)]
    together = vmap(answer)(*(torch.stack(v) for v in zip(*clients, strict=True)))
    for i, mine in enumerate(clients):
        close(together[i], answer(*mine), 0.02)


def test_engines_agree_on_low_rank_modules() -> None:
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    low = views.factorize(net.double(), 0.5)
    alg = algorithms.build("fedavg", lr=0.05, batch_size=4, epochs=2, participation=1.0)
    slow, fast = (played(experiment(low, ragged("groupnorm"), alg, e), 2) for e in (Serial(), Vectorized(3)))
    assert "1.U" in slow
    for name in slow:
        close(fast[name], slow[name], 1e-10)


# --- named tensors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODULES)
def test_tensors_go_the_way_of_modules(kind: str) -> None:
    build, _ = MODULES[kind]
    module = build()
    full = {k: v.detach() for k, v in module.named_parameters()}
    low = views.factorize(module, 0.5)
    factors = views.factorize_tensors(low, full)
    assert list(factors) == [k for k, _ in low.named_parameters()]
    assert all(torch.equal(v, factors[k]) for k, v in low.named_parameters())
    back = views.recover_tensors(low, factors)
    assert list(back) == list(full)
    assert all(torch.equal(v, back[k]) for k, v in views.recover(low).named_parameters())
    assert all(torch.equal(back[k], full[k]) for k in full.keys() & factors.keys())


def test_the_nearest_model_of_a_rank_is_its_own_nearest() -> None:
    low = views.factorize(conv_net(), 0.3)
    full = {k: v.detach() for k, v in conv_net().named_parameters()}
    once = views.recover_tensors(low, views.factorize_tensors(low, full))
    twice = views.recover_tensors(low, views.factorize_tensors(low, once))
    assert not torch.allclose(once["2.weight"], full["2.weight"])
    for k in once:
        close(twice[k], once[k])


# --- regularizers ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(0, 999))
def test_the_three_decays(m: int, n: int, r: int, seed: int) -> None:
    U, V = draw(m, r, seed=seed).requires_grad_(), draw(n, r, seed=seed + 1).requires_grad_()
    FD, L2, KD = views.frobenius(U, V), views.l2(U, V), views.kronecker(U, V)
    close(FD, (U @ V.T).square().sum(), 1e-10)
    assert float(FD.detach()) <= float(KD.detach()) * (1 + 1e-12)
    assert float(KD.detach()) <= float((L2 / 2).square().detach()) * (1 + 1e-12)
    slopes = {FD: 2 * U @ V.T @ V, L2: 2 * U, KD: 2 * U * V.square().sum()}
    for value, slope in slopes.items():
        close(torch.autograd.grad(value, U)[0], slope, 1e-10)


def test_decays_of_spectral_factors_are_sums_of_singular_values() -> None:
    weight = draw(4, 3, 3, 3)
    pair = views.Pair("U", "V", "weight")
    x = dict(zip("UV", spectral(weight, 5), strict=True))
    sigma = torch.linalg.svdvals(unrolled(weight))[:5]
    expected = {"frobenius": sigma.square().sum(), "l2": 2 * sigma.sum(), "kronecker": sigma.sum().square()}
    for name, value in expected.items():
        close(views.penalty([pair], {name: 1.0})(x), value, 1e-10)


def test_the_penalty_is_the_weighted_sum_over_layers() -> None:
    low = views.factorize(conv_net(), 0.5)
    pairs, x = views.factor_pairs(low), low.state_dict()
    terms = {"frobenius": 1e-3, "l2": 1e-2, "kronecker": 1e-4}
    by_hand = [
        1e-3 * product(x[p.U], x[p.V]).square().sum()
        + 1e-2 * (x[p.U].square().sum() + x[p.V].square().sum())
        + 1e-4 * x[p.U].square().sum() * x[p.V].square().sum()
        for p in pairs
    ]
    close(views.penalty(pairs, terms)(x), torch.stack(by_hand).sum())


@pytest.mark.parametrize("terms", [{}, {"frobenius": 0.0, "l2": 0.0}])
def test_no_coefficients_leave_the_loss_as_it_is(terms: dict[str, float]) -> None:
    low = views.factorize(conv_net(), 0.5)
    loss = low(draw(2, 2, 4, 4)).square().mean()
    extra = views.penalty(views.factor_pairs(low), terms)(low.state_dict())
    assert torch.equal(loss + extra, loss)


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [({"frobenus": 1.0}, "did you mean frobenius?"), ({"l2": -1.0}, "the coefficient -1.0 of l2 must be at least 0")],
)
def test_wrong_regularizers_are_one_sentence(terms: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        views.penalty([], terms)


# --- training factors is not training the product --------------------------------------------------------------------


def step() -> tuple[views.LowRankConv2d, Tensor]:
    """A convolution in low-rank form with its gradients, and the gradient G of the whole one as a matrix."""
    torch.manual_seed(5)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False).double()
    low = views.LowRankConv2d(conv, *spectral(conv.weight, 3))
    whole = low.ordinary()
    x, target = draw(5, 3, 6, 6), draw(5, 4, 3, 3, seed=1)
    for layer in (low, whole):
        (layer(x) - target).square().mean().backward()
    return low, unrolled(whole.get_parameter("weight").grad)  # type: ignore[arg-type]


def test_the_chain_rule_of_the_factors() -> None:
    low, G = step()
    U, V = matrices(low.U.detach(), low.V.detach())
    g_U, g_V = matrices(low.U.grad, low.V.grad)  # type: ignore[arg-type]
    close(g_U, G @ V)
    close(g_V, G.T @ U)


def test_one_step_on_the_factors() -> None:
    low, G = step()
    eta = 0.1
    U, V = matrices(low.U.detach().clone(), low.V.detach().clone())
    torch.optim.SGD(low.parameters(), eta).step()
    after = unrolled(low.weight.detach())
    expected = U @ V.T - eta * (G @ V @ V.T + U @ U.T @ G) + eta**2 * G @ V @ U.T @ G
    close(after, expected, 1e-10)
    assert not torch.allclose(after, U @ V.T - eta * G, atol=1e-4)


def test_averaging_factors_is_not_averaging_products() -> None:
    U, V, A = draw(5, 2), draw(4, 2, seed=1), torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    U2, V2 = U @ A, V @ torch.linalg.inv(A).T
    close(U2 @ V2.T, U @ V.T)
    assert not torch.allclose(((U + U2) / 2) @ ((V + V2) / 2).T, U @ V.T, atol=0.1)


def test_lemma_d5_of_the_paper_is_false_below_full_rank() -> None:
    """It claims ||G V||^2 + ||G^T U||^2 >= (smin(U)^2 + smin(V)^2) ||G||^2; the bound from above is true."""
    U = V = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    G = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    value = (G @ V).square().sum() + (G.T @ U).square().sum()
    claimed = (torch.linalg.svdvals(U)[-1] ** 2 + torch.linalg.svdvals(V)[-1] ** 2) * G.square().sum()
    assert (float(value), float(claimed)) == (0, 2)
    U, V, G = draw(5, 2), draw(4, 2, seed=1), draw(5, 4, seed=2)
    value = (G @ V).square().sum() + (G.T @ U).square().sum()
    assert value <= (torch.linalg.svdvals(U)[0] ** 2 + torch.linalg.svdvals(V)[0] ** 2) * G.square().sum()
