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

from coterie import models
from coterie.errors import RequestError
from coterie.tensors import Tensors, add, entries
from coterie.views import Cut, Indices, factorise, merge, narrow, prefix, random, window

SHAPES: dict[str, tuple[int, ...]] = {
    "mlp": (1, 8, 8),
    "small-cnn": (1, 8, 8),
    "cnn": (3, 16, 16),
    "resnet8-bn": (3, 8, 8),
    "resnet8-gn:groups=2": (3, 8, 8),
    "resnet18-bn:width=8": (3, 8, 8),
    "vgg11-gn:groups=2,rate=0.125": (1, 32, 32),
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
    part = cut.take(named(full), cut.indices(prefix))
    assert entries(part.values()) == parameters
    assert {k: v.shape for k, v in part.items()} == {k: v.shape for k, v in small.named_parameters()}
    assert models.cost(small, torch.zeros(1, 3, 32, 32, device="meta")).flops / 1e6 == pytest.approx(
        millions, abs=0.005
    )
    assert cut.widths == ({C: int(rate * C) for C in (64, 128, 256, 512)} if rate < 1 else {})


def test_the_input_and_the_classes_are_never_cut() -> None:
    full = models.build("mlp:width=10", classes=10, input_shape=(10,))  # all dimensions look alike
    cut = Cut.between(full, narrow(full, 0.5))
    shapes = {k: tuple(v.shape) for k, v in cut.take(named(full), cut.indices(prefix)).items()}
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
    part = cut.take(x, indices)
    assert torch.isfinite(functional_call(small, part, (sample(name),))).all()
    values, mass = cut.put(part, indices)
    for k, v in x.items():
        assert mass[k].sum() == part[k].numel()
        assert torch.equal(values[k], v * mass[k])
    again = merge(x, values, mass)
    assert all(torch.equal(again[k], v) for k, v in x.items())
    elsewhere = merge({k: v + 1 for k, v in x.items()}, values, mass)
    assert all(torch.equal(elsewhere[k], torch.where(mass[k] > 0, v, v + 1)) for k, v in x.items())


@pytest.mark.parametrize("name", [n for n in SHAPES if "gn" not in n])
def test_rolling_all_channels_changes_no_output(name: str) -> None:
    """The groups are right: hidden channels may be renamed, each width by its own permutation."""
    full = build(name)
    cut = Cut.between(full, narrow(full, 0.5))
    rolled = cut.take(named(full), {C: window(C, C, t=3) for C in cut.widths})
    x = sample(name)
    torch.testing.assert_close(functional_call(full, rolled, (x,)), full(x), rtol=1e-10, atol=1e-10)
    shuffled = cut.take(named(full), {C: torch.randperm(C) for C in cut.widths})
    torch.testing.assert_close(functional_call(full, shuffled, (x,)), full(x), rtol=1e-10, atol=1e-10)


def test_a_cut_is_the_full_model_without_the_other_channels() -> None:
    """Silencing what leaves the other channels gives the same outputs; here without normalisation between."""
    for name in ("mlp", "small-cnn"):
        full = build(name)
        small = narrow(full, 0.5)
        cut = Cut.between(full, small)
        indices, x = cut.indices(partial(window, t=4)), named(full)
        values, _ = cut.put(cut.take(x, indices), indices)
        torch.testing.assert_close(
            functional_call(small, cut.take(x, indices), (sample(name),)),
            functional_call(full, values, (sample(name),)),
            rtol=1e-10,
            atol=1e-10,
        )


def test_running_statistics_are_cut_too_and_counters_are_kept() -> None:
    full, small = (nn.Sequential(nn.Conv2d(1, C, 3), nn.BatchNorm2d(C)) for C in (4, 2))
    cut = Cut.between(full, small)
    x = {**named(full), "1.running_mean": torch.arange(4.0), "1.num_batches_tracked": torch.tensor(7)}
    part = cut.take(x, {4: torch.tensor([3, 1])})
    assert part["1.running_mean"].tolist() == [3, 1]
    values, mass = cut.put(part, {4: torch.tensor([3, 1])})
    assert values["1.running_mean"].tolist() == [0, 1, 0, 3]
    assert int(merge(x, values, mass)["1.num_batches_tracked"]) == 7


def test_flattened_images_are_cut_by_whole_channels() -> None:
    full = models.build("small-cnn", classes=10, input_shape=(1, 8, 8))
    cut = Cut.between(full, narrow(full, 0.5))
    assert cut.widths == {16: 8, 32: 16, 64: 32}
    weight = torch.arange(64 * 128.0).view(64, 128)
    indices = {16: prefix(16, 8), 32: torch.tensor([31, 2]), 64: torch.tensor([5])}
    assert cut.take({"7.weight": weight}, indices)["7.weight"][0].tolist() == [
        5 * 128 + 4 * channel + place for channel in (31, 2) for place in range(4)
    ]


@pytest.mark.parametrize(
    ("holders", "expected"), [(("A", "B"), [3.0, 4.0, 3.0, 4.0]), (("B",), [5.0, 6.0, 30.0, 40.0])]
)
def test_the_mean_over_those_who_hold_an_entry(holders: tuple[str, ...], expected: list[float]) -> None:
    full, small = (nn.Sequential(nn.Linear(1, C), nn.Linear(C, 1)) for C in (4, 2))
    half, whole = Cut.between(full, small), Cut.between(full, full)
    sent = {
        "A": whole.put({"0.bias": torch.tensor([1.0, 2.0, 3.0, 4.0])}, whole.indices(prefix)),
        "B": half.put({"0.bias": torch.tensor([5.0, 6.0])}, half.indices(prefix)),
    }
    total, mass = {"0.bias": torch.zeros(4)}, {"0.bias": torch.zeros(4)}
    for who in holders:
        total, mass = add(total, sent[who][0]), add(mass, sent[who][1])
    assert merge({"0.bias": torch.tensor([10.0, 20.0, 30.0, 40.0])}, total, mass)["0.bias"].tolist() == expected


def test_many_clients_with_channels_of_their_own_at_once() -> None:
    full = build("small-cnn")
    cut, g = Cut.between(full, narrow(full, 0.5)), torch.Generator().manual_seed(2)
    x = named(full)
    each = [cut.indices(partial(random, generator=g)) for _ in range(3)]

    def there_and_back(indices: Indices) -> tuple[Tensors, Tensors]:
        return cut.put(cut.take(x, indices), indices)

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


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.01, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(RequestError, match="must be above 0 and at most 1"):
        narrow(models.build("mlp:rate=0.5", classes=2, input_shape=(4,)), rate)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (lambda: nn.Linear(3, 2), "this module cannot be narrowed: take a model by name"),
        (
            lambda: factorise(models.build("mlp", classes=2, input_shape=(4,)), 0.5),
            "give it a function at_width(rate)",
        ),
        (lambda: models.build("logreg", classes=2, input_shape=(4,)), "model logreg has no option rate"),
        (
            lambda: models.build("transformer-mlm", classes=9, input_shape=(4,)),
            "model transformer-mlm has no option rate",
        ),
        (lambda: models.build("resnet8-gn", classes=2, input_shape=(1, 8, 8)), "groups=8 does not divide"),
    ],
)
def test_what_cannot_be_narrowed(module: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
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
    with pytest.raises(RequestError) as refused:
        Cut.between(full, small)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
