"""Dropout by counter: masks are random, belong to their step, and are the same on every engine."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.data.batches import Amount, Batch
from coterie.engines import Engine, Graphed, Serial, Vectorized
from coterie.engines.capture import flat
from coterie.engines.compiler import compiled
from coterie.engines.dropout import CounterDropout, hashed
from coterie.models.model import Model, cross_entropy
from coterie.models.trials import draws_randomness, drops_out
from coterie.training.experiment import Experiment
from coterie.training.select_engine import Candidate, Work
from laws import build
from toys import dropping, experiment, in_place, models, net, play, ragged

KEY = torch.tensor([5])
NEVER = 1e-13  # a probability that goes through all of the code and drops nothing


def dropped(key: int, p: float, shape: tuple[int, ...], before: int = 0) -> Tensor:
    """Where the next dropout drops; ``before``: how many came first."""
    masks = CounterDropout(torch.tensor([key]))
    with masks:
        for _ in range(before):
            F.dropout(torch.ones(1))
        return F.dropout(torch.ones(shape), p) == 0


class TestMasks:
    """Consecutive keys are the worst case: those of steps are random."""

    @pytest.mark.parametrize("p", [0.1, 0.5])
    @pytest.mark.parametrize("shape", [(8, 32), (4, 8, 8), (2, 4, 4, 8)])
    def test_elements_are_independent_with_probability_p(self, p: float, shape: tuple[int, ...]) -> None:
        keys = 1000
        centered = torch.stack([dropped(key, p, shape).flatten() for key in range(keys)]).double() - p
        n, variance = centered.shape[1], p * (1 - p)
        assert abs(centered.mean()) < 4 * math.sqrt(variance / (n * keys))
        for each in (centered, centered.T):  # positions over all keys; keys over all positions
            count, times = len(each.T), len(each)
            chi_square = (each.sum(0) ** 2).sum() / (times * variance)
            assert abs(chi_square - count) < 4 * math.sqrt(2 * count)
            correlation = (each.T @ each / (times * variance)).fill_diagonal_(0) * math.sqrt(times)
            # Of 200 tables of independent draws the largest was 7.8, and the mean square 1.00 +- 0.014 for p = 0.1.
            assert correlation.abs().max() < 8
            assert correlation.square().mean() == pytest.approx(1, abs=4 * 0.014)

    @pytest.mark.parametrize("which", ["calls", "rows", "columns"])
    def test_parts_of_a_pass_are_independent(self, which: str) -> None:
        each = {
            "calls": lambda: torch.stack([dropped(7, 0.5, (64, 64), before).flatten() for before in range(128)]),
            "rows": lambda: dropped(7, 0.5, (128, 8192)),
            "columns": lambda: dropped(7, 0.5, (8192, 128)).T,
        }[which]().double() - 0.5
        correlation = (each @ each.T / (each.shape[1] * 0.25)).fill_diagonal_(0) * math.sqrt(each.shape[1])
        assert correlation.abs().max() < 5.5
        assert correlation.square().mean() == pytest.approx(1, abs=0.05)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own modules
    def test_the_compiler_comes_to_the_same_numbers(self) -> None:
        key = torch.tensor(-(3**39), device="cuda")
        for shape in ((40,), (3, 8), (13, 8, 9), (8, 2, 5, 5), (3, 4, 5, 6, 7)):
            out = torch.zeros(shape, dtype=torch.int32, device="cuda")
            compiled(flat(lambda out, key: [hashed(key, 2, out.shape)], [out, key]))([out, key])
            assert torch.equal(out.cpu(), hashed(key.cpu(), 2, shape))

    @pytest.mark.parametrize("shape", [(9,), (5, 7), (4, 5, 6), (3, 4, 5, 6)])
    def test_padding_any_dimension_leaves_the_others_alone(self, shape: tuple[int, ...]) -> None:
        mine = hashed(KEY[0], 1, shape)
        for d in range(len(shape)):
            padded = hashed(KEY[0], 1, (*shape[:d], shape[d] + 3, *shape[d + 1 :]))
            assert torch.equal(padded.narrow(d, 0, shape[d]), mine)

    def test_all_ways_to_run_give_the_same_numbers(self) -> None:
        keys = torch.randint(-(2**63), 2**63 - 1, (4, 1), generator=torch.Generator().manual_seed(0))
        alone = torch.stack([hashed(key[0], 2, (3, 5, 6)) for key in keys])
        assert torch.equal(torch.func.vmap(lambda key: hashed(key[0], 2, (3, 5, 6)))(keys), alone)
        out = torch.zeros_like(alone[0])
        graph = flat(lambda out, key: [hashed(key, 2, (3, 5, 6))], [out, keys[0, 0]])
        for key, expected in zip(keys, alone, strict=True):  # other keys than it was made with
            graph(out, key[0])
            assert torch.equal(out, expected)


class TestFunctions:
    """What torch's functions promise, with other masks."""

    @pytest.mark.parametrize("inplace", [False, True])
    def test_what_is_kept_is_scaled(self, inplace: bool) -> None:
        x = torch.randn(30, 40).double()
        leaf = x.clone().requires_grad_()
        with CounterDropout(KEY):
            given = leaf * 1
            out = F.dropout(given, 0.2, inplace=inplace)
        kept = out != 0
        torch.testing.assert_close(out, torch.where(kept, x / 0.8, 0.0))
        torch.testing.assert_close(torch.autograd.grad(out.sum(), leaf)[0], kept.double() / 0.8)
        assert (given is out) is inplace
        assert 0.15 < float((~kept).double().mean()) < 0.25

    @pytest.mark.parametrize(
        ("drop", "shape", "channels"),
        [
            (F.dropout1d, (40, 6, 5), 2),
            (F.dropout1d, (240, 5), 1),
            (F.dropout2d, (40, 6, 5, 3), 2),
            (F.dropout3d, (40, 6, 5, 3, 2), 2),
            (F.dropout3d, (240, 5, 3, 2), 1),
        ],
    )
    def test_channels_are_dropped_as_a_whole(self, drop: Any, shape: tuple[int, ...], channels: int) -> None:
        with CounterDropout(KEY):
            parts = drop(torch.ones(shape), 0.3).flatten(channels)
        assert torch.equal(parts, parts[..., :1].expand_as(parts))
        assert 0.2 < float((parts[..., 0] == 0).float().mean()) < 0.4

    @pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout])
    def test_alpha_dropout_keeps_mean_and_variance(self, drop: Any) -> None:
        x = torch.randn(200, 300, 2, generator=torch.Generator().manual_seed(0))
        with CounterDropout(KEY):
            out = drop(x, 0.3, training=True)
        assert float(out.mean()) == pytest.approx(0, abs=0.02)
        assert float(out.var()) == pytest.approx(1, abs=0.02)
        lowest = out[out == out.flatten().mode().values]
        assert len(lowest) / out.numel() == pytest.approx(0.3, abs=0.01)  # all that is dropped has one value
        a = (0.7 * (1 + 0.3 * 1.7580993**2)) ** -0.5
        assert float(lowest[0]) == pytest.approx(a * -1.7580993 * 0.7)

    def test_where_nothing_is_drawn_nothing_changes(self) -> None:
        x, masks = torch.randn(3, 4), CounterDropout(KEY)
        with masks:
            assert torch.equal(F.dropout(x, 0.5, training=False), x)
            assert torch.equal(F.dropout(x, 0.0), x)
            assert torch.equal(F.dropout(x, 1.0), torch.zeros(3, 4))
            with pytest.raises(ValueError, match="probability"):
                F.dropout(x, 1.5)
        assert masks.calls == 0

    @pytest.mark.parametrize("options", ["plain", "causal", "bool", "float", "scale", "grouped"])
    def test_attention_is_torchs(self, options: str) -> None:
        g = torch.Generator().manual_seed(0)
        q, k, v = torch.randn(3, 2, 4, 5, 6, generator=g, dtype=torch.float64)
        allowed = torch.rand(2, 1, 5, 5, generator=g) > 0.4
        allowed[0, 0, 2] = False  # this position may look at nothing
        more: dict[str, Any] = {
            "plain": {},
            "causal": {"is_causal": True},
            "bool": {"attn_mask": allowed},
            "float": {"attn_mask": torch.randn(5, 5, generator=g, dtype=torch.float64)},
            "scale": {"scale": 0.3},
            "grouped": {"enable_gqa": True},
        }[options]
        k, v = (k[:, :2], v[:, :2]) if options == "grouped" else (k, v)
        with CounterDropout(KEY):
            own = F.scaled_dot_product_attention(q, k, v, dropout_p=NEVER, **more)
            other = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **more)
        torch.testing.assert_close(own, F.scaled_dot_product_attention(q, k, v, **more))
        assert not torch.allclose(own, other)

    @pytest.mark.parametrize("weights", [False, True])
    def test_multihead_attention_drops_by_counter(self, weights: bool) -> None:
        torch.manual_seed(0)
        x, layer = torch.randn(2, 5, 8), nn.MultiheadAttention(8, 2, dropout=NEVER, batch_first=True)
        with CounterDropout(KEY):
            own = layer(x, x, x, need_weights=weights)[0]
        layer.dropout = 0.0
        torch.testing.assert_close(own, layer(x, x, x, need_weights=weights)[0])
        layer.dropout, before = 0.5, torch.random.get_rng_state()
        with CounterDropout(KEY):
            first, second = (layer(x, x, x, need_weights=weights)[0] for _ in range(2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert not torch.allclose(first, second)

    def test_multihead_attention_looks_at_its_mask(self) -> None:
        torch.manual_seed(0)
        x, layer = torch.randn(2, 5, 8), nn.MultiheadAttention(8, 2, dropout=NEVER, batch_first=True)
        ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
        with CounterDropout(KEY):
            own = layer(x, x, x, attn_mask=ahead)[0]
        layer.dropout = 0.0
        torch.testing.assert_close(own, layer(x, x, x, attn_mask=ahead)[0])


def graphed(chunk: int) -> Graphed:
    return Graphed(chunk, False, torch.device("cpu"), in_place, lanes=2)


def trained(kind: str, row: str, engine: Engine, seed: int = 0) -> dict[str, Tensor]:
    """After two rounds with clients of unequal size: beside each other their batches are padded."""
    return models(experiment(dropping(kind), ragged("tokens"), build(row), engine, seed), rounds=2)


@pytest.mark.parametrize(
    ("kind", "row", "engines"),
    [
        ("ours", "dfedalt", [Serial(workers=2), Vectorized(3), graphed(1), graphed(3)]),
        ("batch first", "fedavg", [Vectorized(3), graphed(1), graphed(3)]),
        ("tokens first", "dfedsalt", [Vectorized(5), graphed(3)]),  # both gradients of a step have one mask
    ],
    ids=["ours", "batch first", "tokens first"],
)
def test_engines_drop_the_same(kind: str, row: str, engines: list[Engine]) -> None:
    alone = trained(kind, row, Serial())
    for engine in engines:
        for name, v in trained(kind, row, engine).items():
            torch.testing.assert_close(v, alone[name], rtol=1e-10, atol=1e-10, msg=lambda m, e=engine: f"{e.name}: {m}")
    other = trained(kind, row, Serial(), seed=1)
    assert not torch.allclose(other["head.weight"], alone["head.weight"], atol=1e-4)


def test_narrow_and_fine_tuned_models_drop_the_same() -> None:
    tokens = torch.randint(0, 9, (30, 6), generator=torch.Generator().manual_seed(0))
    parts = [(part, part) for part in tokens.split([9, 4, 13, 4])]
    fed = ct.data.from_tensors(train=parts, test=parts, classes=9)
    module = ct.models.build("transformer-mlm:dim=8,heads=2,hidden=12,layers=1,dropout=0.3", fed).double()
    shared = {"participation": 1.0, "batch_size": 4, "epochs": 1, "lr": 0.1}
    alg = ct.algorithms.heterofl(capacities="1-0.5", finetune_epochs=1, **shared)
    ends = []
    for engine in (Serial(), graphed(2)):
        e = experiment(module, fed, alg, engine)
        now = play(e, 1)
        assert e.program.finetune is not None
        ends.append([group.models for group in e.program.finetune(now.state, e.everybody(0))])
    for slow, fast in zip(*ends, strict=True):
        for name in slow:
            torch.testing.assert_close(fast[name], slow[name], rtol=1e-10, atol=1e-10)


class Exposed(nn.Module):
    """The gradient of every weight is its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.weight, 0.5, self.training).sum() + 0 * x.sum(1)


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2), graphed(1), graphed(2)], ids=lambda engine: engine.name)
def test_no_two_steps_have_the_same_mask(engine: Engine) -> None:
    """Each step adds its mask in a digit of its own; traces and recorded steps get fresh ones."""
    x = torch.zeros(10, 2, dtype=torch.float64)
    fed = ct.data.from_tensors(train=[(x, x[:, 0])] * 2, test=[(x, x[:, 0])] * 2)
    rates = {"momentum": 0.0, "weight_decay": 0.0, "clip": None, "lr_decay": 0.01}
    alg = ct.algorithms.local(lr=0.5, batch_size=None, epochs=1, **rates)
    e = experiment(Exposed(), fed, alg, engine)
    seen, now = [], e.start()
    for t in range(4):
        before = e.program.models(now.state)["weight"]
        now, _ = e.run_round(now, t, evaluate=False)
        seen.extend((before - e.program.models(now.state)["weight"] > 0).unbind())
    assert len({tuple(mask.tolist()) for mask in seen}) == 8
    assert all(16 < int(mask.sum()) < 48 for mask in seen)
    if isinstance(engine, Vectorized):
        assert any(engine._traces._known.values())


def test_every_step_of_every_phase_has_a_key_of_its_own() -> None:
    e = experiment(dropping("ours"), ragged("tokens"), build("dfedalt"))
    rounds = [e.round(t).batches(stream, Amount(epochs=3), 4) for t in (0, 1) for stream in (0, 1)]
    keys = [batches.block(np.arange(5)).dropout for batches in rounds]
    assert all(v is not None and v.shape == (5, 6, 1) for v in keys)
    assert len(torch.cat(keys).flatten().unique()) == 4 * 5 * 6
    assert torch.equal(keys[3][2], rounds[3].one(2).dropout)  # whoever runs beside it
    plain = experiment(net("tokens"), ragged("tokens"), build("dfedalt"))
    assert plain.round(0).batches(0, Amount(epochs=1), 4).block(np.arange(5)).dropout is None


def test_a_resumed_run_drops_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, fed = dropping("batch first").float(), ragged("tokens", torch.float32)

    def fit(**options: Any) -> list[Tensor]:
        found = ct.fit(module, fed, build("dfedalt"), rounds=2, engine="vectorized:2", progress=False, **options)
        return [v for client in found.clients for v in (*client.shared.values(), *client.personal.values())]

    def interrupted(self: Experiment, before: Any, t: int, evaluate: bool) -> Any:
        if t == 1:
            raise KeyboardInterrupt
        return run_round(self, before, t, evaluate)

    whole, run_round = fit(), Experiment.run_round
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "run_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(out=tmp_path / "a")
    assert all(map(torch.equal, fit(out=tmp_path / "a", resume=True), whole))


class Other(nn.Module):
    """Draws what it is told to, without a module that says so."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.draw(self.layer(x), self.training)
        return out


def recording(model: Model, probe: Batch) -> Candidate:
    """A model that can be lifted, for a GPU."""
    return Candidate(model, probe, probe.y, Work(2, 4, 10**6), torch.device("cuda"), lambda engine: None)


@pytest.mark.parametrize(
    ("draw", "drops", "draws"),
    [
        (lambda h, training: F.dropout(h, 0.1, training), True, False),
        (lambda h, training: F.dropout(h, 0.0, training), False, False),
        (lambda h, training: F.dropout(h, 0.1), True, True),  # in evaluation, too, where there is no key
        (lambda h, training: h + torch.rand_like(h), False, True),
        (lambda h, training: torch.dropout(h, 0.1, training), False, True),  # below the functions that are replaced
    ],
    ids=["dropout", "none", "always", "noise", "below"],
)
def test_who_drops_and_who_draws_is_found_by_trying(draw: Any, drops: bool, draws: bool) -> None:
    model, x = Model(Other(draw), cross_entropy), torch.randn(4, 4)
    probe = Batch(x, torch.tensor([0, 1, 2, 0]), None, KEY)
    before = torch.random.get_rng_state()
    assert drops_out(model, x) is drops
    assert draws_randomness(model, probe) is draws
    assert torch.equal(torch.random.get_rng_state(), before)
    refused = recording(model, probe).cannot_record
    assert refused == ("a step draws random numbers, which a recorded one would repeat" if draws else None)


def test_built_in_and_torchs_transformers_can_be_recorded() -> None:
    x = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))
    ours = ct.models.build("transformer-mlm:dim=8,heads=2,hidden=12,layers=2", classes=9, input_shape=(6,))
    for module, y in ((ours, x), (dropping("tokens first"), torch.tensor([0, 1, 2, 0]))):
        model = Model(module, cross_entropy)
        assert drops_out(model, x)
        assert recording(model, Batch(x, y, None, KEY)).cannot_record is None
        assert recording(model, Batch(x, y, None)).cannot_record is not None


def test_evaluation_ignores_the_key() -> None:
    model, x = Model(dropping("ours"), cross_entropy), torch.randint(0, 9, (4, 8))
    losses = [
        model.eval_objective(model.start, {}, Batch(x, x[:, 0] % 3, None, key))[0] for key in (None, KEY, KEY + 1)
    ]
    assert losses[0] == losses[1] == losses[2]
    first, same, other = (model.objective(model.start, {}, Batch(x, x[:, 0] % 3, None, KEY + i))[0] for i in (0, 0, 1))
    assert first == same != other
