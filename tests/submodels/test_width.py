"""Cuts by width: the published sizes, and what is cut out comes back where it was."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from coterie import models
from coterie.core.errors import UserError
from coterie.core.tensors import Tensors, add, entries, floating
from coterie.exchange.mixing import ratio
from coterie.submodels import Cut, Indices, factorize, layered, narrow, permuted, prefix, random, window
from toys import communication, computation

SHAPES: dict[str, tuple[int, ...]] = {
    "mlp": (1, 8, 8),
    "small-cnn": (1, 8, 8),
    "cnn": (3, 16, 16),
    "resnet8-bn": (3, 8, 8),
    "resnet8-gn:groups=2": (3, 8, 8),
    "resnet18-bn:width=8": (3, 8, 8),
    "vgg11-gn:groups=2,rate=0.125": (1, 32, 32),
    "transformer-mlm:dim=8,heads=2,hidden=12,layers=2,dropout=0": (6,),
}
CHOICES: dict[str, Callable[[int, int], Tensor]] = {
    "prefix": prefix,
    "window": partial(window, t=5),
    "random": partial(random, generator=torch.Generator().manual_seed(1)),
}


def build(name: str) -> nn.Module:
    return models.build(name, classes=10, input_shape=SHAPES[name]).double()


def named(module: nn.Module) -> Tensors:
    return {k: v.detach() for k, v in (*module.named_parameters(), *module.named_buffers())}


def sample(name: str) -> Tensor:
    if name.startswith("transformer"):
        return torch.arange(18).view(3, 6) * 7 % 11  # the mask is among them
    return torch.randn(3, *SHAPES[name], generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "parameters", "millions"),
    [(0.25, 701_466, 35.82), (0.5, 2_797_610, 140.84), (0.75, 6_288_442, 315.07), (1.0, 11_173_962, 558.50)],
)
def test_table_1_of_fedlmt(rate: float, parameters: int, millions: float) -> None:
    with torch.device("meta"):
        full = models.build("resnet18-bn", classes=10, input_shape=(3, 32, 32))
        small = narrow(full, rate)
    cut = Cut.between(full, small)
    part = cut.extract(named(full), cut.indices(prefix))
    assert entries(part.values()) == parameters
    assert {k: v.shape for k, v in part.items()} == {k: v.shape for k, v in small.named_parameters()}
    assert models.cost(small, torch.zeros(1, 3, 32, 32, device="meta")).flops / 1e6 == pytest.approx(
        millions, abs=0.005
    )
    assert cut.widths == ({C: int(rate * C) for C in (64, 128, 256, 512)} if rate < 1 else {})


@pytest.mark.parametrize(
    ("rate", "parameters", "millions"),
    [(0.5, 4_748_735, 166.62), (0.75, 7_441_311, 271.36), (1.0, 10_357_119, 390.39)],
)
def test_the_transformer_of_fedlmt(rate: float, parameters: int, millions: float) -> None:
    """Eight heads of 16, 12 or 8 channels; by hand: V = 33,279 tokens and a mask, 64 positions, three layers."""
    with torch.device("meta"):
        full = models.build("transformer-mlm", classes=33_279, input_shape=(64,))
        small = narrow(full, rate)
    d, h, V = int(128 * rate), int(2048 * rate), 33_279
    layer = (d + 1) * 3 * d + (d + 1) * d + (d + 1) * h + (h + 1) * d + 4 * d
    assert parameters == (V + 1 + 64) * d + 2 * d + 3 * layer + (d + 1) * d + 2 * d + (d + 1) * V
    assert entries(small.parameters()) == parameters
    flops = models.cost(small, torch.zeros(1, 64, dtype=torch.int64, device="meta")).flops
    assert flops / 1e6 == pytest.approx(millions, abs=0.005)


def test_the_text_row_of_fedlmts_table_2() -> None:
    """Printed 7.50 and 0.275 for 4, 3 and 2 in equal shares, 5 of them in 200 rounds; who took part was drawn."""
    sizes, flops = [10_357_119, 7_441_311, 4_748_735], [390_389_760, 271_362_048, 166_621_184]
    assert 100 * (communication(sizes, 5, 200) / 7.50 - 1) == pytest.approx(0.21, abs=0.01)
    assert 100 * (computation(flops, 5, 200) / 0.275 - 1) == pytest.approx(0.41, abs=0.01)


def test_every_head_is_cut_alike() -> None:
    """Against the projections as arrays of [q k v, head, channel, input]."""
    name = "transformer-mlm:dim=8,heads=2,hidden=12,layers=2,dropout=0"
    full = build(name)
    cut = Cut.between(full, narrow(full, 0.5))
    indices = cut.indices(partial(window, t=3))
    part, whole, at = cut.extract(named(full), indices), named(full), "layers.1.attention."
    heads, dims = indices[4], indices[8]
    assert (heads.tolist(), dims.tolist()) == ([3, 0], [3, 4, 5, 6])
    wanted = whole[f"{at}qkv.weight"].view(3, 2, 4, 8)[:, :, heads][..., dims]
    assert torch.equal(part[f"{at}qkv.weight"].view(3, 2, 2, 4), wanted)
    assert torch.equal(part[f"{at}qkv.bias"].view(3, 2, 2), whole[f"{at}qkv.bias"].view(3, 2, 4)[:, :, heads])
    wanted = whole[f"{at}out.weight"].view(8, 2, 4)[dims][:, :, heads]
    assert torch.equal(part[f"{at}out.weight"].view(4, 2, 2), wanted)


def test_attention_of_torch_is_cut_by_heads_too() -> None:
    """Channels of heads may be renamed, all heads alike; an even cut takes the same ones of q, k and v."""
    torch.manual_seed(0)
    full, small = nn.MultiheadAttention(8, 2).double(), nn.MultiheadAttention(4, 2).double()
    cut, x = Cut.between(full, small), torch.randn(5, 3, 8, dtype=torch.float64)
    assert cut.widths == {4: 2, 8: 4}
    renamed = cut.extract(named(full), {4: torch.tensor([2, 0, 3, 1]), 8: torch.arange(8)})
    found, wanted = (functional_call(full, t, (x, x, x))[0] for t in (renamed, named(full)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert not torch.equal(renamed["in_proj_weight"], full.in_proj_weight)
    part = cut.extract(named(full), cut.indices(prefix))
    assert torch.equal(part["in_proj_bias"].view(3, 2, 2), full.in_proj_bias.view(3, 2, 4)[:, :, :2])


def test_the_input_and_the_classes_are_never_cut() -> None:
    full = models.build("mlp:width=10", classes=10, input_shape=(10,))  # all dimensions look alike
    cut = Cut.between(full, narrow(full, 0.5))
    shapes = {k: tuple(v.shape) for k, v in cut.extract(named(full), cut.indices(prefix)).items()}
    assert (shapes["1.weight"], shapes["3.weight"], shapes["5.weight"]) == ((5, 10), (5, 5), (10, 5))
    assert shapes["5.bias"] == (10,)


# --- choices of channels ---------------------------------------------------------------------------------------------


def test_the_rolling_window() -> None:
    assert window(4, 2, t=3).tolist() == [3, 0]
    assert window(4, 2, t=-3).tolist() == [1, 2]  # the direction of the released code
    assert torch.equal(window(16, 5, t=0), prefix(16, 5))


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_a_rolling_window_meets_every_channel_equally_often(C: int, data: st.DataObject) -> None:
    k, start = data.draw(st.integers(1, C)), data.draw(st.integers(-100, 100))
    met = Counter(int(c) for t in range(start, start + C) for c in window(C, k, t))
    assert met == Counter(dict.fromkeys(range(C), k))


def test_random_subsets_are_uniform() -> None:
    g = torch.Generator().manual_seed(0)
    C, k, rounds = 10, 4, 4_000
    met = torch.zeros(C)
    for _ in range(rounds):
        chosen = random(C, k, g)
        assert (chosen[1:] > chosen[:-1]).all()
        met[chosen] += 1
    expected = rounds * k / C
    # Counts of a fixed-size subset vary by (1 - k/C) C / (C - 1) less than independent ones.
    chi_square = float(((met - expected) ** 2 / expected).sum()) * (C - 1) / (C - k)
    assert chi_square < 27.9  # 9 degrees of freedom, one in a thousand
    assert not torch.equal(random(50, 20, g), random(50, 20, g))


# --- take and put ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("rate", [0.25, 0.6, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_taken_comes_back_where_it_was(name: str, rate: float, choice: str) -> None:
    if "gn" in name and rate == 0.6:
        rate = 0.5  # widths that the groups divide
    full = build(name)
    small = narrow(full, rate)
    cut = Cut.between(full, small)
    indices, x = cut.indices(CHOICES[choice]), named(full)
    part = cut.extract(x, indices)
    assert torch.isfinite(functional_call(small, part, (sample(name),))).all()
    values, mass = cut.embed(part, indices)
    for k, v in x.items():
        assert mass[k].sum() == part[k].numel()
        assert torch.equal(values[k], v * mass[k])
    again = x | ratio(floating(values), mass, x)
    assert all(torch.equal(again[k], v) for k, v in x.items())
    elsewhere = ratio(values, mass, {k: v + 1 for k, v in x.items()})
    assert all(torch.equal(elsewhere[k], torch.where(mass[k] > 0, v, v + 1)) for k, v in x.items())


@pytest.mark.parametrize("name", [n for n in SHAPES if "gn" not in n])
def test_rolling_all_channels_changes_no_output(name: str) -> None:
    """The groups are right: hidden channels may be renamed, each width by its own permutation."""
    full = build(name)
    cut = Cut.between(full, narrow(full, 0.5))
    rolled = cut.extract(named(full), {C: window(C, C, t=3) for C in cut.widths})
    x = sample(name)
    torch.testing.assert_close(functional_call(full, rolled, (x,)), full(x), rtol=1e-10, atol=1e-10)
    shuffled = cut.extract(named(full), {C: torch.randperm(C) for C in cut.widths})
    torch.testing.assert_close(functional_call(full, shuffled, (x,)), full(x), rtol=1e-10, atol=1e-10)


def test_a_cut_is_the_full_model_without_the_other_channels() -> None:
    """Silencing what leaves the other channels gives the same outputs; here without normalization between."""
    for name in ("mlp", "small-cnn"):
        full = build(name)
        small = narrow(full, 0.5)
        cut = Cut.between(full, small)
        indices, x = cut.indices(partial(window, t=4)), named(full)
        values, _ = cut.embed(cut.extract(x, indices), indices)
        torch.testing.assert_close(
            functional_call(small, cut.extract(x, indices), (sample(name),)),
            functional_call(full, values, (sample(name),)),
            rtol=1e-10,
            atol=1e-10,
        )


def test_running_statistics_are_cut_too_and_counters_are_kept() -> None:
    full, small = (nn.Sequential(nn.Conv2d(1, C, 3), nn.BatchNorm2d(C)) for C in (4, 2))
    cut = Cut.between(full, small)
    x = {**named(full), "1.running_mean": torch.arange(4.0), "1.num_batches_tracked": torch.tensor(7)}
    part = cut.extract(x, {4: torch.tensor([3, 1])})
    assert part["1.running_mean"].tolist() == [3, 1]
    values, _ = cut.embed(part, {4: torch.tensor([3, 1])})
    assert values["1.running_mean"].tolist() == [0, 1, 0, 3]
    assert int(values["1.num_batches_tracked"]) == 7


def test_flattened_images_are_cut_by_whole_channels() -> None:
    full = models.build("small-cnn", classes=10, input_shape=(1, 8, 8))
    cut = Cut.between(full, narrow(full, 0.5))
    assert cut.widths == {16: 8, 32: 16, 64: 32}
    weight = torch.arange(64 * 128.0).view(64, 128)
    indices = {16: prefix(16, 8), 32: torch.tensor([31, 2]), 64: torch.tensor([5])}
    assert cut.extract({"7.weight": weight}, indices)["7.weight"][0].tolist() == [
        5 * 128 + 4 * channel + place for channel in (31, 2) for place in range(4)
    ]


@pytest.mark.parametrize(
    ("holders", "expected"), [(("A", "B"), [3.0, 4.0, 3.0, 4.0]), (("B",), [5.0, 6.0, 30.0, 40.0])]
)
def test_the_mean_over_those_who_hold_an_entry(holders: tuple[str, ...], expected: list[float]) -> None:
    full, small = (nn.Sequential(nn.Linear(1, C), nn.Linear(C, 1)) for C in (4, 2))
    half, whole = Cut.between(full, small), Cut.between(full, full)
    sent = {
        "A": whole.embed({"0.bias": torch.tensor([1.0, 2.0, 3.0, 4.0])}, whole.indices(prefix)),
        "B": half.embed({"0.bias": torch.tensor([5.0, 6.0])}, half.indices(prefix)),
    }
    total, mass = {"0.bias": torch.zeros(4)}, {"0.bias": torch.zeros(4)}
    for who in holders:
        total, mass = add(total, sent[who][0]), add(mass, sent[who][1])
    assert ratio(total, mass, {"0.bias": torch.tensor([10.0, 20.0, 30.0, 40.0])})["0.bias"].tolist() == expected


def test_many_clients_with_channels_of_their_own_at_once() -> None:
    full = build("small-cnn")
    cut, g = Cut.between(full, narrow(full, 0.5)), torch.Generator().manual_seed(2)
    x = named(full)
    each = [cut.indices(partial(random, generator=g)) for _ in range(3)]

    def there_and_back(indices: Indices) -> tuple[Tensors, Tensors]:
        return cut.embed(cut.extract(x, indices), indices)

    together = vmap(there_and_back)({C: torch.stack([mine[C] for mine in each]) for C in cut.widths})
    for i, mine in enumerate(each):
        for found, expected in zip(together, there_and_back(mine), strict=True):
            assert all(torch.equal(found[k][i], v) for k, v in expected.items())


def test_a_narrower_model_has_the_type_and_mode_of_the_full_one() -> None:
    full = build("mlp").eval()
    small = narrow(narrow(full, 0.5), 0.5)
    assert small[3].weight.shape == (16, 16)  # type: ignore[index]
    assert small[3].weight.dtype is torch.float64  # type: ignore[index]
    assert not small.training


# --- channels of their own for every layer ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_layered_cuts_come_back_where_they_were(name: str, rate: float) -> None:
    full = build(name)
    small = narrow(full, rate)
    cut = layered(full, small)
    indices, x = cut.indices(partial(permuted, generator=torch.Generator().manual_seed(3))), named(full)
    part = cut.extract(x, indices)
    assert {k: v.shape for k, v in part.items()} == {k: v.shape for k, v in named(small).items()}
    values, mass = cut.embed(part, indices)
    for k, v in x.items():
        assert mass[k].sum() == part[k].numel()
        assert torch.equal(values[k], v * mass[k])


def test_a_chain_stays_one_network_and_a_residual_one_does_not() -> None:
    """All channels, in another order for every layer: renamed in a chain; what blocks add are other channels."""
    g = torch.Generator().manual_seed(4)
    for name in SHAPES:
        full = build(name)
        cut, x = layered(full, full), sample(name)
        mixed = cut.extract(named(full), cut.indices(partial(permuted, generator=g)))
        same = torch.allclose(functional_call(full, mixed, (x,)), full(x), rtol=1e-9, atol=1e-9)
        assert same == (name in ("mlp", "small-cnn", "cnn")), name  # group norms of VGG see other groups


def test_a_residual_network_by_hand() -> None:
    """Two stages of a block each, against convolutions with the channels picked here."""
    full = models.build("resnet8-bn:width=4", classes=3, input_shape=(1, 8, 8)).double()
    small = narrow(full, 0.5)
    cut, g = layered(full, small), torch.Generator().manual_seed(5)
    assert cut.widths == {"stem": 2} | {
        f"stages.{s}.0.{conv}": 2 * 2**s for s in range(3) for conv in ("conv1", "conv2")
    }
    drawn = cut.indices(partial(permuted, generator=g))
    w = named(full)

    def conv(h: Tensor, layer: str, out: Tensor, into: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        return F.conv2d(h, w[f"{layer}.weight"][out][:, into], stride=stride, padding=padding)

    def norm(h: Tensor) -> Tensor:  # as they are drawn: weight 1, bias 0
        return F.batch_norm(h, None, None, training=True)

    x = torch.randn(4, 1, 8, 8, generator=g, dtype=torch.float64)
    now = drawn["stem"]
    h = F.relu(norm(conv(x, "stem", now, torch.tensor([0]))))
    for s in range(3):
        block = f"stages.{s}.0"
        first, second, stride = drawn[f"{block}.conv1"], drawn[f"{block}.conv2"], 1 if s == 0 else 2
        y = norm(conv(F.relu(norm(conv(h, f"{block}.conv1", first, now, stride))), f"{block}.conv2", second, first))
        beside = h if s == 0 else norm(conv(h, f"{block}.shortcut.0", second, now, stride, padding=0))
        h, now = F.relu(y + beside), second
    wanted = h.mean((2, 3)) @ w["linear.weight"][:, now].T + w["linear.bias"]
    found = functional_call(small.train(), cut.extract(w, drawn), (x,))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert not torch.equal(drawn["stem"], drawn["stages.0.0.conv2"])  # what the first block adds


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2)), "channels of 1 (MultiheadAttention)"),
        (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), "layers that share a tensor"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)), "not the 6 channels of the layer"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(9, 2)), "has 9 entries, which are not the 6 channels"),
    ],
)
def test_what_has_no_layers_one_after_the_other(module: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        layered(module(), module())
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.01, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(UserError, match="must be a number above 0 and at most 1"):
        narrow(models.build("mlp:rate=0.5", classes=2, input_shape=(4,)), rate)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (lambda: nn.Linear(3, 2), "this module cannot be narrowed: take a model by name"),
        (
            lambda: factorize(models.build("mlp", classes=2, input_shape=(4,)), 0.5),
            "give it a function at_width(rate)",
        ),
        (lambda: models.build("logreg", classes=2, input_shape=(4,)), "model logreg has no option 'rate'"),
        (lambda: models.build("resnet8-gn", classes=2, input_shape=(1, 8, 8)), "groups=8 does not divide"),
    ],
)
def test_what_cannot_be_narrowed(module: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        narrow(module(), 0.25)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def chain(*widths: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


@pytest.mark.parametrize(
    ("full", "small", "sentence"),
    [
        (chain(3, 4, 2), chain(3, 4, 4, 2), "the smaller model has other tensors"),
        (chain(3, 4, 2), chain(3, 6, 2), "0.weight goes from 4 to 6 channels"),
        (chain(3, 4, 4, 2), chain(3, 2, 3, 2), "layers of equal width must be cut alike"),
        (nn.MultiheadAttention(8, 4), nn.MultiheadAttention(4, 2), "another number of heads: keep their number"),
        (nn.Linear(4, 2), nn.Linear(3, 2), "dimension 1 of weight, cut from 4 to 3, belongs to no layer's output"),
        (nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 2), "dimension 2 of weight, cut from 3 to 2, belongs to no layer's"),
        (
            models.build("small-cnn", classes=2, input_shape=(1, 8, 4)),
            models.build("small-cnn:rate=0.5", classes=2, input_shape=(1, 8, 4)),
            "dimension 1 of 7.weight, cut from 64 to 32, may be 64 channels or 32 of 2 entries",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(full: Any, small: Any, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        Cut.between(full, small)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
