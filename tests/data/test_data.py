"""Laws of the partitions, the sources and the federation."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.core.errors import UserError
from coterie.core.rng import generator
from coterie.data import PARTITIONS, SOURCES, Federation, federate, from_tensors, partition
from coterie.data import partition as dealing
from coterie.data import sources as builtin
from coterie.data.sources import digits
from partitions import Ints, assert_cover, balanced_labels, fractions

quick = settings(max_examples=40, deadline=None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Ints, int, int]:
    """Labels with classes of any size (also skipped ones), a feasible number of clients, and a seed."""
    labels = draw(st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=1, max_size=80))
    return np.array(labels, np.int64), draw(st.integers(1, len(labels))), draw(st.integers(0, 99))


# The partitions


@quick
@given(
    problems(),
    st.sampled_from(["iid", "iid:balanced=true", "dirichlet:0.001", "dirichlet:0.3", "dirichlet:1e6"]),
)
def test_equal_sizes_and_a_disjoint_cover(problem: tuple[Ints, int, int], text: str) -> None:
    labels, clients, seed = problem
    parts = partition.split(text, labels, clients, seed)
    assert_cover(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(problems())
def test_balanced_iid_spreads_every_class(problem: tuple[Ints, int, int]) -> None:
    labels, clients, seed = problem
    parts = partition.split("iid:balanced=true", labels, clients, seed)
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
    assert (np.ptp(counts, axis=0) <= 1).all()


@quick
@given(problems(), st.sampled_from([0.01, 0.5, 100.0]), st.booleans())
def test_by_class_covers_and_keeps_its_floor(problem: tuple[Ints, int, int], alpha: float, balance: bool) -> None:
    labels, clients, seed = problem
    rng = generator(seed, "partition")
    floor = 1 if clients == 1 else 0
    parts = partition.dirichlet_by_class(labels, clients, alpha, rng, balance=balance, min_size=floor)
    assert_cover(parts, len(labels))
    assert min(map(len, parts)) >= floor


def test_by_class_balance_closes_full_clients() -> None:
    """Only the class that fills a client can take it past N/n; without balance the largest holds far more."""
    labels = balanced_labels(1000, 10)
    largest = {
        balance: [
            max(map(len, partition.dirichlet_by_class(labels, 10, 0.5, generator(s, "b"), balance, min_size=0)))
            for s in range(20)
        ]
        for balance in (True, False)
    }
    assert max(largest[True]) < 100 + 100
    assert np.mean(largest[False]) > np.mean(largest[True])


@quick
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 15), st.integers(0, 99), st.data())
def test_pathological_gives_exactly_c_labels(
    classes: int, each: int, clients: int, seed: int, data: st.DataObject
) -> None:
    each, kinds = min(each, classes), classes
    clients = max(clients, -(-kinds // each))
    least = -(-clients * each // kinds)
    sizes = data.draw(st.lists(st.integers(least, 3 * least), min_size=kinds, max_size=kinds))
    labels = generator(seed, "order").permutation(np.repeat(np.arange(kinds), sizes))
    parts = partition.split(f"pathological:{each}", labels, clients, seed)
    assert_cover(parts, len(labels))
    assert all(len(np.unique(labels[part])) == each for part in parts)
    holders = [sum(k in labels[part] for part in parts) for k in range(kinds)]
    assert max(holders) - min(holders) <= 1


def test_pathological_sizes_are_equal_when_everything_divides() -> None:
    parts = partition.split("pathological:2", balanced_labels(1000, 10), 20, seed=3)
    assert {len(part) for part in parts} == {50}


def test_pathological_neighbors_may_share_classes() -> None:
    labels = balanced_labels(1000, 10)
    parts = partition.split("pathological:2", labels, 100, seed=0)
    shared = [bool(set(labels[a]) & set(labels[b])) for a, b in pairwise(parts)]
    assert 0.2 < np.mean(shared) < 0.6  # independent pairs of 10 classes meet with probability 17/45


def test_large_alpha_is_uniform_within_five_sigma() -> None:
    labels = balanced_labels(20_000, 10)
    for text in ("dirichlet:1e6", "dirichlet-by-class:1e6"):
        shares = fractions(labels, partition.split(text, labels, 20, seed=1), 10)
        assert (abs(shares - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 1000)).all(), text


def test_dirichlet_class_shares_have_the_variance_of_the_prior() -> None:
    """Var of a share of m draws is Var p + E[p(1-p)]/m, where Var p = (1/C)(1 - 1/C)/(C alpha + 1).

    A whole partition uses classes up, which pulls the shares to the mean; so the dealing is checked on a
    stock too large for that.
    """
    C, alpha, m, n = 5, 0.5, 100, 2000
    prior = generator(0, "prior").dirichlet(np.full(C, alpha), n)
    stock = [list(range(k, C * n * m, C)) for k in range(C)]  # n m of every class: none can run out
    dealt = dealing._deal(stock, prior, [m] * n, generator(0, "deal"))
    shares = np.stack([np.bincount(np.array(part) % C, minlength=C) / m for part in dealt])
    law = (1 / C) * (1 - 1 / C) / (C * alpha + 1)
    expected = law + (1 / C * (1 - 1 / C) - law) / m
    assert abs(shares.mean(0) - 1 / C).max() < 5 * np.sqrt(expected / n)
    assert shares.var() == pytest.approx(expected, rel=0.06)


def test_small_alpha_concentrates_and_still_ends() -> None:
    labels = balanced_labels(2000, 10)
    parts = partition.split("dirichlet:1e-3", labels, 20, seed=0)
    assert_cover(parts, 2000)
    assert fractions(labels, parts, 10).max(1).mean() > 0.5


def test_dirichlet_per_client_is_not_dirichlet_per_class() -> None:
    labels = balanced_labels(2000, 10)
    per_client = [len(part) for part in partition.split("dirichlet:0.3", labels, 20, seed=0)]
    per_class = [len(part) for part in partition.split("dirichlet-by-class:0.3", labels, 20, seed=0)]
    assert set(per_client) == {100}
    assert np.std(per_class) > 10


TEXTS = ["iid", "dirichlet:0.3", "dirichlet-by-class:0.5", "pathological:2", "shards:2"]
TEXTS += ["dirichlet-reuse:0.3", "pathological-random:2", "dirichlet-by-class-tests:0.5"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_seed_decides(text: str) -> None:
    labels = balanced_labels(400, 10)
    first, again, other = (partition.split(text, labels, 8, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.3", "dirichlet-by-class:0.5", "pathological:10", "shards:3"])
def test_one_client_gets_everything(text: str) -> None:
    (part,) = partition.split(text, balanced_labels(40, 10), 1, seed=0)
    np.testing.assert_array_equal(part, np.arange(40))


def test_many_clients_are_dealt() -> None:
    labels = generator(0, "labels").integers(0, 10, 60_000)
    parts = partition.split("dirichlet:0.1", labels, 1000, seed=0)
    assert sorted(np.concatenate(parts)) == list(range(60_000))


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("dirichlett:0.3", 4, "unknown partition 'dirichlett': did you mean dirichlet"),
        ("dirichlet", 4, "partition dirichlet needs alpha (a number): write dirichlet:alpha=VALUE"),
        ("dirichlet:0", 4, "alpha=0.0 is out of range: it must be a number above 0"),
        ("dirichlet:nan", 4, "alpha=nan is out of range: it must be a number above 0"),
        ("dirichlet-by-class:-1", 4, "alpha=-1.0 is out of range: it must be a number above 0"),
        ("dirichlet:much", 4, "alpha='much' does not fit partition dirichlet: alpha takes a number"),
        ("dirichlet:0.3,7", 4, "partition dirichlet has no place for '7': it takes alpha"),
        ("dirichlet:0.3,alpha=1", 4, "dirichlet is given alpha twice: keep one of 0.3 and 1"),
        (
            "dirichlet:0.3,min_size=1",
            4,
            "partition dirichlet has no option 'min_size': it takes alpha",
        ),
        ("iid:balanced=1", 4, "balanced='1' does not fit partition iid: balanced takes true or false"),
        ("pathological:1.5", 4, "classes='1.5' does not fit partition pathological: classes takes an integer"),
        ("pathological:true", 4, "classes='true' does not fit partition pathological: classes takes an integer"),
        ("iid", 0, "clients=0 is not possible with 40 samples: ask for 1 to 40"),
        ("iid", 41, "clients=41 is not possible with 40 samples: ask for 1 to 40"),
        ("shards:0", 4, "0 shards a client of 40 samples is not possible: ask for 1 to 10"),
        ("shards:11", 4, "11 shards a client of 40 samples is not possible: ask for 1 to 10"),
        ("shards", 4, "partition shards needs shards (an integer): write shards:shards=VALUE"),
        ("dirichlet-reuse:-1", 4, "alpha=-1.0 is out of range: it must be a number above 0"),
        ("pathological-random:11", 4, "11 classes a client of 10 is not possible: ask for 1 to 10"),
        ("pathological:0", 4, "0 classes a client of 10 is not possible: ask for 1 to 10"),
        ("pathological:11", 4, "11 classes a client of 10 is not possible: ask for 1 to 10"),
        (
            "pathological:2",
            4,
            "4 clients of 2 classes each cannot hold all 10: ask for 3 or more classes each, or 5",
        ),
        ("pathological:9", 40, "class 0 has 4 samples for 36 clients that need one: ask for fewer clients"),
        (
            "dirichlet-by-class:1",
            5,
            "40 samples cannot give 5 clients 10 each: ask for fewer clients or for min_size=8",
        ),
        (
            "dirichlet-by-class:1e-3,max_tries=5",
            4,
            "alpha=0.001 never gave each of 4 clients 10 samples in 5 tries: raise alpha or max_tries",
        ),
    ],
)
def test_what_a_partition_refuses(text: str, clients: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        partition.split(text, balanced_labels(40, 10), clients, seed=0)
    assert message in str(error.value)


# The test split


@quick
@given(problems(), st.integers(1, 60))
def test_test_split_follows_the_train_fractions(problem: tuple[Ints, int, int], size: int) -> None:
    labels, clients, seed = problem
    test_labels = generator(seed, "test").choice([0, 1, 2, 5, 9], size)
    parts = partition.split("dirichlet:0.3", labels, clients, seed)
    M = -(-size // clients)
    available = np.bincount(test_labels, minlength=10)
    for part, tested in zip(parts, partition.test_split(labels, parts, test_labels, seed), strict=True):
        assert len(np.unique(tested)) == len(tested)
        share = np.bincount(labels[part], minlength=10) / len(part)
        counts = np.bincount(test_labels[tested], minlength=10)
        uncapped = counts < available
        assert (counts <= available).all()
        assert (counts - share * M < 1 - 1e-9).all()
        assert (counts - share * M >= -1e-9)[uncapped].all()


def test_test_split_draws_for_each_client_alone() -> None:
    """A client's draw depends on its own samples; equal fractions still get different test samples."""
    labels, test = balanced_labels(90, 3), balanced_labels(300, 3)
    parts = [np.arange(30), np.arange(30, 60), np.arange(60, 90)]
    first = partition.test_split(labels, parts, test, seed=0)
    changed = partition.test_split(labels, [parts[0], np.array([0]), parts[2]], test, seed=0)
    assert np.array_equal(first[0], changed[0])
    assert np.array_equal(first[2], changed[2])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], partition.test_split(labels, parts, test, seed=1)[0])


