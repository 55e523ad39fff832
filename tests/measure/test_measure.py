"""What is measured is what the words say."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie import measure
from coterie.core.errors import UserError
from coterie.core.schema import ACCURACY
from coterie.core.tensors import Tensors, replicate
from coterie.data.batches import Samples
from coterie.engines import Serial, Vectorized
from coterie.measure.perplexity import global_perplexity, perplexities
from coterie.models import cost
from coterie.models.model import Model, cross_entropy
from toys import experiment, net, ragged

BOTH = pytest.mark.parametrize("engine", [Serial(), Vectorized(2)], ids=["serial", "vectorized"])


class Constant(nn.Module):
    """Always answers the same class."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(nn.functional.one_hot(torch.tensor(k), 3).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(len(x), 3)


def accuracies(engine: Any, model: Model, models: Tensors, tests: Samples, clients: Any) -> Tensor:
    """[m] the accuracy of each client's own model on its own test samples."""
    metrics = measure.metrics_for(model, tests.x[:1], tests.y, ["accuracy"])
    return measure.personal_values(engine, model, models, tests, clients, metrics)[:, 0]


@BOTH
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_constant_answer_scores_the_class_fraction(engine: Any, k: int) -> None:
    fed = ragged("mlp")
    model = Model(Constant(k), cross_entropy)
    tests = Samples(fed.test_x, fed.test_y, fed.test)
    got = accuracies(engine, model, replicate(model.start, 5), tests, np.arange(5))
    assert got.tolist() == [float((fed.test_y[i] == k).double().mean()) for i in fed.test]
    assert measure.global_accuracy(engine, model, model.start, tests) == float((fed.test_y == k).double().mean())


@BOTH
def test_a_client_without_tests_does_not_count(engine: Any) -> None:
    fed = ragged("mlp")
    model = Model(net("mlp"), cross_entropy)
    tests = Samples(fed.test_x, fed.test_y, (*fed.test[:4], torch.empty(0, dtype=torch.int64)))
    got = accuracies(engine, model, replicate(model.start, 5), tests, np.arange(5))
    assert got[4].isnan()
    row = measure.metric_row(ACCURACY, "after_mix", got, tests.sizes)
    assert row["personal_accuracy_after_mix"] == pytest.approx(float(got[:4].mean()))


@BOTH
@pytest.mark.parametrize("company", [True, False])
def test_one_model_is_counted_for_every_owner(engine: Any, company: bool) -> None:
    """Samples have several owners or none, and the first client has no samples; ``company``: matters to the answers."""
    fed = ragged("mlp")
    norm = nn.BatchNorm1d(16, track_running_stats=not company, dtype=torch.float64)
    model = Model(nn.Sequential(nn.Flatten(), norm, nn.Linear(16, 3, dtype=torch.float64)), cross_entropy)
    none, owned = torch.empty(0, dtype=torch.int64), (torch.arange(1, 7), torch.arange(4, 9), torch.tensor([2, 3, 8]))
    tests = Samples(fed.test_x[:10], fed.test_y[:10], (none, *owned))
    metrics = measure.metrics_for(model, tests.x[:2], tests.y, ["accuracy"])
    common = measure.measure_common(engine, model, model.start, tests, np.arange(4), metrics)

    def by_hand(which: Tensor) -> float:
        return float((model.outputs(model.start, tests.x[which]).argmax(1) == tests.y[which]).double().mean())

    assert common.each[0].isnan()
    assert common.each[1:, 0].tolist() == [*map(by_hand, owned)]
    assert sorted(common.places.tolist()) == list(range(10))  # every sample once
    if not company:
        assert float(metrics.value(common.statistics)) == by_hand(torch.arange(10))


