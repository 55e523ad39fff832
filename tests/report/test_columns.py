"""Every published number has a column: told by a run, by several or by the models alone, or a reason why not."""

from collections import Counter
from typing import Any

import pytest
import torch

from coterie.engines import Serial
from coterie.models.model import Model, cross_entropy
from coterie.papers.figures.recipe_charts import recipe_charts
from coterie.papers.recipes import PublishedNumber, load, names, published_numbers
from coterie.papers.recipes.costs import is_size
from coterie.papers.recipes.metrics import protocol
from coterie.papers.recipes.results import RecipeResult, Runs, is_reproducible, recipe_results
from coterie.training.experiment import Experiment
from one_sample_each import one_sample_each


def untold(p: PublishedNumber) -> str:
    """Why no run of ours gives a number; empty: one does."""
    if p.reason:
        return p.reason
    recipe = load(p.recipe)
    if not is_reproducible(p):
        return f"nothing computes {p.metric}"
    cases = recipe.cases if p.case is None else recipe.cases[p.case - 1 : p.case]
    run = not p.method or any(p.method in case.methods for case in cases)
    return "" if run else recipe.entry(p.method).differs or "not run here"


def test_all_published_numbers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What a paper printed has a column; where it printed a dash, the dash has its reason."""
    why = Counter(untold(p) for p in published_numbers())
    lacking = [p for p in published_numbers() if untold(p) and p.value is not None]
    with capsys.disabled():
        print(f" [{why['']} of {why.total()} published cells told; {dict(why)}]", end="")
    assert not lacking, lacking[:3]
    assert why.total() == 1070


def reached(recipe: str, field: str = "personal_accuracy_{}") -> Runs:
    """Runs that reach their targets in the published rounds; those that were not reached never do."""
    runs: dict[tuple[int, str], Any] = {}
    for p in published_numbers(recipe):
        if p.metric.startswith("rounds_to_") and p.case is not None:
            point = load(recipe).entry(p.method).point
            rounds = [] if p.value is None else [{"round": int(p.value), field.format(point): 1.0}]
            runs[p.case, p.method] = [rounds]
    return runs


def of_metric(results: list[RecipeResult], start: str) -> list[RecipeResult]:
    return [r for r in results if r.metric.startswith(start)]


@pytest.mark.parametrize("recipe", ["dfedalt-t6", "dfedpgp-t7"])
def test_speedups_follow_from_the_published_rounds(recipe: str) -> None:
    """Both papers divide the rounds of the slowest method by the others'."""
    results = recipe_results(load(recipe), reached(recipe))
    ratios = of_metric(results, "speedup_to")
    assert len(ratios) == sum(p.metric.startswith("speedup_to") for p in published_numbers(recipe))
    off = [r for r in ratios if (r.difference is None) != (r.published is not None and r.published.value is None)]
    assert not off
    far = [r for r in ratios if r.difference is not None and abs(r.difference) > 0.011]
    assert not far, [(r.case, r.method, r.ours, r.published and r.published.value) for r in far]
    for mean in of_metric(results, "speedup_mean"):
        assert mean.case is None
        assert mean.difference == pytest.approx(0, abs=0.015)


def test_gaps_are_training_minus_validation() -> None:
    """The text's gaps of Table 1 and the last column of Table 3 follow from their other two columns."""
    for name in ("dfedsam-t1", "dfedsam-t3"):
        runs: dict[tuple[int, str], Any] = {}
        for p in published_numbers(name):
            fields = {
                "personal_accuracy_train": "personal_accuracy_train_after_train",
                "global_accuracy_val": "global_accuracy",
            }
            if p.value is not None and p.case is not None and p.metric in fields:
                runs.setdefault((p.case, p.method), [[{}]])[0][0][fields[p.metric]] = p.value / 100
        gaps = of_metric(recipe_results(load(name), runs), "generalization_gap")
        assert len(gaps) == sum(p.metric == "generalization_gap" for p in published_numbers(name))
        far = [r for r in gaps if r.difference is None or abs(r.difference) > 0.045]
        assert not far, [(r.case, r.method, r.ours, r.published and r.published.value) for r in far]


def accuracies(recipe: str, chosen: dict[tuple[int, str], float], field: str) -> Runs:
    return {cell: [[{"round": 1, field: value / 100}]] for cell, value in chosen.items()}


def test_differences_between_graphs_and_methods() -> None:
    recipe = load("dfedalt-f4")
    by_label = {case.label.removeprefix("cifar10 "): n for n, case in enumerate(recipe.cases, 1)}
    chosen = {(n, m): 50.0 + n for n in recipe.find() for m in recipe.cases[0].methods}
    chosen[by_label["pathological:2 full"], "dfedalt"] = 90.0
    chosen[by_label["pathological:2 ring"], "dfedalt"] = 84.0
    chosen[by_label["dirichlet:0.3 grid"], "dfedsalt"] = 80.0  # the others have 52 there
    chosen[by_label["dirichlet:0.3 full"], "dispfl"] = 55.5  # dfedalt has 54
    field = "personal_accuracy_after_mix"
    several = {
        (r.metric, r.method): r.mean
        for r in recipe_results(recipe, accuracies(recipe.name, chosen, field))
        if r.case is None
    }
    assert several["personal_accuracy_gap_ring_full", "dfedalt"] == pytest.approx(6)
    assert several["personal_accuracy_gap_ring_full", "dfedsalt"] == pytest.approx(3)
    assert several["personal_accuracy_margin_max", ""] == pytest.approx(28)
    assert several["personal_accuracy_margin_min", ""] == pytest.approx(-1.5)
    alone = recipe_results(recipe, accuracies(recipe.name, {(1, "dfedalt"): 50.0}, field))
    assert all(r.mean is None for r in alone if r.case is None)  # a part of the runs tells no difference