def test_test_split_of_a_client_without_samples_is_empty() -> None:
    nothing = np.empty(0, np.int64)
    _, tested = partition.test_split(balanced_labels(9, 3), [np.arange(9), nothing], balanced_labels(9, 3), seed=0)
    assert tested.dtype == np.int64
    assert len(tested) == 0


def test_test_split_ceiling_is_exact() -> None:
    """A fraction of 7/25 of 25 samples is 7; in floating point its ceiling would be 8."""
    labels = np.repeat([0, 1], [7, 18])
    (tested,) = partition.test_split(labels, [np.arange(25)], np.repeat([0, 1], [12, 13]), seed=0)
    assert (tested < 12).sum() == 7


# The sources


def test_digits_are_the_known_ones() -> None:
    pool = digits()
    labels, images = torch.cat([pool.y, pool.test_y]), torch.cat([pool.x, pool.test_x])
    assert images.shape == (1797, 1, 8, 8)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.dtype == torch.float32
    pixels = 16 * (images * builtin.STD + builtin.MEAN)  # standardized back to 0..16
    assert torch.allclose(pixels, pixels.round(), atol=1e-4)
    assert (pixels.round().min(), pixels.round().max(), pixels.round().sum()) == (0, 16, 561718)
    assert abs(images.mean()) < 0.01
    assert abs(images.std() - 1) < 0.01
    share = pool.test_y.bincount() / labels.bincount()
    assert ((share - 0.25).abs() < 0.01).all()
    assert all(torch.equal(a, b) for a, b in zip(pool[:4], digits(seed=7)[:4], strict=True))