class Table(nn.Module):
    """For every token the scores of the token that stands there."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores[x].transpose(1, 2)


V, T = 6, 7  # tokens and the length of a sample


def tokens(sizes: tuple[int, ...] = (3, 40, 1, 38)) -> Samples:
    """Clients of unequally many samples, more than one batch of them, their inputs over V + 1 tokens."""
    g, n = torch.Generator().manual_seed(5), sum(sizes)
    x, y = (torch.randint(0, k, (n, T), generator=g) for k in (V + 1, V))
    return Samples(x, y, torch.split(torch.randperm(n, generator=g), sizes))


def tables(n: int) -> tuple[Model, dict[str, Tensor]]:
    """A table model and n clients' own tables."""
    model = Model(Table(torch.zeros(V + 1, V, dtype=torch.float64)), cross_entropy)
    own = torch.randn(n, V + 1, V, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    return model, {"scores": 2 * own}


@BOTH
def test_the_accuracy_of_a_sample_is_the_share_of_its_targets(engine: Any) -> None:
    tests, (model, models) = tokens(), tables(4)
    got = accuracies(engine, model, models, tests, np.arange(4))
    for i, mine in enumerate(tests.owned):
        shares = (models["scores"][i][tests.x[mine]].argmax(2) == tests.y[mine]).double().mean(1)
        assert float(got[i]) == pytest.approx(float(shares.mean()), rel=1e-12)
    one = {"scores": models["scores"][1]}
    whole = (one["scores"][tests.x].argmax(2) == tests.y).double().mean()
    assert measure.global_accuracy(engine, model, one, tests) == pytest.approx(float(whole), rel=1e-12)


@BOTH
def test_perplexity_of_a_table(engine: Any) -> None:
    """Against the probabilities read from the table, position by position."""
    tests, (model, models) = tokens(), tables(4)
    got = perplexities(engine, model, models, tests)
    for i, mine in enumerate(tests.owned):
        p = models["scores"][i].softmax(1)[tests.x[mine], tests.y[mine]]  # [N_i, T]
        assert float(got.overall[i]) == pytest.approx(float(p.log().mean().neg().exp()), rel=1e-12)
        assert float(got.chunks[i]) == pytest.approx(float(p.prod(1).pow(-1 / T).mean()), rel=1e-12)
    assert (got.chunks >= got.overall * (1 - 1e-12)).all()  # Jensen
    assert float(got.chunks[2]) == pytest.approx(float(got.overall[2]), rel=1e-12)  # a single chunk
    assert float(got.chunks[0]) > float(got.overall[0])
    second = Samples(*(v[tests.owned[1]] for v in (tests.x, tests.y)), ())
    alone = global_perplexity(model, {"scores": models["scores"][1]}, second)
    assert (float(alone.overall), float(alone.chunks)) == pytest.approx((float(got.overall[1]), float(got.chunks[1])))


@BOTH
def test_who_knows_nothing_hesitates_between_all_tokens(engine: Any) -> None:
    tests, (model, _) = tokens((3, 5, 0)), tables(1)
    got = perplexities(engine, model, replicate(model.start, 3), tests)
    for each in got:
        assert each[:2].tolist() == pytest.approx([V, V], rel=1e-12)
        assert each[2].isnan()
    assert [float(v) for v in global_perplexity(model, model.start, tests)] == pytest.approx([V, V])


def test_equally_hard_chunks_have_one_perplexity() -> None:
    """Every chunk has the same tokens in another order."""
    x = torch.stack([torch.arange(V).roll(i) for i in range(V)])
    model, models = tables(1)
    got = global_perplexity(model, {"scores": models["scores"][0]}, Samples(x, x, ()))
    assert float(got.chunks) == pytest.approx(float(got.overall), rel=1e-12)


def test_recorded_perplexity() -> None:
    """Of everybody's own model and of the mean one, between peers."""
    tests = tokens()
    pairs = [(tests.x[mine], tests.y[mine]) for mine in tests.owned]
    fed = ct.data.from_tensors(train=pairs, test=pairs, classes=V)
    alg = ct.algorithms.dfedavg(topology="ring", lr=1.0, epochs=1, batch_size=4)
    run = ct.fit(
        lambda: Table(torch.zeros(V + 1, V)),
        fed,
        alg,
        rounds=2,
        evaluate_every=2,
        engine="serial",
        record=["perplexity"],
        progress=False,
    )
    names = {"perplexity", "perplexity_chunks", "global_perplexity", "global_perplexity_chunks"}
    assert not names & set(run.history[0])
    row = run.history[1]
    own = [
        global_perplexity(Model(c.module(), cross_entropy), {**c.shared, **c.personal}, Samples(*p, ()))
        for c, p in zip(run.clients, pairs, strict=True)
    ]
    assert row["perplexity"] == pytest.approx(np.mean([float(p.overall) for p in own]), rel=1e-6)
    assert row["perplexity_chunks"] == pytest.approx(np.mean([float(p.chunks) for p in own]), rel=1e-6)
    center = torch.stack([c.shared["scores"] for c in run.clients]).mean(0)
    common = global_perplexity(
        Model(Table(center), cross_entropy), {"scores": center}, Samples(fed.test_x, fed.test_y, ())
    )
    assert row["global_perplexity"] == pytest.approx(float(common.overall), rel=1e-6)
    assert row["global_perplexity_chunks"] == pytest.approx(float(common.chunks), rel=1e-6)


def test_perplexity_is_for_tokens() -> None:
    with pytest.raises(UserError, match="a token at every place"):
        ct.fit(net("mlp"), ragged("mlp"), ct.algorithms.local(), rounds=1, record=["perplexity"], progress=False)


def test_personal_accuracy_by_hand() -> None:
    """The two protocols against a loop over modules."""
    fed, alg = ragged("batchnorm"), ct.algorithms.dfedalt(topology="ring", epochs=2, batch_size=4, personal_lr=0.1)
    e = experiment(net("batchnorm"), fed, alg)
    now, row = e.run_round(e.start(), 0, evaluate=True)
    r = e.round(0)
    for protocol, stacked in (
        ("after_train", e.program.train(e.start().state, r).models),
        ("after_mix", e.program.models(now.state)),
    ):
        accuracies = []
        for i in range(fed.clients):
            module = net("batchnorm")
            module.load_state_dict({k: v[i] for k, v in stacked.items()})
            answers = module.eval()(fed.test_x[fed.test[i]]).argmax(1)
            accuracies.append(float((answers == fed.test_y[fed.test[i]]).double().mean()))
        name = f"personal_accuracy_{protocol}"
        assert row[name] == pytest.approx(np.mean(accuracies))
        assert row[f"{name}_std"] == pytest.approx(np.std(accuracies))
        assert row[f"{name}_worst"] == min(accuracies)
        assert row[f"{name}_p10"] == pytest.approx(np.quantile(accuracies, 0.1))


def test_after_train_of_a_sampled_client_is_its_latest() -> None:
    """Under partial participation a client keeps the accuracy of its last training, whatever is evaluated when."""
    fed = ragged("mlp")
    alg = ct.algorithms.fedavg(participation=2, lr=0.2, epochs=3, batch_size=4)
    e = experiment(net("mlp"), fed, alg)
    expected: dict[int, float] = {}
    now = e.start()
    for t in range(4):
        r = e.round(t)
        trained = e.program.train(now.state, r).models
        tests = accuracies(e.engine, e.model, trained, e.tests, r.cohort)
        expected |= dict(zip(r.cohort.tolist(), tests.tolist(), strict=True))
        now, row = e.run_round(now, t, evaluate=t == 3)
    mixed = accuracies(e.engine, e.model, e.program.models(now.state), e.tests, np.arange(5))
    by_hand = [expected.get(i, float(mixed[i])) for i in range(5)]
    assert row["personal_accuracy_after_train"] == pytest.approx(np.mean(by_hand))


def test_consensus_distance() -> None:
    x = torch.randn(6, 3, 2, dtype=torch.float64)
    expected = sum(float((x[i] - x.mean(0)).square().sum()) for i in range(6)) / 6
    assert measure.consensus_distance({"u": x, "v": torch.randn(6, 1)}, {"u"}) == pytest.approx(expected)
    assert measure.consensus_distance({"u": replicate(torch.randn(5), 3)}, {"u"}) == 0.0
    assert measure.consensus_distance({"v": x}, set()) is None


@pytest.mark.parametrize(
    ("alg", "messages"),
    [
        (ct.algorithms.local(), 0),
        (ct.algorithms.dfedavg(topology="ring"), 10),
        (ct.algorithms.dfedavg(topology="full"), 20),
        (ct.algorithms.dfedalt(topology="random-pull:3"), 15),
        (ct.algorithms.fedavg(participation=3), 6),
        (ct.algorithms.fedper(participation=1.0), 10),
        (ct.algorithms.dfedalt(topology="ring", personal="all"), 0),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_traffic(alg: ct.algorithms.Algorithm, messages: int) -> None:
    """Directed edges, or once down and once up for every member of the cohort, times what is shared."""
    e = experiment(net("mlp", torch.float32), ragged("mlp", torch.float32), alg)
    _, row = e.run_round(e.start(), 0, evaluate=False)
    body, head = 16 * 8 + 8, 8 * 3 + 3
    shared = body if alg.name in ("dfedalt", "fedper") else body + head
    assert row["messages_sent"] == messages
    assert row["parameters_sent"] == messages * shared
    assert row["bytes_sent"] == 4 * messages * shared


def test_integer_buffers_do_not_travel() -> None:
    e = experiment(
        net("batchnorm"), ragged("batchnorm"), ct.algorithms.dfedavg(topology="ring", batch_size=4, epochs=1)
    )
    now, row = e.run_round(e.start(), 0, evaluate=False)
    numbers = sum(v.numel() for v in e.model.start.values()) - 1  # all but num_batches_tracked
    assert row["parameters_sent"] == 10 * numbers
    assert now.state.x["1.num_batches_tracked"].tolist() == [2, 1, 2, 1, 2]  # own steps, unmixed


@pytest.mark.parametrize(
    ("module", "shape", "macs", "extra"),
    [
        (nn.Linear(784, 10), (784,), 7840, 0),
        (nn.Conv2d(3, 8, 3, padding=1, bias=False), (3, 10, 10), 8 * 27 * 100, 0),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1)), (3, 10, 10), 2400, 6 * 800),
    ],
    ids=["linear", "conv", "norm-and-pool"],
)
def test_flops_are_counted(module: nn.Module, shape: tuple[int, ...], macs: int, extra: int) -> None:
    counted = cost(module, torch.zeros(1, *shape))
    assert (counted.macs, counted.flops) == (macs, macs + extra)


