"""Metrics against scikit-learn, over clients, engines and shards; what does not fit is refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.core.errors import UserError
from coterie.core.schema import ACCURACY, MetricInfo
from coterie.data.batches import Samples
from coterie.engines import Graphed, Serial, Vectorized
from coterie.measure import Metrics, measure_common, metric, metric_row, metrics_for, personal_values
from coterie.measure.compare import Comparison, MethodRuns, RunData
from coterie.measure.evaluate import Answers
from coterie.measure.metric import natural, task_of
from coterie.models.losses import LOSSES
from coterie.models.model import Model, cross_entropy, sample_losses
from toys import in_place

G = torch.Generator().manual_seed(7)


def drawn(*shape: int) -> Tensor:
    """Scores with ties among them."""
    return (4 * torch.randn(*shape, generator=G, dtype=torch.float64)).round() / 4


CASES: dict[str, tuple[Tensor, Tensor]] = {
    "classes": (drawn(90, 4), torch.randint(0, 4, (90,), generator=G)),
    "two": (drawn(60, 2), torch.randint(0, 2, (60,), generator=G)),
    "tokens": (drawn(12, 5, 7), torch.randint(0, 5, (12, 7), generator=G)),
    "pixels": (drawn(6, 3, 5, 4), torch.randint(0, 3, (6, 5, 4), generator=G)),
    "labels": (drawn(50, 3), torch.randint(0, 2, (50, 3), generator=G).double()),
    "masks": (drawn(6, 1, 5, 4), torch.randint(0, 2, (6, 1, 5, 4), generator=G).double()),
    "numbers": (drawn(40, 2), torch.randn(40, 2, generator=G, dtype=torch.float64)),
    "column": (drawn(40, 1), torch.randn(40, generator=G, dtype=torch.float64)),
}


def value(name: Any, outputs: Tensor, targets: Tensor, loss: Any = cross_entropy) -> float:
    """A metric of all samples together, as a run would take it."""
    loss = cross_entropy if not targets.is_floating_point() else F.binary_cross_entropy_with_logits
    metrics = Metrics.of([name], task_of(outputs, targets, loss), outputs[:2], targets[:2])
    halves = [metrics.statistics(outputs[part], targets[part]) for part in (slice(0, 5), slice(5, None))]
    return float(metrics.value(torch.cat(halves)))


def flat(outputs: Tensor, targets: Tensor) -> tuple[Any, Any]:
    return targets.flatten().numpy(), outputs.argmax(1).flatten().numpy()


def oracle(name: str, case: str, outputs: Tensor, targets: Tensor) -> float:
    """The same number by scikit-learn."""
    sk: Any = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed: it is the oracle here")
    if case in ("classes", "two", "tokens", "pixels"):
        y, answered = flat(outputs, targets)
        one_class = outputs.softmax(1)[:, 1] if case == "two" else outputs.softmax(1)
        hot = y if case == "two" else np.eye(outputs.shape[1])[y]
        by_place = outputs.movedim(1, -1).flatten(0, -2)
        found: dict[str, Callable[[], float]] = {
            "accuracy": lambda: sk.accuracy_score(y, answered),
            "balanced-accuracy": lambda: sk.balanced_accuracy_score(y, answered),
            "macro-f1": lambda: sk.f1_score(y, answered, average="macro"),
            "auroc": lambda: sk.roc_auc_score(hot, one_class, average="macro"),
            "average-precision": lambda: sk.average_precision_score(hot, one_class, average="macro"),
            "perplexity": lambda: np.exp(sk.log_loss(y, by_place.softmax(1), labels=range(outputs.shape[1]))),
            "dice": lambda: sk.f1_score(y, answered, average="macro"),
            "iou": lambda: sk.jaccard_score(y, answered, average="macro"),
        }
        return float(found[name]())
    if case in ("labels", "masks"):
        y, answered = targets.flatten(1).numpy(), (outputs > 0).flatten(1).numpy()
        found = {
            "accuracy": lambda: float((y == answered).mean()),
            "macro-f1": lambda: sk.f1_score(y, answered, average="macro"),
            "auroc": lambda: sk.roc_auc_score(y, outputs, average="macro"),
            "average-precision": lambda: sk.average_precision_score(y, outputs, average="macro"),
            "dice": lambda: sk.f1_score(y.ravel(), answered.ravel()),
            "iou": lambda: sk.jaccard_score(y.ravel(), answered.ravel()),
        }
        return float(found[name]())
    y = targets.numpy()
    got = outputs.reshape(targets.shape).numpy()
    functions = {"mse": sk.mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}
    return float(functions[name](y, got))


FITTING = [
    *((name, case) for name in ("accuracy", "balanced-accuracy", "macro-f1", "perplexity") for case in list(CASES)[:4]),
    *((name, case) for name in ("auroc", "average-precision") for case in ("classes", "two", "labels")),
    *((name, "labels") for name in ("accuracy", "macro-f1")),
    *((name, case) for name in ("dice", "iou") for case in ("pixels", "masks")),
    *((name, case) for name in ("mse", "mae", "r2") for case in ("numbers", "column")),
]


@pytest.mark.parametrize(("name", "case"), FITTING)
def test_metrics_are_those_of_scikit_learn(name: str, case: str) -> None:
    assert value(name, *CASES[case]) == pytest.approx(oracle(name, case, *CASES[case]), rel=1e-9)


@pytest.mark.parametrize("name", ["dice", "iou"])
def test_channels_of_masks_are_counted_apart(name: str) -> None:
    """Two masks [n, 2, h, w]: the mean over the channels, each by itself."""
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, 2, 4, 4, dtype=torch.float64, generator=g)
    targets = (torch.rand(7, 2, 4, 4, generator=g) < 0.4).double()
    outputs[:, 1] -= 1.0  # so that the channels differ
    channels = [value(name, outputs[:, c], targets[:, c]) for c in range(2)]
    assert abs(channels[0] - channels[1]) > 0.01
    assert value(name, outputs, targets) == pytest.approx(sum(channels) / 2, rel=1e-9)


@pytest.mark.parametrize("name", ["train_samples", "two words", "loss:1"])
def test_a_name_that_columns_cannot_have_is_refused(name: str) -> None:
    """A taken name is a good identifier, and a bad one is not taken: each is reason enough."""
    with pytest.raises(UserError, match="is no name for a metric") as refused:
        metric(lambda outputs, targets: 0.0, name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "case"), FITTING)
def test_a_metric_is_additive_if_its_value_follows_from_sums(name: str, case: str) -> None:
    """Bootstrap draws and evaluation add up the statistics of additive metrics, which takes one product for all."""
    outputs, targets = CASES[case]
    loss = F.binary_cross_entropy_with_logits if targets.is_floating_point() else cross_entropy
    (built_in,) = Metrics.of([name], task_of(outputs, targets, loss), outputs[:2], targets[:2]).each
    statistics = built_in.each(outputs, targets).double()
    whole, of_the_sums = (built_in.value(v) for v in (statistics, statistics.sum(0, keepdim=True)))
    assert built_in.additive == bool(torch.isclose(torch.as_tensor(whole), torch.as_tensor(of_the_sums)))


def test_every_metric_is_compared() -> None:
    assert {name for name, _ in FITTING} == set(ct.measure.BUILT_IN)


@pytest.mark.parametrize(
    ("name", "case", "instead"),
    [
        ("auroc", "numbers", "the metric auroc is for one class per sample or several labels"),
        ("mse", "classes", "the metric mse is for numbers, and the targets are one class per sample: choose accuracy"),
        ("dice", "classes", "the metric dice is for a class for every pixel or masks"),
        ("accuracy", "numbers", "and the targets are numbers: choose mse or mae or r2"),
        ("nonsense", "classes", "there is no metric 'nonsense': choose accuracy, "),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(name: str, case: str, instead: str) -> None:
    with pytest.raises(UserError, match=instead):
        value(name, *CASES[case])


def test_undefined_is_not_zero() -> None:
    outputs, targets = drawn(6, 2), torch.zeros(6, dtype=torch.int64)
    assert np.isnan(value("auroc", outputs, targets))
    assert np.isnan(value("r2", drawn(6, 1), torch.full((6, 1), 3.0, dtype=torch.float64)))
    outputs, targets = drawn(20, 3), torch.arange(20) % 2  # nobody has class 2: the mean is over the other two
    hot = [value("auroc", torch.stack([-s, s], 1), y) for s, y in _against_rest(outputs, targets)]
    assert value("auroc", outputs, targets) == pytest.approx(np.mean(hot))


def _against_rest(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(outputs.softmax(1)[:, c], (targets == c).long()) for c in (0, 1)]


def test_the_natural_metric_is_that_of_the_loss() -> None:
    outputs, targets = CASES["numbers"]
    for loss, name in [(F.mse_loss, "mse"), (nn.L1Loss(), "mae"), (lambda o, y: (o - y).abs().mean(), "mse")]:
        assert natural(task_of(outputs, targets, loss), loss) == [name]
    whole = task_of(*CASES["classes"], cross_entropy)
    assert natural(whole, cross_entropy) == ["accuracy"]
    zeros = torch.zeros(40, 2)
    assert task_of(outputs, zeros, F.mse_loss).kind == "numbers"  # a loss of numbers says so
    assert task_of(outputs, zeros, F.binary_cross_entropy_with_logits).kind == "labels"
    assert natural(task_of(drawn(4, 3), torch.rand(4, 5), F.mse_loss), F.mse_loss) == []


def by_hand(name: str, outputs: Any, targets: Any) -> float:
    """The losses in NumPy, sample by sample."""
    if name in ("bce", "mse", "mae", "huber"):
        o, y = outputs.reshape(targets.shape), targets
        error = np.abs(o - y)
        each = {
            "bce": np.log1p(np.exp(-np.abs(o))) + np.maximum(o, 0) - o * y,
            "mse": error**2,
            "mae": error,
            "huber": np.where(error <= 1, error**2 / 2, error - 0.5),
        }
        return float(each[name].mean())
    likely = np.exp(outputs - outputs.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    found = []
    for p, y in zip(likely, targets, strict=True):
        for c in range(len(p)):
            found.append(1 - (2 * p[c][y == c].sum() + 1) / (p[c].sum() + (y == c).sum() + 1))
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("bce", "labels"),
        ("bce", "masks"),
        ("mse", "column"),
        ("mae", "numbers"),
        ("huber", "numbers"),
        ("dice", "pixels"),
    ],
)
def test_losses_by_name_are_their_formulas(name: str, case: str) -> None:
    """Also sample by sample, as padded batches are trained on."""
    outputs, targets = CASES[case]
    expected = by_hand(name, outputs.numpy(), targets.numpy())
    assert float(LOSSES[name](outputs, targets)) == pytest.approx(expected, rel=1e-9)
    assert float(sample_losses(LOSSES[name], outputs, targets).mean()) == pytest.approx(expected, rel=1e-9)


def test_the_dice_of_masks_is_that_of_one_channel() -> None:
    outputs, targets = CASES["masks"]
    p, y = torch.sigmoid(outputs).flatten(1).numpy(), targets.flatten(1).numpy()
    expected = np.mean(1 - (2 * (p * y).sum(1) + 1) / ((p + y).sum(1) + 1))
    assert float(LOSSES["dice"](outputs, targets)) == pytest.approx(expected, rel=1e-9)
    assert natural(task_of(outputs, targets, LOSSES["dice"]), LOSSES["dice"]) == ["dice"]


SIZES = (300, 7, 0, 21)  # more than one batch, none at all, one class only


def clients() -> tuple[Model, dict[str, Tensor], Samples]:
    """Four clients' own linear models with two classes; the second client has tests of one class."""
    n = sum(SIZES)
    x, y = torch.randn(n, 3, generator=G, dtype=torch.float64), torch.randint(0, 2, (n,), generator=G)
    owned = torch.split(torch.randperm(n, generator=G), SIZES)
    y[owned[1]] = 1
    model = Model(nn.Linear(3, 2, dtype=torch.float64), cross_entropy)
    own = {k: torch.randn(4, *v.shape, generator=G, dtype=torch.float64) for k, v in model.start.items()}
    return model, own, Samples(x, y, owned)