@pytest.mark.parametrize("source", ["digits", "synthetic:size=600", "synthetic:size=600,heterogeneity=1.5"])
@pytest.mark.parametrize("text", TEXTS)
def test_origin_rebuilds_the_federation(source: str, text: str) -> None:
    fed = federate(source, clients=6, partition=text, seed=3)
    again: Any = json.loads(json.dumps(fed.origin))
    assert federate(**again).fingerprint() == fed.fingerprint()
    assert federate(source, clients=6, partition=text, seed=4).fingerprint() != fed.fingerprint()


def test_options_in_the_text_and_by_name_are_the_same() -> None:
    typed = federate("synthetic:400,classes=5,noise=1", clients=np.int64(4), partition="iid")  # type: ignore[arg-type]
    named = federate("synthetic", clients=4, partition="iid", size=np.int64(400), classes=5, noise=1)  # type: ignore[arg-type]
    assert typed.fingerprint() == named.fingerprint()
    assert json.dumps(typed.origin) == json.dumps(named.origin)


def class_means(fed: Federation, x: torch.Tensor, y: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    means = [torch.stack([x[part][y[part] == k].mean(0) for k in range(fed.classes or 0)]) for part in parts]
    return torch.stack(means)  # [n, classes, features]


def test_clients_rename_digits_in_their_own_way() -> None:
    """Every client has the samples that it would have had, with some names exchanged, in training as in testing."""
    plain, named = (federate("digits", partition="iid", clients=4, renamed=k) for k in (0, 4))
    ways = set()
    for client in range(4):
        way: dict[int, int] = {}
        for y, rows, of in (("y", "train", plain.x), ("test_y", "test", plain.test_x)):
            mine = [(getattr(fed, y)[getattr(fed, rows)[client]], fed) for fed in (plain, named)]
            (before, _), (after, fed) = mine
            x = (fed.x if y == "y" else fed.test_x)[getattr(fed, rows)[client]]
            assert torch.equal(x, of[getattr(plain, rows)[client]])
            for old, new in zip(before.tolist(), after.tolist(), strict=True):
                assert way.setdefault(old, new) == new
        assert sorted(way.values()) == list(range(10))
        assert sum(old != new for old, new in way.items()) == 4
        ways.add(tuple(sorted(way.items())))
    assert len(ways) == 4


def test_synthetic_clients_disagree_by_the_heterogeneity() -> None:
    """Two clients' class means differ by a normal of variance 2 h^2 a feature, but for averaged noise."""
    for h in (0.0, 0.5, 2.0):
        fed = federate(
            "synthetic",
            clients=8,
            partition="iid:balanced=true",
            size=8000,
            classes=4,
            heterogeneity=h,
            noise=0.1,
        )
        means = class_means(fed, fed.x, fed.y, fed.train)
        gap = (means[:4] - means[4:]).square().mean().item()
        assert gap == pytest.approx(2 * h**2, rel=0.25, abs=1e-3)
        tested = class_means(fed, fed.test_x, fed.test_y, fed.test)
        assert (tested - means).square().mean() < 1e-2


def test_synthetic_clients_share_test_samples_only_when_they_agree() -> None:
    agree, differ = (federate("synthetic", clients=4, heterogeneity=h) for h in (0, 1))
    assert len(agree.test_x) == 500
    assert torch.equal(torch.cat(differ.test), torch.arange(len(differ.test_x)))
    assert torch.equal(agree.test_y[torch.cat(agree.test)], differ.test_y)
    assert all(torch.equal(a, b) for a, b in zip(agree.train, differ.train, strict=True))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("digts", {}, "unknown source 'digts': did you mean digits?"),
        ("digits:size=4", {}, "source digits has no option 'size': it takes noise"),
        (
            "synthetic",
            {"clases": 4},
            "source synthetic has no option 'clases' (did you mean classes?): it takes size, classes",
        ),
        (
            "synthetic:classes=many",
            {},
            "classes='many' does not fit source synthetic: classes takes an integer",
        ),
        ("synthetic:classes=4", {"classes": 5}, "synthetic is given classes twice: keep one of 4 and"),
        ("synthetic:classes=0", {}, "classes=0 is out of range: it must be a number at least 1"),
        ("synthetic:features=0", {}, "features=0 is out of range: it must be a number at least 1"),
        ("synthetic:39", {}, "size=39 is too small for 10 classes: ask for 40 or more"),
        ("synthetic:noise=inf", {}, "noise=inf is out of range: it must be a number at least 0"),
        ("digits", {"renamed": 1}, "rename 2 to 10 of them, or none"),
        ("digits", {"renamed": 11}, "renamed=11 is out of range"),
        ("synthetic", {"heterogeneity": -1}, "heterogeneity=-1.0 is out of range: it must be a number at least 0"),
    ],
)
def test_what_a_source_refuses(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        federate(source, **options)
    assert message in str(error.value)


def test_the_names() -> None:
    assert list(PARTITIONS) == [
        *("iid", "dirichlet", "dirichlet-by-class", "pathological"),
        *("shards", "dirichlet-reuse", "pathological-random", "dirichlet-by-class-tests"),
    ]
    assert {"digits", "synthetic"} <= set(SOURCES)


# The federation


def small(**changes: Any) -> Federation:
    rows = torch.arange(4)
    parts = {"train": (rows[:3], rows[3:]), "test": (rows, rows[:0])}
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 1])
    return Federation(**{"x": x, "y": y, "test_x": x, "test_y": y, "classes": 3, **parts, **changes})