def test_training_flops_are_three_forward_passes_a_sample() -> None:
    e = experiment(net("mlp"), ragged("mlp"), ct.algorithms.dfedalt(topology="ring", epochs=2, personal_epochs=1))
    _, row = e.run_round(e.start(), 0, evaluate=False)
    assert row["flops"] == 3 * (16 * 8 + 8 * 3) * 3 * int(e.federation.sizes.sum())


def test_summary_protocols() -> None:
    fed = ragged("mlp")
    run = ct.fit(
        net("mlp"), fed, ct.algorithms.dfedalt(topology="ring", epochs=1, batch_size=4), rounds=20, progress=False
    )
    means = [row["personal_accuracy_after_mix"] for row in run.history]
    summary = run.summary["personal_accuracy"]["after_mix"]
    assert summary["final"] == means[-1]
    assert summary["best"] == max(means)
    assert summary["last_tenth"] == pytest.approx(np.mean(means[-2:]))
    assert summary["worst"] == run.history[-1]["personal_accuracy_after_mix_worst"]
    assert run.summary["bytes_sent"] == sum(row["bytes_sent"] for row in run.history)
    reached = [row["round"] for row in run.history if row["personal_accuracy_after_mix"] >= 0.5]
    assert run.summary["rounds_to"]["50"] == (reached[0] if reached else None)
    json.dumps(run.summary, allow_nan=False)