RECORDED = Graphed(2, False, torch.device("cpu"), in_place, lanes=2)


@pytest.mark.parametrize("engine", [Serial(), Vectorized(2), RECORDED], ids=["serial", "vectorized", "graphed"])
def test_several_metrics_of_clients_in_one_pass(engine: Any) -> None:
    model, own, tests = clients()
    margin = ct.measure.metric(lambda o, y: float((o[:, 1] - o[:, 0]).mean()) + len(y), "margin")
    metrics = metrics_for(model, tests.x[:2], tests.y, ["auroc", "accuracy", margin])
    got = personal_values(engine, model, own, tests, np.arange(4), metrics)
    for i, mine in enumerate(tests.owned):
        outputs = tests.x[mine] @ own["weight"][i].T + own["bias"][i]
        if not len(mine):
            assert got[i].isnan().all()
            continue
        expected = [value(name, outputs, tests.y[mine]) for name in ("auroc", "accuracy")]
        expected.append(float((outputs[:, 1] - outputs[:, 0]).mean()) + len(mine))
        assert got[i].tolist() == pytest.approx(expected, nan_ok=True)
    assert got[1, 0].isnan()
    row = metric_row(metrics.infos[0], "after_mix", got[:, 0], tests.sizes)
    assert row["personal_auroc_after_mix"] == pytest.approx(float(got[[0, 3], 0].mean()))
    assert row["personal_auroc_after_mix_undefined"] == 1  # who has no samples is not counted
    assert metric_row(ACCURACY, "after_mix", got[:, 1], tests.sizes).keys() == {
        f"personal_accuracy_after_mix{end}" for end in ("", "_std", "_worst", "_p10", "_weighted")
    }