def test_what_a_federation_says_of_itself() -> None:
    fed = small()
    assert fed.clients == 2
    assert fed.sizes.tolist() == [3, 1]
    assert fed.sizes.dtype == torch.int64
    assert fed.input_shape == (2,)
    assert fed.class_counts().tolist() == [[1, 1, 1], [0, 1, 0]]
    assert fed.to("cpu").fingerprint() == fed.fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.arange(8.0).reshape(4, 2).add(1)},
        {"x": torch.arange(8.0).reshape(4, 2).double(), "test_x": torch.arange(8.0).reshape(4, 2).double()},
        {"y": torch.tensor([0, 1, 2, 2])},
        {"train": (torch.arange(2), torch.arange(2, 4))},
        {"test": (torch.arange(4), torch.arange(4))},
        {"classes": 4},
    ],
)
def test_fingerprint_changes_with_the_content(changes: dict[str, Any]) -> None:
    assert small(**changes).fingerprint() != small().fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": (), "test": ()},
            "give every client a train and a test part, not 0 train and 0 test parts",
        ),
        (
            {"test": (torch.arange(2),)},
            "give every client a train and a test part, not 2 train and 1 test parts",
        ),
        ({"y": torch.tensor([0, 1])}, "there are 4 train samples but 2 targets: give one target a sample"),
        ({"test_y": torch.tensor([0])}, "there are 4 test samples but 1 targets: give one target a sample"),
        ({"train": (torch.arange(2), torch.tensor([4]))}, "client 1 points outside the 4 train samples"),
        ({"test": (torch.tensor([-1]), torch.arange(2))}, "client 0 points outside the 4 test samples"),
        ({"train": (torch.ones(2), torch.arange(2))}, "the train rows of client 0 must be one list of int64"),
        ({"classes": 2}, "train labels run from 0 to 2 (client 0): 2 classes are 0 to 1"),
        ({"classes": None}, "the train targets are int64: say how many classes"),
        (
            {"y": torch.ones(4)},
            "the train targets are float32: leave classes out or give integer labels",
        ),
        (
            {"x": torch.full((4, 2), torch.nan)},
            "the train samples (client 0) contain NaN or infinity: clean them first",
        ),
        (
            {"test_x": torch.full((4, 2), torch.inf)},
            "the test samples (client 0) contain NaN or infinity: clean them first",
        ),
        (
            {"test_x": torch.ones(4, 3)},
            "test samples are float32 of shape (3,) but train samples are float32 of shape (2,)",
        ),
        ({"train": (torch.arange(0), torch.arange(0))}, "no client has a training sample"),
    ],
)
def test_what_a_federation_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        small(**changes)
    assert message in str(error.value)