def test_evaluate_every() -> None:
    fed = ragged("mlp")
    run = ct.fit(
        net("mlp"), fed, ct.algorithms.local(epochs=1), rounds=5, evaluate_every=3, progress=False, engine="serial"
    )
    known = [row["round"] for row in run.history if row["personal_accuracy_after_mix"] is not None]
    assert known == [3, 5]
    assert all(row["train_loss"] is not None for row in run.history)


def test_without_test_samples_there_is_no_accuracy() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    nothing = [(x[:0], y[:0])] * 2
    fed = ct.data.from_tensors(train=[(x[:4], y[:4]), (x[4:], y[4:])], test=nothing, classes=2)
    run = ct.fit(nn.Linear(4, 2), fed, ct.algorithms.local(epochs=1), rounds=2, progress=False)
    assert run.summary["personal_accuracy"]["after_mix"] is None
    assert run.summary["global_accuracy"] is None


def test_regression_has_an_error_and_no_accuracy() -> None:
    x = torch.randn(12, 4)
    y = x.sum(1, keepdim=True)
    fed = ct.data.from_tensors(train=[(x[:6], y[:6]), (x[6:], y[6:])], test=[(x[:6], y[:6]), (x[6:], y[6:])])
    alg = ct.algorithms.dfedavg(topology="full", lr=0.1, epochs=20, batch_size=None)
    run = ct.fit(nn.Linear(4, 1), fed, alg, rounds=5, loss=nn.functional.mse_loss, progress=False)
    assert "personal_accuracy" not in run.summary
    last: Any = run.summary["personal_mse"]["after_mix"]  # type: ignore[typeddict-item]
    assert last["final"] == last["best"] == run.history[-1]["personal_mse_after_mix"]  # type: ignore[typeddict-item]
    assert run.history[-1]["train_loss"] < 0.1 * run.history[0]["train_loss"]
