"""Stored images as models see them: normalized, and for training alone cropped and flipped, alike on every engine."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import coterie as ct
from coterie.data import Federation, Transform
from coterie.data.batches import Amount, Batches, Samples, Stream
from coterie.engines import Serial, Vectorized
from coterie.training import config
from toys import experiment, models

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
PLAIN = Transform(MEAN, STD)
RANDOM = Transform(MEAN, STD, pad=4, flip=True)


def pictures(n: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
    """Stored images, none of them black anywhere."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (n, 3, h, w), generator=g, dtype=torch.uint8)


def samples(sizes: tuple[int, ...] = (8, 8, 8, 8), transform: Transform = RANDOM) -> Samples:
    n = sum(sizes)
    return Samples(pictures(n), torch.arange(n), torch.split(torch.randperm(n), sizes), transform)


def by_hand(image: Tensor, p: Transform, dy: int, dx: int, flipped: bool) -> Tensor:
    """One image: a frame around it, a window cut out, its columns reversed, then normalized."""
    c, h, w = image.shape
    frame = torch.tensor(p.mean if p.border == "mean" else (0.0,) * c, dtype=torch.float64)
    framed = 255 * frame[:, None, None].repeat(1, h + 2 * p.pad, w + 2 * p.pad)
    framed[:, p.pad : p.pad + h, p.pad : p.pad + w] = image
    cut = framed[:, dy : dy + h, dx : dx + w]
    cut = torch.stack([cut[:, :, w - 1 - j] for j in range(w)], 2) if flipped else cut
    return torch.stack([(cut[k] / 255 - p.mean[k]) / p.std[k] for k in range(c)])


def inputs(stream: Stream) -> Tensor:
    """All inputs of a client, one batch after another; padding is 0."""
    batches = [stream.batch(k) for k in range(stream.steps)]
    return torch.cat([b.x if b.mask is None else torch.where(b.mask[:, None, None, None], b.x, 0) for b in batches])


def federation(transform: Transform | None = PLAIN, sizes: tuple[int, ...] = (9, 4, 13, 2, 8)) -> Federation:
    """Clients of unequal size; without a transform, the same images normalized in advance."""

    def pair(n: int, seed: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(n) % 3
        x = (pictures(n, seed=seed) // 2 + 40 * y.to(torch.uint8)[:, None, None, None]).contiguous()
        normal = torch.stack([by_hand(image, PLAIN, 0, 0, False) for image in x]).to(torch.float32)
        return normal if transform is None else x, y

    train, test = ([pair(n + extra, seed) for seed, n in enumerate(sizes)] for extra in (0, 3))
    return ct.data.from_tensors(train, test, classes=3, transform=transform)


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Flatten(), nn.Linear(90, 8), nn.Tanh(), nn.Linear(8, 3))


def algorithm(**settings: Any) -> ct.algorithms.Algorithm:
    common = {"topology": "ring", "lr": 0.05, "batch_size": 4, "epochs": 2}
    return ct.algorithms.dfedavg(**common | settings)


# One batch


@settings(deadline=None)
@given(pad=st.integers(0, 5), flip=st.booleans(), border=st.sampled_from(["black", "mean"]), seed=st.integers(0, 99))
def test_augmentation_equals_pad_slice_flip(pad: int, flip: bool, border: str, seed: int) -> None:
    p = Transform(MEAN, STD, pad, flip, border if pad else "black")
    raw = pictures(7, seed=seed)
    draw = torch.randint(0, 2**63 - 1, (7,), generator=torch.Generator().manual_seed(seed))
    got = p.augmented(raw, draw)
    assert got.dtype == torch.float32
    for i, (dy, dx, flipped) in enumerate(zip(*(v.tolist() for v in p.chosen(draw)), strict=True)):
        assert 0 <= dy <= 2 * pad
        assert 0 <= dx <= 2 * pad
        assert flipped in ((0, 1) if flip else (0,))
        torch.testing.assert_close(got[i].double(), by_hand(raw[i], p, dy, dx, bool(flipped)), rtol=0, atol=1e-6)


def test_every_place_is_reached() -> None:
    """The outcomes of consecutive draws are all the pairs of offsets, both ways round."""
    chosen = torch.stack(RANDOM.chosen(torch.arange(9 * 9 * 2)), 1)
    assert len(chosen.unique(dim=0)) == 9 * 9 * 2


@pytest.mark.parametrize("draw", [None, torch.arange(4) * 1001])
def test_a_step_can_be_traced(draw: Tensor | None) -> None:
    """As an engine that records a step does: static samples, and tensors that say which of them."""
    frozen = samples()

    def step(index: Tensor, mask: Tensor, *draw: Tensor) -> tuple[Tensor, ...]:
        stream = Stream(frozen, index[None], mask[None], draw[0][None] if draw else None, [4])
        batch = stream.batch(0)
        assert batch.mask is not None
        return batch.x, batch.y, batch.mask

    drawn = [] if draw is None else [draw]
    traced = make_fx(step)(torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool), *drawn)
    now = torch.tensor([3, 9, 31, 0]), torch.tensor([True, True, False, True]), *[d + 77 for d in drawn]
    for got, expected in zip(traced(*now), step(*now), strict=True):
        assert torch.equal(got, expected)