def test_floating_targets_have_no_classes() -> None:
    x = torch.ones(3, 2)
    fed = from_tensors(train=[(x, torch.ones(3, 1))], test=[(x, torch.ones(3, 1))])
    assert fed.classes is None
    with pytest.raises(RuntimeError, match="bincount"):
        fed.class_counts()
    with pytest.raises(UserError, match="contain NaN"):
        from_tensors(train=[(x, torch.full((3, 1), torch.nan))], test=[(x, torch.ones(3, 1))])


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_from_tensors_keeps_values_and_types(convert: Callable[..., Any], kind: type) -> None:
    x: NDArray[Any] = np.arange(12).reshape(6, 2).astype(kind)
    y = np.array([0, 1, 2, 0, 1, 2], np.int32)
    train = [
        (convert(x[:4]), convert(y[:4])),
        (convert(x[:0]), convert(y[:0])),
        (convert(x[4:]), convert(y[4:])),
    ]
    fed = from_tensors(train=train, test=train[::-1])
    assert fed.x.numpy().dtype == kind
    assert fed.y.dtype == torch.int64
    assert fed.sizes.tolist() == [4, 0, 2]
    assert fed.classes == 3
    assert np.array_equal(fed.x[fed.train[2]].numpy(), x[4:])
    assert np.array_equal(fed.test_x[fed.test[0]].numpy(), x[4:])
    assert fed.origin == {}
    assert len(fed.fingerprint()) == 16