def test_a_rehearsal_asks_no_function_of_ones_own() -> None:
    """What an engine builds for it serves the run: the step is the same."""

    def refuses_zeros(outputs: Tensor, targets: Tensor) -> float:
        raise ZeroDivisionError("nothing but zeros")

    model, own, tests = clients()
    metrics = metrics_for(model, tests.x[:2], tests.y, [refuses_zeros])
    silent = replace(metrics, silent=True)
    assert Answers(model, silent) == Answers(model, metrics)
    assert hash(Answers(model, silent)) == hash(Answers(model, metrics))
    assert personal_values(Serial(), model, own, tests, np.arange(4), silent).isnan().all()
    with pytest.raises(ZeroDivisionError) as raised:
        personal_values(Serial(), model, own, tests, np.arange(4), metrics)
    assert "in the metric refuses_zeros, on 300 samples" in raised.value.__notes__[0]


@pytest.mark.parametrize(("returned", "said"), [("x", "returns a str"), (torch.zeros(3), "returns (3,) numbers")])
def test_what_is_no_number_is_refused(returned: Any, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        value(ct.measure.metric(lambda outputs, targets: returned, "mine"), *CASES["classes"])


@pytest.mark.parametrize("shared", [False, True])
def test_shards_join_statistics(shared: bool) -> None:
    """What two shards keep of one model is what one process keeps, to the last bit."""
    model, own, tests = clients()
    if shared:
        tests = Samples(tests.x, tests.y, (tests.owned[0][:50], *tests.owned[1:3], tests.owned[0][:80]))
    metrics, one = metrics_for(model, tests.x[:2], tests.y, ["auroc", "perplexity"]), {k: v[0] for k, v in own.items()}
    whole = measure_common(Serial(), model, one, tests, np.arange(4), metrics)
    parts = [measure_common(Serial(), model, one, tests, np.array(who), metrics) for who in ([0, 2], [1, 3])]
    places = torch.cat([part.places for part in parts])
    kept = torch.cat([part.statistics for part in parts])[places.argsort()]
    assert places.sort().values.tolist() == whole.places.tolist()
    assert torch.equal(kept, whole.statistics)
    assert torch.equal(torch.cat([part.each for part in parts])[[0, 2, 1, 3]].nan_to_num(), whole.each.nan_to_num())


def test_a_lower_error_is_better_and_large_clients_may_count_more() -> None:
    error = MetricInfo(name="mse", column="mse", higher_is_better=False, average="clients", percent=False)
    values, sizes = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), np.array([1, 1, 2])
    alike, sized = (metric_row({**error, "average": how}, "after_mix", values, sizes) for how in ("clients", "samples"))  # type: ignore[typeddict-item]
    assert alike["personal_mse_after_mix"] == 3.0
    assert sized["personal_mse_after_mix"] == 3.75
    assert sized["personal_mse_after_mix_std"] == pytest.approx(np.std([1, 2, 6, 6]))
    assert alike["personal_mse_after_mix_worst"] == 6.0
    assert alike["personal_mse_after_mix_p10"] == pytest.approx(np.quantile([1, 2, 6], 0.9))