# The draws


def test_draws_are_uniform() -> None:
    """Each of the 9 x 9 x 2 outcomes comes about equally often (chi-square, 161 degrees of freedom)."""
    clients, own = 400, 81
    frozen = Samples(pictures(1).expand(own * clients, 3, 6, 5), torch.zeros(own * clients), (), RANDOM)
    frozen = replace(frozen, owned=torch.arange(own * clients).split(own))
    draw = Batches(frozen, np.arange(clients), Amount(epochs=2), 20, key=3).block(np.arange(clients)).draw
    assert draw is not None
    assert int(draw.min()) >= 0
    real = draw[:, [0, 1, 2, 3, 5, 6, 7, 8]].flatten()  # whole batches: a partial one repeats its last sample
    dy, dx, flipped = RANDOM.chosen(real)
    counts = ((dy * 9 + dx) * 2 + flipped).bincount(minlength=162).double()
    expected = len(real) / 162
    assert float(((counts - expected) ** 2 / expected).sum()) < 245  # p < 1e-4 above


def drawn(batches: Batches, place: int) -> dict[tuple[int, int], int]:
    """The draw of every sample in every pass, by position in the data."""
    stream, out = batches.one(place), {}
    assert stream.draw is not None
    per_epoch = int(batches.steps_per_epoch[place])
    for k, width in enumerate(stream.widths):
        for column in range(width):
            out[k // per_epoch, int(stream.index[k, column])] = int(stream.draw[k, column])
    return out


def test_draws_depend_on_key_client_pass_and_sample_alone() -> None:
    frozen = samples((10, 10, 10, 10))

    def of(clients: list[int], place: int, key: int, batch_size: int | None = 4) -> dict[tuple[int, int], int]:
        return drawn(Batches(frozen, np.array(clients), Amount(epochs=3), batch_size, key), place)

    mine = of([0, 1, 2], 1, key=1)
    assert mine == of([1], 0, key=1) == of([3, 1], 1, key=1) == of([1], 0, key=1, batch_size=None)
    others = [of([1], 0, key=2), of([2], 0, key=1)]
    values = [*mine.values(), *(v for other in others for v in other.values())]
    assert len(values) == len(set(values)) == 3 * 3 * 10  # no two alike: passes, keys and clients differ


def test_rounds_and_streams_differ() -> None:
    e = experiment(net(), federation(RANDOM), algorithm())
    blocks = [e.round(t).batches(s, Amount(epochs=1), 4).block(np.arange(5)) for t in (0, 1) for s in (0, 1)]
    draws = [block.draw for block in blocks]
    assert all(a is not None and b is not None and not torch.equal(a, b) for a, b in pairwise(draws))
    again = e.round(1).batches(1, Amount(epochs=1), 4).block(np.arange(5)).draw
    assert again is not None
    assert draws[-1] is not None
    assert torch.equal(again, draws[-1])


# The engines


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_engines_augment_alike_bit_for_bit(chunk: int) -> None:
    batches = Batches(samples(), np.arange(4), Amount(epochs=2), 3, key=5)
    slow, fast = (e.map(inputs, batches, keys=[0] * 4) for e in (Serial(), Vectorized(chunk)))
    assert torch.equal(slow, fast)
    one = batches.one(2)
    assert one.draw is not None
    dy, dx, flipped = (v.tolist() for v in RANDOM.chosen(one.draw[1]))
    for i in range(3):  # what the engines gather is what the draws say
        image = by_hand(batches.samples.x[one.index[1, i]], RANDOM, dy[i], dx[i], bool(flipped[i]))
        torch.testing.assert_close(slow[2, 3 + i].double(), image, rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", [Vectorized(1), Vectorized(2), Vectorized(5), Vectorized(5, exact=True)])
def test_training_on_augmented_images_is_alike_on_every_engine(engine: Vectorized) -> None:
    slow = models(experiment(net(), federation(RANDOM), algorithm(), Serial()), 2)
    fast = models(experiment(net(), federation(RANDOM), algorithm(), engine), 2)
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", [Serial(), Vectorized(3)], ids=["serial", "vectorized"])
def test_raw_images_train_and_measure_as_prepared_ones(engine: Any) -> None:
    """The same numbers as with floating images normalized in advance."""
    measured = ["gradients", "sharpness"]
    played = []
    for transform in (PLAIN, None):
        e = experiment(net(), federation(transform), algorithm(), engine).changed(record=measured)
        now, row = e.run_round(e.start(), 0, evaluate=True)
        played.append((e.program.models(now.state), row))
    (raw, raw_row), (ready, ready_row) = played
    for name in ready:
        torch.testing.assert_close(raw[name], ready[name], rtol=0, atol=1e-6)
    assert {k for k in ready_row if "gradient" in k or "sharpness" in k or "accuracy" in k} <= raw_row.keys()
    for name, value in ready_row.items():
        if not name.endswith("seconds"):
            assert raw_row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_evaluation_is_never_augmented() -> None:
    """Every measure of a model is the same whether or not training would augment."""
    rows = []
    for transform in (PLAIN, RANDOM):
        e = experiment(net(), federation(transform), algorithm(lr=0.0))
        e = e.changed(record=["gradients", "sharpness"])
        rows.append(e.run_round(e.start(), 0, evaluate=True)[1])
    assert rows[0].pop("train_loss") != rows[1].pop("train_loss")
    untimed = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    assert untimed[0] == untimed[1]


def test_images_are_held_once_as_they_are_stored() -> None:
    """Nothing as large as the whole set is made of it, neither for training nor for measuring."""
    sizes = (600, 500, 900)
    fed = federation(RANDOM, sizes)
    e = experiment(net(), fed, algorithm(epochs=1, batch_size=50), Vectorized(3))
    assert e.train.x is fed.x
    assert e.tests.x is fed.test_x
    assert fed.x.dtype == fed.to("cpu").x.dtype == torch.uint8
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = f(*args, **kwargs or {})
            for v in torch.utils._pytree.tree_leaves(out):
                if isinstance(v, Tensor) and v.is_floating_point():
                    largest = max(largest, v.numel())
            return out

    with Sizes():
        e.run_round(e.start(), 0, evaluate=True)
    assert 3 * 50 * 90 <= largest <= 3 * 256 * 90 < fed.x.numel()


# A run


def test_a_run_on_raw_images(tmp_path: Path) -> None:
    fed = federation(RANDOM)
    run = ct.fit(net(), fed, algorithm(), rounds=2, out=tmp_path / "a", progress=False)
    images = {"pad": 4, "flip": True, "border": "black"}
    assert run.config["transform"] == {"mean": list(MEAN), "std": list(STD), **images}
    assert json.loads((tmp_path / "a" / "config.json").read_text()) == json.loads(json.dumps(run.config))
    again = ct.fit(net(), fed, algorithm(), rounds=2, out=tmp_path / "a", resume=True, progress=False)
    assert again.history == run.history
    other = replace(fed, transform=replace(RANDOM, pad=2))
    with pytest.raises(ct.UserError, match=r"transform\.pad: 4 there, 2 here"):
        ct.fit(net(), other, algorithm(), rounds=2, out=tmp_path / "a", resume=True, progress=False)
    assert ct.fit(net(), federation(None), algorithm(), rounds=1, progress=False).config["transform"] is None


def test_a_configuration_brings_its_preparation_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = replace(federation(RANDOM), origin={"source": "own"})
    monkeypatch.setattr("coterie.data.federate", lambda **data: replace(fed, transform=PLAIN))
    run = ct.fit(ct.models.build("logreg", fed), fed, ct.algorithms.local(epochs=1), rounds=1, progress=False)
    _, rebuilt, _ = config.rebuild(json.loads(json.dumps(run.config)))
    assert rebuilt.transform == fed.transform
    assert rebuilt.fingerprint() == fed.fingerprint()


def test_the_fingerprint_knows_the_preparation() -> None:
    fed = federation(PLAIN)
    others = [RANDOM, replace(PLAIN, flip=True), replace(PLAIN, mean=(0.5, 0.4, 0.31))]
    prints = {replace(fed, transform=p).fingerprint() for p in (PLAIN, *others)}
    assert len(prints) == 4
    assert replace(fed, transform=Transform(list(MEAN), list(STD))).fingerprint() == fed.fingerprint()  # type: ignore[arg-type]
    assert hash(Transform(list(MEAN), list(STD))) == hash(PLAIN)  # type: ignore[arg-type]


def test_probes_see_what_models_see() -> None:
    fed = federation(RANDOM)
    assert torch.equal(fed.sample(3), PLAIN.plain(fed.x[:3]))
    ready = federation(None)
    assert torch.equal(ready.sample(3), ready.x[:3])


@pytest.mark.parametrize(
    ("x", "transform", "message"),
    [
        (pictures(2), None, r"the samples are uint8: .* transform=Transform\(mean, std\)"),
        (pictures(2), Transform((0.5,), (0.5,)), "3 channels, mean and std 1: give one number a channel"),
        (torch.rand(2, 3, 6, 5), PLAIN, r"for uint8 images .* not for float32 of shape \(3, 6, 5\): leave it out"),
        (pictures(2)[:, :, 0], PLAIN, r"not for uint8 of shape \(3, 5\)"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(x: Tensor, transform: Transform | None, message: str) -> None:
    pairs = [(x, torch.tensor([0, 1]))]
    with pytest.raises(ct.UserError, match=message):
        ct.data.from_tensors(pairs, pairs, transform=transform)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "one mean and one positive std a channel"),
        ({"mean": (), "std": ()}, "one mean and one positive std a channel"),
        ({"mean": (0.5,), "std": (0.0,)}, "one mean and one positive std a channel"),
        ({"mean": (0.5,), "std": (float("nan"),)}, "one mean and one positive std a channel"),
        ({"mean": 0.5, "std": (0.5,)}, "mean=0.5 is no list of numbers"),
        ({"mean": (0.5,), "std": (0.5,), "pad": -1}, "pad=-1 is out of range: it must be a number at least 0"),
        ({"mean": (0.5,), "std": (0.5,), "pad": 1.5}, "pad=1.5 does not fit class Transform: pad takes an integer"),
        (
            {"mean": (0.5,), "std": (0.5,), "pad": 1, "border": "gray"},
            "border='gray' is not a choice: use black or mean",
        ),
    ],
)
def test_no_preparation_gets_a_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ct.UserError, match=message):
        Transform(**values)