def test_from_tensors_copies_its_inputs() -> None:
    frozen = np.arange(6.0).reshape(3, 2)[::-1]
    frozen.flags.writeable = False
    live = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 0])
    fed = from_tensors(train=[(frozen, y), (live, y)], test=[(live, y), (frozen, y)], classes=5)
    fed.x.zero_()
    fed.y.fill_(4)
    assert frozen[0, 0] == 4
    assert live.min() == 1
    assert y.tolist() == [0, 1, 0]
    assert not fed.x.requires_grad
    assert fed.classes == 5


X, Y = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train is empty: give one pair (samples, targets) per client"),
        ([(X, Y), X], "train of client 1 must be a pair (samples, targets)"),
        (
            [(X, Y), (X[:2], Y)],
            "train of client 1 needs as many samples as targets, not shapes (2, 2) and (3,)",
        ),
        ([(X, Y[0])], "train of client 0 needs as many samples as targets, not shapes (3, 2) and ()"),
        (
            [(X, Y), (torch.ones(3, 5), Y)],
            "train samples of client 1 are float32 of shape (5,) but those of client 0 are float32 of shape",
        ),
        (
            [(X, Y), (X.double(), Y)],
            "train samples of client 1 are float64 of shape (2,) but those of client 0 are float32 of shape",
        ),
        (
            [(X, Y), (X, torch.ones(3))],
            "train targets of client 1 are float32 of shape () but those of client 0 are int64 of shape ()",
        ),
        ([(X, Y - 1)], "train labels run from -1 to -1 (client 0): 1 classes are 0 to 0"),
        ([(X, Y), (X, Y)], "give every client a train and a test part, not 2 train and 1 test parts"),
        ([(X[:0], Y[:0])], "no client has a training sample: give at least one client some data"),
    ],
)
def test_what_from_tensors_refuses(train: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        from_tensors(train=train, test=[(X, Y)])
    assert message in str(error.value)


def test_noisy_digits_are_noisy_by_the_seed() -> None:
    clean, noisy, again, other = (
        federate("digits", clients=3, partition="iid", seed=s, noise=n)
        for s, n in ((0, 0.0), (0, 0.5), (0, 0.5), (1, 0.5))
    )
    assert float((noisy.x - clean.x).std()) == pytest.approx(0.5, rel=0.01)
    assert torch.equal(noisy.x, again.x)
    assert not torch.equal(noisy.test_x, other.test_x)
    assert federate(**noisy.origin).fingerprint() == noisy.fingerprint()
