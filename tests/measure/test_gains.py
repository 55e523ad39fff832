"""Who gains: the metric over test samples drawn again, and each client's difference with an interval."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.core.schema import ACCURACY
from coterie.data import Federation
from coterie.measure import resample as resampling
from coterie.measure.compare import Comparison, Gain, MethodRuns, gains
from coterie.measure.compare.answer import leads
from coterie.measure.compare.columns import personal_cell
from coterie.measure.compare.gains import gain_sentences
from coterie.measure.compare.sites import site_pairs
from coterie.measure.metric import BUILT_IN, Metric, task_of
from coterie.measure.resample import DRAWS, LEAST, resample
from coterie.report.collect import collect
from gained import told

PAIR = ("local", "fedper")
RIGHT = torch.tensor([[1.0, 1.0]] * 30 + [[0.0, 1.0]] * 10)


def accuracy() -> Metric:
    outputs, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    return BUILT_IN["accuracy"].on("accuracy", task_of(outputs, y, torch.nn.functional.cross_entropy))


def test_draws_spread_as_a_share_of_so_many_samples_does() -> None:
    """A share p of n samples drawn with replacement has mean p and variance p (1 - p) / n."""
    many = torch.cat([resample(accuracy(), [RIGHT], seed) for seed in range(2)]).flatten()
    assert many.mean().item() == pytest.approx(0.75, abs=0.005)
    assert many.var().item() == pytest.approx(0.75 * 0.25 / 40, rel=0.05)


def test_sums_come_to_what_the_drawn_samples_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of sums alone take a shorter way; the draws are those of the long one."""
    short = accuracy()
    long = Metric(short.name, short.each, short.value)
    kept = [RIGHT, RIGHT[28:33], RIGHT[:0]]
    monkeypatch.setattr(resampling, "DRAWS", LEAST)
    monkeypatch.setattr(resampling, "FEWER", LEAST)
    fast, slow = resample(short, kept, 3), resample(long, kept, 3)
    assert fast.shape == (3, LEAST)
    torch.testing.assert_close(fast, slow, equal_nan=True)
    assert fast[2].isnan().all()
    assert not torch.equal(fast, resample(short, kept, 4))


ALONE = told([0.5, 0.5, 0.5, 0.5], [[0.4, 0.5, 0.6]] * 3 + [[None, None, None]], "local")
SHARED = told([0.9, 0.5, 0.1, 0.6], [[0.8, 0.9, 1.0], [0.5, 0.4, 0.6], [0.0, 0.1, 0.2], [None, None, None]], "fedper")


def test_a_client_gains_whose_interval_lies_above_zero() -> None:
    """On the same draws; a client of which nothing is known is left out."""
    (found,) = gains([ALONE, SHARED])
    assert [(g.client, g.verdict) for g in found.each] == [(0, "helps"), (1, "unclear"), (2, "harms")]
    assert found.each[0].difference == pytest.approx(40)
    assert found.each[0].low == pytest.approx(40)
    assert gain_sentences([found]) == [
        "Against training alone (local), of 3 clients, each by its own interval: fedper helps 1, harms 1, 1 tie.",
        "fedper against local, client by client: most client 0 +40 (+40 to +40), least client 2 -40 (-40 to -40).",
    ]


def test_a_difference_of_rounding_is_written_as_none() -> None:
    """The accuracies of one client, whose means were added in another order."""
    assert 0.1 + 0.2 != 0.3
    (found,) = gains([told([0.3], [[0.3]], "local"), told([0.1 + 0.2], [[0.1 + 0.2]], "fedper")])
    assert [gain.signed for gain in found.each] == ["0"]
    assert "fedper against local: client 0 0 (" in gain_sentences([found])[1]


def test_the_best_method_comes_first_and_sites_have_their_names() -> None:
    """One line per method that the others are compared with, however many these are."""
    better = told([0.9, 0.9], [[0.9, 0.9]] * 2, "ditto")
    worse = told([0.2, 0.6], [[0.2, 0.2], [0.6, 0.6]], "fedper")
    alone = told([0.5, 0.5], [[0.5, 0.5]] * 2, "local")
    for one in (alone, worse, better):
        one.runs[0].client_summary["names"] = ["north", "south"]
    first, second = gain_sentences(gains([alone, worse, better]))
    own = "Against training alone (local), of 2 clients, each by its own interval"
    assert first == f"{own}: ditto helps 2, harms 0; fedper helps 1, harms 1."
    assert "most north +40" in second


def seeds(method: str, config: dict[str, Any], clients: dict[str, Any], pairs: int = 1) -> MethodRuns:
    """Two clients with two seeds; with the second the first gains less, and has other samples."""
    each = []
    for seed, value in enumerate((0.9, 0.7)):
        own = value if method != "local" else 0.5
        hands = {"seed": seed, "fingerprints": {"data": f"d{seed}"}, "data": {"clients": 2, "seed": seed}, **config}
        each += told([own, 0.5] * pairs, [[own], [0.5]] * pairs, method, config=hands, clients=clients).runs
    return MethodRuns(method, each)


