"""Batches drawn with replacement: independent and uniform, keyed like all draws, alike on every engine."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms.base import Round
from coterie.core.errors import UserError
from coterie.data import Transform
from coterie.data.batches import Amount, Batches, Samples
from coterie.engines import Engine, Serial, Vectorized
from coterie.papers.theory.quadratic import SAMPLES, batch_variance
from toys import experiment, models, net, ragged

SIZES = (12, 5, 1, 9)
OPTIONS: dict[str, Any] = {
    "lr": 0.1,
    "lr_decay": 1.0,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "clip": None,
    "batch_size": 4,
    "epochs": 2,
    "replacement": True,
}
ENGINES: dict[str, Engine] = {"serial": Serial(), "vectorized": Vectorized(5), "chunks": Vectorized(2)}


def owned(sizes: tuple[int, ...] = SIZES, transform: Transform | None = None) -> Samples:
    """Black pictures whose places are shuffled among the clients."""
    n = sum(sizes)
    places = torch.split(torch.randperm(n, generator=torch.Generator().manual_seed(0)), sizes)
    return Samples(torch.zeros(n, 3, 6, 5, dtype=torch.uint8), torch.arange(n), places, transform)


def drawing(samples: Samples, clients: list[int], amount: Amount, key: int = 1, replacement: bool = True) -> Batches:
    return Batches(samples, np.array(clients), amount, 4, key, replacement=replacement)


def test_steps_and_widths_are_those_of_passes_and_draws_are_the_clients_own() -> None:
    samples, amount = owned(), Amount(epochs=3)
    with_, without = (drawing(samples, [0, 1, 2, 3], amount, replacement=r) for r in (True, False))
    assert (with_.steps.tolist(), with_.seen) == (without.steps.tolist(), without.seen)
    for client in range(4):
        one, other = with_.one(client), without.one(client)
        assert (one.index.shape, list(one.widths)) == (other.index.shape, list(other.widths))
        assert set(one.index.flatten().tolist()) <= set(samples.owned[client].tolist())
        alone = drawing(samples, [client], amount).one(0)  # whoever else takes part
        assert torch.equal(one.index, alone.index)
    again, other_key = (drawing(samples, [0], amount, key).one(0).index for key in (1, 2))
    assert torch.equal(again, with_.one(0).index)
    assert not torch.equal(again, other_key)


def test_draws_are_uniform_and_the_batches_of_a_pass_independent() -> None:
    """Against what is known of draws: of 32,000 over 16 samples, each is expected 2,000 times."""
    for replacement, spread in ((True, 1.0), (False, 0.0)):
        batches = drawing(owned((16,)), [0], Amount(epochs=2000), replacement=replacement)
        local = batches.one(0).index
        counts = local.flatten().bincount().double()
        chi2 = float((counts - 2000).square().sum() / 2000)
        assert (chi2 < 37.7) if replacement else (chi2 == 0)  # 0.999 of chi squared with 15 degrees of freedom
        value = torch.linspace(-1, 1, 16, dtype=torch.float64)[local].mean(1).view(2000, 4)
        variance = float((torch.linspace(-1, 1, 16, dtype=torch.float64) ** 2).mean()) / 4
        of_pass = float(value.sum(1).square().mean() / (4 * variance))  # 1 where the four are independent, 0 in a pass
        assert of_pass == pytest.approx(spread, abs=0.1)
        first = float(value[:, 0].square().mean())
        assert first == pytest.approx(variance * (1 if replacement else 12 / 15), rel=0.1)
    twice = [len(set(row)) < 4 for row in drawing(owned((16,)), [0], Amount(epochs=2000)).one(0).index.tolist()]
    assert np.mean(twice) == pytest.approx(1 - 15 * 14 * 13 / 16**3, abs=0.02)


def test_a_sample_that_is_drawn_twice_is_augmented_twice() -> None:
    stream = drawing(owned((3,), Transform((0.5,) * 3, (0.5,) * 3, pad=2, flip=True)), [0], Amount(epochs=40)).one(0)
    assert stream.draw is not None
    assert len(stream.draw.flatten().unique()) == stream.draw.numel() == 120


def torch_models() -> dict[str, torch.Tensor]:
    """Every client's model after two rounds alone, by torch's optimizer on the batches of the rounds."""
    e = experiment(net("mlp"), ragged("mlp"), ct.algorithms.local(**OPTIONS))
    everybody = []
    for client in range(5):
        module = net("mlp")
        for t in range(2):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
            stream = e.round(t).batches(0, Amount(epochs=2), 4, replacement=True).one(client)
            for k in range(stream.steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(stream.batch(k).x), stream.batch(k).y).backward()
                optimizer.step()
        everybody.append({k: v.detach() for k, v in module.named_parameters()})
    return {k: torch.stack([m[k] for m in everybody]) for k in everybody[0]}


def test_engines_train_on_these_batches() -> None:
    expected = torch_models()
    for engine in ENGINES.values():
        found = models(experiment(net("mlp"), ragged("mlp"), ct.algorithms.local(**OPTIONS), engine), rounds=2)
        for k, v in expected.items():
            torch.testing.assert_close(found[k], v, rtol=1e-10, atol=1e-10)


WITH_MORE_DRAWS: dict[str, dict[str, Any]] = {
    "scaffold-p": {"c_init": "gradient"},  # whose first variates are mean gradients of a round's batches
    "fedavg": {"finetune_epochs": 1},
    "dispfl": {"topology": "full", "regrow": "gradient"},
}


@pytest.mark.parametrize("method", WITH_MORE_DRAWS)
def test_all_batches_of_training_are_drawn_so(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[int, bool] = {}
    batches = Round.batches

    def noting(self: Round, stream: int, *more: Any) -> Batches:
        made = batches(self, stream, *more)
        drawn[stream] = made.replacement
        return made

    monkeypatch.setattr(Round, "batches", noting)
    for replacement in (True, False):
        drawn.clear()
        asked = {"lr": 0.05, "clip": None, "weight_decay": 0.0, "batch_size": 4, **WITH_MORE_DRAWS[method]}
        algorithm = ct.algorithms.build(method, replacement=replacement, **asked)
        ct.fit(net("mlp", torch.float32), ragged("mlp", torch.float32), algorithm, rounds=1, progress=False)
        assert len(drawn) == 2
        assert set(drawn.values()) == {replacement}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "all samples in every step": ("fedavg", {"batch_size": None}, "give batch_size"),
    "a method that takes all unless told": ("fedavg-p", {}, "give batch_size"),
    "exact gradients": ("fedavg-p", {"batch_size": 4, "exact_personal": True}, "leave it out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_where_it_has_no_effect(case: str) -> None:
    method, asked, told = REFUSED[case]
    with pytest.raises(UserError, match=told):
        ct.algorithms.build(method, replacement=True, **asked)


def test_the_variance_of_a_batch_is_that_of_independent_draws() -> None:
    assert batch_variance(3.0, 5, replacement=True) == pytest.approx(9 / 5)
    assert batch_variance(3.0, SAMPLES, replacement=True) == pytest.approx(9 / SAMPLES)
    assert batch_variance(3.0, SAMPLES) == 0
    more = ct.theory.examine("dfedsam", clients=4, rounds=2, topology="full", batch_size=4, replacement=True)
    assert more.constant("sigma_l") == pytest.approx((2 * 0.25 / 4) ** 0.5)


def test_the_run_records_it() -> None:
    fed = ragged("mlp", torch.float32)
    run = ct.fit(net("mlp", torch.float32), fed, ct.algorithms.fedavg(**OPTIONS), rounds=1, progress=False)
    assert run.config["settings"]["replacement"] is True
