"""Recipes: data that fit our own names, published numbers in their places, and runs that say what they are."""

import json
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import algorithms, measure, models, topology
from coterie.algorithms.capacities import WIDTHS, shares
from coterie.algorithms.settings import settings_of
from coterie.core.errors import UserError
from coterie.core.schema import MeasureName
from coterie.core.spec import parse
from coterie.data import PARTITIONS, Transform
from coterie.engines import Serial
from coterie.measure import Metrics
from coterie.models.model import Model, cross_entropy
from coterie.papers.recipes import READINGS, Recipe, load, names, papers, published_numbers
from coterie.papers.recipes.changes import Changes, apply_changes, shortenings
from coterie.papers.recipes.costs import cost
from coterie.papers.recipes.metrics import value
from coterie.papers.recipes.results import RecipeResult, across_runs, recipe_results
from coterie.papers.recipes.sources import SOURCES, source
from coterie.submodels.staged import stage_lengths
from coterie.training.experiment import Experiment
from estimate import estimate
from one_sample_each import one_sample_each
from toys import communication

RECIPES = [load(name) for name in names()]


def named(recipe: Recipe) -> str:
    return recipe.name


def test_all_experiments_of_five_papers_are_there() -> None:
    counts = {paper: sum(r.paper == paper for r in RECIPES) for paper in papers()}
    assert counts == {"dfedalt": 9, "dfedpgp": 9, "fedlmt": 13, "dfedsam": 8, "fedavg-p": 7}


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_every_name_is_one_of_ours(recipe: Recipe) -> None:
    for entry in recipe.methods.values():
        known = settings_of(algorithms.builder(entry.builder))
        assert set(known) >= set(entry.settings)
        assert entry.point in ("after_mix", "after_train", "after_finetune")
    for case in recipe.cases:
        assert parse(case.data).name in SOURCES
        assert parse(case.partition).name in PARTITIONS
        assert parse(case.model).name in models.BUILDERS
        assert set(case.methods) <= set(recipe.methods)
        assert set(case.settings) <= set(case.methods)
        assert case.transform is None or Transform(**case.transform).std
    assert len({case.label for case in recipe.cases}) == len(recipe.cases)
    assert set(recipe.record) <= set(get_args(MeasureName))


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_settings_are_complete_in_every_reading(recipe: Recipe) -> None:
    for number, case in enumerate(recipe.cases, 1):
        for method in case.methods:
            for reading in (None, *READINGS):
                asked = recipe.read(reading).settings(method, number)
                built = recipe.read(reading).algorithm(method, number).settings
                assert json.loads(json.dumps({k: built[k] for k in asked})) == asked
                assert set(built) == set(asked)