def test_every_seed_has_its_own_clients_where_it_deals_the_samples_anew() -> None:
    """The mean of different clients would be nobody's."""
    (found,) = gains([seeds("local", {}, {}), seeds("fedper", {}, {})])
    assert [gain.name for gain in found.each][:2] == ["client 0 of seed 0", "client 0 of seed 1"]
    assert [gain.difference for gain in found.each] == pytest.approx([40, 20, 0, 0])
    first, _ = gain_sentences([found])
    whose = "of 4 clients (those of 2 seeds, which deal the samples anew), each by its own interval"
    assert first == f"Against training alone (local), {whose}: fedper helps 2, harms 0, 2 ties."


@pytest.mark.parametrize(
    ("config", "clients"),
    [
        ({}, {"names": ["north", "south"]}),
        ({"data": {"clients": 2, "seed": 0}}, {}),
        ({"fingerprints": {"data": "d"}}, {}),
    ],
)
def test_a_client_that_stays_has_one_line(config: dict[str, Any], clients: dict[str, Any]) -> None:
    (found,) = gains([seeds("local", config, clients), seeds("fedper", config, clients)])
    assert [gain.difference for gain in found.each] == pytest.approx([30, 0])


@pytest.mark.parametrize("pairs", [1, 3])  # few clients are tested by their samples
def test_the_test_says_that_its_clients_are_others_in_every_seed(pairs: int) -> None:
    said = "every seed deals the samples anew: a client here is 2 with the same number"
    named = {"names": ["north", "south"] * pairs}
    for clients in ({}, named):
        methods = [seeds("local", {}, clients, pairs), seeds("fedper", {}, clients, pairs)]
        assert (said in leads(methods, site_pairs(methods), 1).how) == (not clients)


def test_gains_of_few_clients_have_their_tests_unless_every_seed_has_other_clients() -> None:
    """One client is right in twelve more of twelve samples, p = 2 / 2^12 times two tests; the other is a tie."""
    answers: list[dict[str, Any]] = [{"right": ["0" * 12, "01"]}, {"right": ["1" * 12, "01"]}]
    one = [told([v, 0.5], [[v], [0.5]], m, clients=c) for v, m, c in zip((0.0, 1.0), PAIR, answers, strict=True)]
    (found,) = Comparison(one).gains
    assert [gain.p for gain in found.each] == pytest.approx([2**-10, 1])
    (found,) = Comparison([seeds(m, {}, c) for m, c in zip(PAIR, answers, strict=True)]).gains
    assert [gain.p for gain in found.each] == [None] * 4


def test_clients_are_others_where_seeds_keep_others_out() -> None:
    stay = {"data": {"clients": 2, "seed": 0}, "holdout_clients": 1}
    assert seeds("local", stay, {}).dealt_anew


@pytest.mark.parametrize(
    ("unsure", "low", "high", "said"),
    [
        (0.2, 4.547, 22.81, ("+4.5", "+22.8")),
        (0.04, -0.004, 1.5, ("+0.0", "+1.5")),
        (0.8, -4.547, 22.81, ("-5", "+23")),
        (20.0, 1234.0, 2345.0, ("+1230", "+2340")),
        (0.0, 0.0, 12.5, ("+0", "+12.5")),
    ],
)
def test_an_interval_has_no_more_digits_than_are_sure(
    unsure: float, low: float, high: float, said: tuple[str, str]
) -> None:
    assert Gain(0, "north", 1.0, low, high, 60, unsure).ends == said


def test_ends_are_as_unsure_as_they_say() -> None:
    """Other draws of the same samples move them so far."""
    kept = torch.stack([torch.linspace(0, 1, 40), torch.ones(40)], dim=1)
    every = torch.cat([resample(accuracy(), [kept], seed) for seed in range(40)])
    moved = 100 * np.quantile(every, [0.025, 0.975], axis=1).std(axis=1).mean()
    (found,) = gains([told([0.0], [[0.0] * DRAWS], "local"), told([0.5], every[:1].tolist(), "ditto")])
    assert found.each[0].unsure == pytest.approx(moved, rel=0.3)