def sites(numbers: bool = True) -> ct.data.Federation:
    """Three sites of unequal size with noisy linear targets."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 3
    pairs = [(x[a:b], y[a:b] if numbers else (y[a:b] > 3).long()) for a, b in ((0, 30), (30, 50), (50, 60))]
    return ct.data.from_tensors(train=pairs, test=pairs)


def one_number() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))


def largest_error(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).abs().max())


def trained(engine: str = "serial", **more: Any) -> ct.Run:
    alg = ct.algorithms.dfedavg(topology="ring", lr=0.05, epochs=1, batch_size=8)
    metric = ["mse", "r2", ct.measure.metric(largest_error, higher_is_better=False)]
    options = {"rounds": 3, "loss": F.mse_loss, "metric": metric, "progress": False, "engine": engine} | more
    return ct.fit(one_number, sites(), alg, **options)


def test_a_regression_is_measured() -> None:
    run, fed = trained(), sites()
    mse, largest = [], []
    for i, client in enumerate(run.clients):
        with torch.no_grad():
            error = client.module()(fed.test_x[fed.test[i]]) - fed.test_y[fed.test[i]]
        mse.append(float(error.square().mean()))
        largest.append(float(error.abs().max()))
    row: Any = run.history[-1]
    assert row["personal_mse_after_mix"] == pytest.approx(np.mean(mse), rel=1e-5)
    assert row["personal_mse_after_mix_worst"] == pytest.approx(max(mse), rel=1e-5)
    assert row["personal_largest_error_after_mix"] == pytest.approx(np.mean(largest), rel=1e-5)
    assert not any("accuracy" in key for key in (*row, *run.summary, *run.client_summary, *run.config))
    summary: Any = run.summary
    assert summary["personal_mse"]["after_mix"]["best"] == min(r["personal_mse_after_mix"] for r in run.history)  # type: ignore[typeddict-item]
    assert run.client_summary["mse"]["after_mix"] == pytest.approx(mse, rel=1e-5)  # type: ignore[typeddict-item]
    assert [m["name"] for m in run.config["metrics"]] == ["mse", "r2", "largest_error"]
    assert repr(run).endswith(f"personal MSE after aggregation {np.mean(mse):#.4g})")
    beside: Any = trained("vectorized").history[-1]
    for name in row:
        if "mse" in name or "r2" in name or "largest" in name:
            assert beside[name] == pytest.approx(row[name], rel=1e-4), name


def test_undefined_clients_are_counted_and_said() -> None:
    fed = sites(numbers=False)
    lonely = torch.where(torch.arange(60) >= 50, 1, fed.test_y)  # the last site has tests of one class
    fed = ct.data.Federation(**{**vars(fed), "test_y": lonely})
    alg = ct.algorithms.dfedavg(topology="ring", epochs=1)
    run = ct.fit(nn.Linear(4, 2), fed, alg, rounds=1, metric=["auroc", "accuracy"], progress=False)
    row, summary = run.history[-1], run.summary
    known = [v for v in run.client_summary["auroc"]["after_mix"] if v is not None]  # type: ignore[typeddict-item]
    assert len(known) == 2
    assert row["personal_auroc_after_mix"] == pytest.approx(np.mean(known))  # type: ignore[typeddict-item]
    assert row["personal_auroc_after_mix_undefined"] == 1  # type: ignore[typeddict-item]
    assert summary["personal_auroc"]["after_mix"]["undefined"] == 1  # type: ignore[typeddict-item]
    compared = Comparison([MethodRuns("dfedavg", [RunData(run.config, run.history, summary, run.client_summary)])])
    said = compared.protocol(compared.columns, "*")
    assert "AUROC is undefined on 1 of 3 clients: means and tests leave them out." in said
    assert not any("accuracy is undefined" in sentence for sentence in said)


def test_what_is_undefined_everywhere_says_so() -> None:
    """Every site has tests of one class."""
    fed = sites(numbers=False)
    fed = ct.data.Federation(**{**vars(fed), "test_y": torch.zeros_like(fed.test_y)})
    methods = []
    for alg in (ct.algorithms.local(epochs=1), ct.algorithms.dfedavg(topology="ring", epochs=1)):
        run = ct.fit(nn.Linear(4, 2), fed, alg, rounds=1, metric=["auroc", "accuracy"], progress=False)
        methods.append(MethodRuns(alg.name, [RunData(run.config, run.history, run.summary, run.client_summary)]))
    compared = Comparison(methods)
    said = compared.protocol(compared.columns, "*")
    assert "AUROC is undefined on every client: there is no mean of it, and no test." in said
    assert compared.answer == [
        "No client has a value of AUROC with every method: no test can tell which method is better."
    ]


@cache
def classified() -> ct.Run:
    alg = ct.algorithms.local(epochs=1)
    return ct.fit(nn.Linear(4, 2), sites(numbers=False), alg, rounds=1, progress=False)


def protocol_of(*test_samples: list[int], names: tuple[str, ...] = ()) -> str:
    """What is said of a method whose seeds give the clients so many test samples."""
    run = classified()
    each: list[Any] = [{**run.client_summary, "test_samples": own, "names": names} for own in test_samples]
    compared = Comparison([MethodRuns("local", [RunData(run.config, run.history, run.summary, own) for own in each])])
    return " ".join(compared.legend("*"))


@pytest.mark.parametrize(
    ("test_samples", "said"),
    [
        ([[9, 9, 9]], "mean over all 3 clients."),
        ([[9, 0, 9]], "mean over 2 of 3 clients: client 1 has no test samples."),
        ([[9, 0, 0], [9, 0, 0]], "mean over 1 of 3 clients: clients 1, 2 (2 in all) have no test samples."),
        (
            [[9, 0, 0], [9, 9, 0]],
            "mean over 1 to 2 of 3 clients: in every seed, those without test samples are left out.",
        ),
        ([[9, 0, 9], [9, 9, 0]], "mean over 2 of 3 clients: in every seed, those without test samples are left out."),
    ],
)
def test_clients_without_test_samples_are_named(test_samples: list[list[int]], said: str) -> None:
    assert said in protocol_of(*test_samples)


def test_sites_without_test_samples_have_their_names() -> None:
    assert "mean over 2 of 3 clients: south has no test" in protocol_of([9, 0, 9], names=("north", "south", "west"))


def test_accuracy_is_the_default_of_classes() -> None:
    alg = ct.algorithms.dfedavg(topology="ring", epochs=1)
    run = ct.fit(nn.Linear(4, 2), sites(numbers=False), alg, rounds=1, progress=False)
    assert "metrics" not in run.config
    assert run.summary["personal_accuracy"]["after_mix"] is not None


def test_interrupted_runs_go_on_with_their_metrics(tmp_path: Any) -> None:
    """Also what clients that do not take part had after their latest training."""
    alg = ct.algorithms.fedavg(participation=1, lr=0.05, epochs=1, batch_size=8)

    def run(**more: Any) -> ct.Run:
        metric = ["mse", "r2"]
        return ct.fit(one_number, sites(), alg, rounds=4, loss=F.mse_loss, metric=metric, progress=False, **more)

    whole = run()

    class Interrupt(ct.track.Tracker):
        name = "interrupt"

        def begin(self, config: Any, folder: Any, history: Any) -> str:
            return "here"

        def round(self, row: Any) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

        def end(self, summary: Any) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "run", trackers=[Interrupt()])
    again = run(out=tmp_path / "run", resume=True)
    times = {"seconds": 0, "evaluation_seconds": 0}
    assert [row | times for row in again.history] == [row | times for row in whole.history]
    assert ct.load(tmp_path / "run", model=one_number).summary == again.summary