def test_the_lead_over_another_method() -> None:
    chosen = {(1, "dfedsam"): 80.0, (1, "dfedavgm"): 79.25}
    results = recipe_results(load("dfedsam-t2"), accuracies("dfedsam-t2", chosen, "global_accuracy"))
    (lead,) = of_metric(results, "accuracy_margin_over")
    assert (lead.method, lead.mean) == ("dfedsam", pytest.approx(0.75))


def test_sizes_are_the_published_ones() -> None:
    """To the three digits printed; the heads of depth-scale are not those of the paper, whose counts are doubtful."""
    results = recipe_results(load("fedlmt-t1"), {})
    assert len(results) == 46
    for r in results:
        assert r.published is not None
        assert r.published.value is not None
        loose = 0.06 if r.published.certainty == "doubtful" else 0.005
        assert r.mean == pytest.approx(r.published.value, rel=loose), (r.method, r.metric)
    (percent,) = of_metric(recipe_results(load("fedlmt-f3"), {(1, "fedhmv2"): [[]]}), "model_size")
    assert percent.mean == pytest.approx(20.7, abs=0.1)


def test_flops_are_one_sample_a_participant_and_round() -> None:
    rows = [{"round": t, "forward_flops": 10 * 558_502_912, "parameters_sent": 20 * 11_173_962} for t in (1, 2)]
    results = recipe_results(load("fedlmt-t2-image"), {(1, "fedavg"): [rows * 1000]})
    by = {r.metric: r for r in results}
    assert by["flops_1e12"].difference == pytest.approx(0, abs=0.02)
    assert by["comm_gparams"].difference == pytest.approx(0, abs=0.05)


def test_singular_values_have_a_column_a_block() -> None:
    rows = [{"round": t, **{f"smallest_singular_value_block_{k}": k / 10 / t for k in range(1, 9)}} for t in (1, 2)]
    found = of_metric(recipe_results(load("fedlmt-t8"), {(1, "fedlmt"): [rows]}), "min_singular_value_block")
    assert [r.mean for r in found] == pytest.approx([k / 20 for k in range(1, 9)])


@pytest.mark.parametrize("name", names())
def test_every_number_says_what_it_is(name: str) -> None:
    recipe = load(name)
    cells: Runs = {(n, m): [[]] for n in recipe.find() for m in recipe.cases[n - 1].methods if recipe.trains}
    results = recipe_results(recipe, cells)
    assert results or recipe.protocol.metric == "none"
    for r in results:
        sentence = protocol(r.metric, recipe, r.method)
        assert len(sentence) > 20, r
        assert "_" not in r.metric or r.metric not in sentence, sentence
        assert is_size(r.metric) or r.mean in (None, 0.0)


def test_a_grid_of_two_settings_is_drawn_as_a_heat_map() -> None:
    """FedLMT's Figures 9 and 10: a map for each data set, from the cases of the recipe."""
    recipe = load("fedlmt-f2")
    results = [
        {"case": case.label, "method": "fedlmt", "metric": "global_accuracy", "protocol": "words", "ours": [float(n)]}
        for n, case in enumerate(recipe.cases, 1)
    ]
    charts = recipe_charts({"recipe": recipe.name, "draws": recipe.draws, "shortened": [], "results": results}, [])
    assert [chart.title for chart in charts] == [f"fedlmt on {d}: global accuracy" for d in ("cifar10", "cifar100")]
    (heat,) = charts[0].views[""]["data"]
    places = {case.label: n for n, case in enumerate(recipe.cases, 1)}
    for y, row in zip(heat["y"], heat["z"], strict=True):
        assert row == [places[f"cifar10 rank={x} keep={y}"] for x in heat["x"]]
    assert len(heat["x"]) * len(heat["y"]) * 2 == len(recipe.cases)
    results[0]["ours"] = [5.0, None]
    saved = {"recipe": recipe.name, "draws": recipe.draws, "shortened": ["1 of 2 rounds"], "results": results}
    short = recipe_charts(saved, [])[0]
    (heat,) = short.views[""]["data"]
    assert heat["z"][0][0] is None
    assert short.caption.endswith("Shortened or changed: 1 of 2 rounds.")


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedlmt"])
def test_flops_of_a_transformer_are_the_published_ones(method: str) -> None:
    """Of the cohorts that would take part, in the forms they hold; nothing is trained."""
    recipe = load("fedlmt-t2-text")
    case = recipe.cases[0]
    with torch.device("meta"):
        model = Model(recipe.model(1), cross_entropy)
    e = Experiment.of(model, one_sample_each(case), recipe.algorithm(method, 1), Serial(), 0, case.rounds)
    each = [e.forward_flops(e.round(t)) for t in range(case.rounds)]
    rows = [{"round": t, "forward_flops": flops, "parameters_sent": 0} for t, flops in enumerate(each, 1)]
    (flops,) = of_metric(recipe_results(recipe, {(1, method): [rows]}), "flops_1e12")
    assert flops.published is not None
    assert flops.mean == pytest.approx(flops.published.value, rel=2e-3)