def test_every_method_binds_at_its_published_size(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is measured follows from model and data alone; to find it again for every method passes samples through all.
    metrics, find = dict[tuple[Any, ...], Metrics](), measure.metrics_for

    def once(model: Model, x: Tensor, y: Tensor, given: Sequence[Any]) -> Metrics:
        key = id(model), tuple(x.shape), tuple(y.shape)
        metrics[key] = metrics.get(key) or find(model, x, y, given)
        return metrics[key]

    monkeypatch.setattr(measure, "metrics_for", once)
    amounts = ("lr", "lr_min", "lr_decay", "personal_lr", "momentum", "weight_decay", "clip", "rho", "svd_every")
    done: set[str] = set()
    modules: dict[str, Model] = {}
    for recipe in RECIPES:
        readings = [recipe.read(reading) for reading in (None, *READINGS)]
        for case in recipe.cases:
            federation = one_sample_each(case)
            if case.model not in modules:
                with torch.device("meta"):  # shapes only: no memory, no decomposition
                    modules[case.model] = Model(recipe.model(case), cross_entropy)
            for method in case.methods:
                for read in readings:
                    settings = read.settings(method, case.label)
                    shape = {k: v for k, v in settings.items() if k not in amounts}
                    key = json.dumps([case.model, case.clients, recipe.entry(method).builder, shape])
                    if key not in done:
                        done.add(key)
                        algorithm = read.algorithm(method, case.label)
                        parts = (modules[case.model], federation, algorithm, Serial(), 0, case.rounds or 1)
                        Experiment.of(*parts, record=recipe.record).check()
    assert len(done) > 100


def test_directed_and_undirected_graphs_differ_where_the_paper_compares_them() -> None:
    """Else DFedAvgM and OSGP, and DFedAvgM-P and DFedPGP, would be the same runs under two names."""
    kinds = {"doubly": {"dfedavgm", "dfedavgm-p", "dispfl"}, "row": {"osgp", "dfedpgp"}}
    for recipe in (r for r in RECIPES if r.paper == "dfedpgp" and len(r.methods) > 1):
        for kind, methods in kinds.items():
            for method in methods & set(recipe.methods):
                graph = recipe.settings(method)["topology"]
                assert topology.build(graph, 100).stochastic == kind, (recipe.name, method)


def test_what_nobody_states_is_said_to_be_assumed() -> None:
    for recipe in RECIPES:
        if recipe.seeds == 1 and recipe.trains:
            assert "the number of seeds is not stated: 1" in recipe.assumed, recipe.name


FEDAVG_P = [r.read(reading) for r in RECIPES if r.paper == "fedavg-p" for reading in (None, "paper")]


def test_step_sizes_are_those_of_the_theorems() -> None:
    """One gamma for both parts; eta_u >= sqrt(m) and eta_v = sqrt(n/m), and eta_u >= T where everybody takes part."""
    for recipe in FEDAVG_P:
        for case in recipe.cases:
            (method,) = case.methods
            s = recipe.settings(method, case)
            m = round(10 * s["participation"])
            assert s["outer_lr"] >= (case.rounds if m == 10 else m**0.5)
            assert s["personal_outer_lr"] == pytest.approx((10 / m) ** 0.5, rel=1e-4)
            assert s["lr"] * s["outer_lr"] == pytest.approx(s["personal_lr"] * s["personal_outer_lr"])  # gamma


def test_each_figure_on_fedavg_p_changes_one_thing() -> None:
    """gamma, m or K; so that m alone is seen there is no noise on v, and eta_u is the same."""
    for recipe in FEDAVG_P:
        (method,) = recipe.methods
        settings = [recipe.settings(method, case) for case in recipe.cases]
        values = {k: len({s[k] for s in settings}) for k in ("participation", "steps", "batch_size", "exact_personal")}
        gammas = len({round(s["lr"] * s["outer_lr"], 9) for s in settings})
        swept = {"a": gammas, "b": values["participation"], "c": values["steps"], "d": values["steps"]}
        assert swept[recipe.name[-1]] == 3
        assert gammas + sum(values.values()) == 7, recipe.name
        assert settings[0]["exact_personal"] is (recipe.name[-1] == "b")
        assert recipe.name[-1] == "d" or len({s["outer_lr"] for s in settings}) == 1


def test_figures_on_fedavg_p_stand_where_their_claims_can_show() -> None:
    """Clients disagree about u (one label each), and runs go on until the norms are steady (gamma K T)."""
    for recipe in FEDAVG_P:
        assert recipe.protocol.over_rounds == "steady"
        assert any(text.startswith("how the setting was found") for text in recipe.assumed)
        for case in recipe.cases:
            s = recipe.settings(case.methods[0], case)
            assert (case.partition, case.model) == ("pathological:1", "split-logreg:rho=1")
            assert case.rounds * s["steps"] * s["lr"] * s["outer_lr"] > 7.9


def panel(recipe: Recipe) -> list[tuple[float, int, float, str]]:
    """gamma, K, participation and data of each case of a figure on FedAvg-P."""
    settings = [(recipe.settings(case.methods[0], case), case.data) for case in recipe.cases]
    return [(round(s["lr"] * s["outer_lr"], 8), s["steps"], s["participation"], data) for s, data in settings]


def test_the_reading_of_the_paper_has_the_numbers_that_it_prints() -> None:
    """ "gamma = 0.001, m = 9, K = 25", but for what the panel varies; our departures from it stand under changed."""
    gammas, counts, steps = (0.001, 0.005, 0.01), (0.3, 0.6, 0.9), (5, 10, 25)
    printed = {
        "a": [(gamma, 25, 0.9, "mnist-halves") for gamma in gammas],
        "b": [(0.001, 25, m, "mnist-halves") for m in counts],
        "c": [(0.001, K, 0.9, "mnist-halves") for K in steps],
        "d": [(0.001, K, 1.0, "mnist-halves") for K in steps],
    }
    for recipe in (r for r in RECIPES if r.paper == "fedavg-p"):
        assert panel(recipe.read("paper")) == printed[recipe.name[-1]]
        assert recipe.read("paper").changed == ()
        assert recipe.read("code").changed == recipe.changed  # which is not public
        ours = panel(recipe)
        assert bool(recipe.changed) is (ours != printed[recipe.name[-1]])
        changed, assumed = " ".join(recipe.changed), " ".join(recipe.assumed)
        names = ("gamma = ", "K = ", "m = ", "images")
        for here, there, name in zip(ours[0], printed[recipe.name[-1]][0], names, strict=True):
            assert (name in changed) is (here != there), (recipe.name, name)
            assert here == there or f"{name}{here}" not in assumed, (recipe.name, name)


def test_every_published_number_has_a_place_or_a_reason() -> None:
    numbers = published_numbers()
    assert len(numbers) == 1070
    for p in numbers:
        recipe = load(p.recipe)
        assert p.paper == recipe.paper
        assert not p.method or p.method in recipe.methods
        assert p.reason or (p.case and p.method) or across_runs(p.metric), p
        assert p.case is None or parse(recipe.cases[p.case - 1].data).name == p.data
        assert p.value is not None or p.note, p
        assert p.certainty in ("printed", "reconstructed", "doubtful", "uncertain", "missing")
        placed = p.case and p.value is not None and not p.reason and not recipe.entry(p.method).differs
        assert not placed or p.method in recipe.cases[(p.case or 1) - 1].methods, p
    runs = [(p.recipe, p.table, p.case, p.method, p.metric) for p in numbers if not p.reason]
    repeated = {key for key in runs if runs.count(key) > 1}
    assert {key[1] for key in repeated} <= {"T1-text"}  # two paragraphs of one paper repeat a gap


def test_published_numbers_agree_with_what_can_be_counted() -> None:
    """Communication of FedLMT's Table 2 follows from the sizes of the models."""
    sent = {
        p.method: p.value for p in published_numbers("fedlmt-t2-image") if p.case == 1 and p.metric == "comm_gparams"
    }
    assert sent["fedavg"] == pytest.approx(communication(11_173_962, 10, 2000), rel=1e-3)
    assert sent["fedlmt"] == pytest.approx(communication(1_430_538, 10, 2000), rel=1e-3)


def test_estimates_are_those_of_the_closed_form() -> None:
    case = load("dfedalt-t1").cases[0]
    forward, body = 558.5e6, 11_168_832
    assert case.estimates["dfedalt"]["flops"] == pytest.approx(3 * forward * 500 * 6 * 100 * 500, rel=1e-3)
    assert case.estimates["dfedsalt"]["flops"] == pytest.approx(3 * forward * 500 * 11 * 100 * 500, rel=1e-3)
    assert case.estimates["dfedalt"]["bytes"] == pytest.approx(4 * body * 1000 * 500, rel=1e-3)
    assert case.estimates["fedavg"]["bytes"] == pytest.approx(4 * 11_173_962 * 2 * 10 * 500, rel=1e-3)
    assert case.estimates["local"]["bytes"] == 0
    assert case.estimates["dfedalt"]["forward"] == pytest.approx(forward, rel=1e-3)
    capacities = load("fedlmt-t2-image").cases[0].estimates  # a third of the clients has each of three widths
    assert capacities["fedavg"]["forward"] > capacities["heterofl"]["forward"] > capacities["fedlmt"]["forward"]
    progressive = load("fedlmt-t7").cases[0].estimates
    assert progressive["progfed"]["bytes"] == pytest.approx(8e9 * 148.687, rel=1e-3)  # both directions, 4 bytes
    for method in ("feddropout", "heterofl", "fedrolex"):
        assert progressive[method]["bytes"] == pytest.approx(8e9 * 164.1, rel=1e-3)
        assert progressive[method]["flops"] == pytest.approx(3 * 500 * 8.22e12, rel=2e-3)  # 500 samples each


def test_forward_passes_add_up_to_the_flops() -> None:
    """Of FedAvg, whose members pass all their samples through the whole model in every epoch."""
    counted = 0
    for recipe in RECIPES:
        for case in recipe.cases:
            for method in (m for m in case.estimates if recipe.entry(m).builder == "fedavg"):
                s, price, known = recipe.settings(method, case), case.estimates[method], source(case.data)
                if isinstance(s["epochs"], int) and not s.get("steps"):
                    wanted = s["participation"]
                    cohort = wanted if isinstance(wanted, int) else max(1, round(wanted * case.clients))
                    passes = s["epochs"] * known.train / case.clients * cohort * case.rounds
                    assert price["flops"] == pytest.approx(3 * price["forward"] * passes, rel=2e-3), recipe.name
                    counted += 1
    assert counted > 20


def test_all_grow_with_progfed() -> None:
    """FedLMT's Table 7: everybody has capacity 1, 2 and 3 for as long as ProgFed's first stages."""
    recipe = load("fedlmt-t7")
    for case in recipe.cases:
        for method in ("feddropout", "heterofl", "fedrolex", "depthfl"):
            stages = shares(recipe.settings(method, case)["capacities"], WIDTHS, case.clients, case.rounds)
            firsts = [s.first for s in stages]
            assert np.diff([*firsts, case.rounds]).tolist() == stage_lengths(case.rounds, 4)
            assert [s.capacity for s in stages] == [0.25, 0.5, 0.75, 1.0]


def test_every_case_has_its_estimates() -> None:
    for recipe in RECIPES:
        for case in recipe.cases:
            assert set(case.estimates) == set(case.methods if case.rounds else ()), recipe.name
    for method in ("fedavg-p", "scaffold-p"):
        recipe = load(f"fedavg-p-f{1 + (method == 'scaffold-p')}a")
        again = estimate(recipe, method)
        assert recipe.cases[0].estimates[method] == pytest.approx(again._asdict(), rel=1e-3)


def test_costs_add_up() -> None:
    recipe = load("dfedalt-t1")
    parts = [cost(recipe, [n], [m]).flops for n in recipe.find() for m in recipe.methods]
    assert sum(parts) == pytest.approx(cost(recipe).flops)


def test_values_follow_the_protocol() -> None:
    recipe = load("dfedalt-t2")
    rows = [
        {
            "round": t + 1,
            "personal_accuracy_after_mix": a,
            "personal_accuracy_after_train": b,
            "global_accuracy_local": c,
        }
        for t, (a, b, c) in enumerate([(0.5, 0.9, 0.4), (0.95, 0.7, 0.7), (0.6, 0.6, 0.55)])
    ]
    alt, avg = recipe.entry("dfedalt"), recipe.entry("fedavg")
    assert value("rounds_to_90", recipe, alt, rows) == 2
    assert value("rounds_to_90", recipe, avg, rows) == 1
    assert value("rounds_to_99", recipe, alt, rows) is None
    exactly = [{"round": 1, "personal_accuracy_after_mix": 0.29}]  # 100 * 0.29 is less than 29
    assert value("rounds_to_29", recipe, alt, exactly) == 1
    assert value("personal_accuracy", load("dfedalt-t1"), alt, rows) == pytest.approx(95)
    assert value("global_accuracy", load("fedlmt-t3"), alt, rows) == pytest.approx(55)
    gradients = [
        {"gradient_norm_shared": g, "gradient_norm_personal": 2 * g - 2} for g in (9.0, 9.0, 9.0, 3.0, 2.0, 6.0)
    ]
    assert value("gradient_norm", load("fedavg-p-f1a"), alt, gradients) == pytest.approx(4)  # the last fifth alone
    twice = gradients[-2:] * 5  # sqrt(2 + 2) and sqrt(6 + 10), in turn
    assert value("gradient_norm", load("fedavg-p-f1a"), alt, twice) == pytest.approx(3)
    sent = [{"parameters_sent": 3_000_000_000}] * 2
    assert value("comm_gparams", load("fedlmt-t2-image"), alt, sent) == pytest.approx(3)


def test_without_published_numbers_all_metrics_of_the_experiment_are_told() -> None:
    row = {
        "round": 1,
        "personal_accuracy_after_mix": 0.71,
        "personal_accuracy_after_train": 0.8,
        "global_accuracy": 0.3,
        "global_accuracy_local": 0.65,
    }
    both = recipe_results(load("dfedalt-f1"), {(1, "dfedavg"): [[row]]})
    assert [(r.metric, r.ours) for r in both] == [("personal_accuracy", [71]), ("global_accuracy_val", [30])]
    speed = recipe_results(load("fedlmt-f4"), {(1, "fedlmt"): [[row]]})
    assert [(r.metric, r.ours) for r in speed] == [("global_accuracy", [65]), ("rounds_to_70", [1])]


def test_rounds_have_no_mean_unless_all_seeds_reach_the_target() -> None:
    runs = [[{"round": 1, "personal_accuracy_after_mix": accuracy}] for accuracy in (0.9, 0.1)]
    result, speedup = recipe_results(load("dfedalt-t2"), {(1, "dfedalt"): runs})
    assert speedup.ours == [1, None]
    assert result.ours == [1, None]
    assert result.mean is result.difference is None


def test_difference_is_ours_minus_theirs() -> None:
    row = {"round": 1, "personal_accuracy_after_mix": 0.9}
    (result,) = recipe_results(load("dfedalt-t1"), {(1, "dfedalt"): [[row], [row]]})
    assert result.published is not None
    assert result.published.value == 88.85
    assert result.difference == pytest.approx(1.15)
    assert result.spread == 0


def test_the_spread_is_that_of_a_sample_of_seeds() -> None:
    """1 and 3 are 1 away from their mean: the square root of 2 / (n - 1)."""
    assert RecipeResult(1, "dfedalt", "personal_accuracy", None, [1.0, 3.0]).spread == pytest.approx(2**0.5)


def test_fewer_clients_get_graphs_that_fit() -> None:
    for recipe in RECIPES:
        for reading in (None, *READINGS):
            small = apply_changes(recipe.read(reading), Changes(clients=5))
            for case in small.cases:
                for method in case.methods:
                    graph = small.settings(method, case).get("topology")
                    if graph and graph != "grid":  # five clients make no grid, which the graph itself says
                        assert topology.build(graph, 5).n == 5


def test_figure_5_of_fedlmt_compares_networks_that_are_trained_whole() -> None:
    """In the sizes of the paper's Table 1, but for depth, whose printed parameters no head gives."""
    recipe, sizes = load("fedlmt-f5"), {}
    for case in recipe.cases[:9]:
        (method,) = case.methods
        with torch.device("meta"):
            model = recipe.algorithm(method, case).adapt(Model(recipe.model(case), cross_entropy))
        sizes[case.label] = sum(p.numel() for p in model.module.parameters())
        assert recipe.settings(method, case)["weighting"] == "size"  # as FedAvg, which all of them are here
    assert [sizes[f"cifar10 low rank b{k}"] for k in (1, 2, 3)] == [421_962, 1_430_538, 3_431_946]
    assert [sizes[f"cifar10 width b{k}"] for k in (1, 2, 3)] == [701_466, 2_797_610, 6_288_442]
    assert [recipe.settings("depth-scale", f"cifar10 depth b{k}")["capacities"] for k in (1, 2, 3)] == [
        "b1",
        "b2",
        "b3",
    ]


def test_fewer_clients_get_data_that_fit() -> None:
    text = apply_changes(load("fedlmt-t2-text"), Changes(clients=10)).cases[0]
    assert (text.data, text.partition) == ("wikitext2:rows=10,hide=anew", "pathological:1")
    table = load("dfedalt-t1")
    few = apply_changes(table, Changes(clients=4, data="digits"))
    assert [case.partition for case in few.cases[2:4]] == ["pathological:3", "pathological:5"]
    assert apply_changes(table, Changes(clients=4, partition="iid")).cases[2].partition == "iid"
    assert "partition pathological:3 instead of pathological:2" in shortenings(table, few, [(3, "local")], seeds=3)


def test_the_published_size_is_no_shortening() -> None:
    recipe = load("fedlmt-t2-image")
    same = apply_changes(recipe, Changes(rounds=2000, clients=100, data="cifar10", set=["fedlmt.rank_ratio=0.15"]))
    assert same.cases[0].transform == recipe.cases[0].transform
    assert shortenings(recipe, same, [(1, method) for method in recipe.cases[0].methods], seeds=1) == []


@pytest.mark.parametrize("other", ["dfedsalt.sam=adaptive", "dfedsalt.rho=0.05"])
def test_no_reading_warns_of_settings_that_were_changed(other: str) -> None:
    recipe = load("dfedalt-t1")
    for changed, warned in (("lr=0.05", 1), (other, 0)):
        run = apply_changes(recipe.read("paper"), Changes(set=[changed]))
        assert len(recipe.warnings("paper", ["dfedsalt"], run)) == warned, changed


def test_in_python_the_same_sentences() -> None:
    with pytest.raises(UserError, match="did you mean dfedalt-t1"):
        load("dfedalt-t11")
    with pytest.raises(UserError, match="method of dfedalt-t3"):
        load("dfedalt-t3").algorithm("scaffold")