def test_draws_of_many_samples_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of a run that draws less often are the first of them, so that two such runs can be compared."""
    whole = resample(accuracy(), [RIGHT], 0)
    monkeypatch.setattr(resampling, "AT_ONCE", 1000)
    torch.testing.assert_close(resample(accuracy(), [RIGHT], 0), whole)
    monkeypatch.setattr(resampling, "DRAWS", 500)
    torch.testing.assert_close(resample(accuracy(), [RIGHT], 0), whole[:, :500])
    few = told([0.2], [[0.2, 0.3]], "local"), told([0.9], [[0.9, 0.8, 0.1]], "fedper")
    assert gains(few)[0].each[0].low == pytest.approx(50.5)


def test_seeds_are_a_sample() -> None:
    """Whose standard deviation is divided by n - 1: 90 and 92 are 1 away from their mean, and spread by 1.4."""
    runs = told([0.9], [[0.9]], "local").runs * 2
    each: list[Any] = [{"personal_accuracy": {"after_mix": {"final": v, "std": 0.0}}} for v in (0.9, 0.92)]
    method = MethodRuns("local", [replace(run, summary=own) for run, own in zip(runs, each, strict=True)])
    spread = personal_cell(method, "after_mix").spread
    assert spread is not None
    assert (spread.over, spread.text) == ("seeds", "1.4")


def test_less_is_a_gain_where_lower_is_better() -> None:
    error: Any = {**ACCURACY, "name": "mse", "column": "mse", "higher_is_better": False, "percent": False}
    drawn: Any = [[0.5, 0.5]]
    (found,) = gains([told([0.5], drawn, "local", metric=error), told([0.2], [[0.2, 0.2]], "fedper", metric=error)])
    assert found.each[0].verdict == "helps"
    assert found.each[0].difference == pytest.approx(0.3)


def test_models_that_clients_fine_tune_are_not_one_for_all() -> None:
    """FedAvg-FT shares one model, and every client ends with its own: what it gains is measured of that."""
    one = told([0.5, 0.5], [[0.5, 0.5]] * 2, "fedavg", clients={"personal_parameters": [0, 0]})
    tuned = {"accuracy": {"after_mix": [0.5, 0.5], "after_finetune": [0.9, 0.4]}, "personal_parameters": [0, 0]}
    own = told([0.5, 0.5], [[0.9, 0.9], [0.4, 0.4]], "fedavg-ft", clients=tuned)
    for method in (one, own):
        method.runs[0].summary["consensus_distance"] = 0.0
    assert gains([own, SHARED]) == []
    (found,) = gains([own, one])
    assert (found.label, found.reference) == ("fedavg-ft", "fedavg")
    assert [g.difference for g in found.each] == pytest.approx([40, -10])


@pytest.mark.parametrize(
    "changed",
    [
        {"config": {"seed": 1}},
        {"config": {"fingerprints": {"data": "other"}}},
        {"clients": {"resampled": [[0.1, 0.2]]}},
        {"clients": {"resampled": []}},
        {"clients": {"accuracy": {}}},
    ],
)
def test_other_samples_are_not_compared(changed: dict[str, Any]) -> None:
    other = told([0.9, 0.5, 0.1, 0.6], [[0.8, 0.9, 1.0]] * 4, "fedper", **changed)
    assert gains([ALONE, other]) == []
    assert gains([SHARED]) == []


def renamed() -> Federation:
    return ct.data.federate("digits:renamed=4", partition="iid", clients=6)


def test_the_page_begins_with_it(tmp_path: Path) -> None:
    """Real runs, whose intervals hold the difference that was measured."""
    for method in ("local", "fedavg", "fedper", "dfedavg"):
        graph = {"topology": "ring"} if method == "dfedavg" else {}
        algorithm = getattr(ct.algorithms, method)(lr=0.1, batch_size=16, epochs=2, **graph)
        net = ct.models.build("mlp", classes=10, input_shape=(1, 8, 8), seed=0)
        ct.fit(net, renamed(), algorithm, rounds=2, out=tmp_path / method, progress=False)
    records = collect([tmp_path]).records
    comparison = Comparison([MethodRuns(r.config["method"], [r]) for r in records])
    found, *further = gains(comparison.methods)
    told = [(one.label, one.reference) for one in (found, *further)]
    assert told[:3] == [(name, "local") for name in ("dfedavg", "fedavg", "fedper")]
    assert told[3:] == [(name, "fedavg") for name in ("dfedavg", "fedper")]
    assert len(found.each) == 6
    assert all(g.low <= g.difference <= g.high for g in found.each)
    drawn = np.array(records[0].client_summary["resampled"])
    assert drawn.mean(axis=1) == pytest.approx(np.array(records[0].client_summary["accuracy"]["after_mix"]), abs=0.03)
    assert set(gain_sentences(comparison.gains)) <= set(comparison.verdict)
    page = ct.report.html([tmp_path])
    first = comparison.answer[0]
    best = max(comparison.methods, key=lambda m: m.finals("after_mix")[0]).label
    assert first.startswith("Training alone (local) is best" if best == "local" else f"{best} helps ")
    assert page.index(first) < page.index("Who gains") < page.index('<ul class="verdict">')
