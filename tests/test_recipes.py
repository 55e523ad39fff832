"""Recipes: data that fit our own names, published numbers in their places, and runs that say what they are."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coterie import algorithms, models, topology
from coterie.algorithms.settings import settings_of
from coterie.capacity import communication
from coterie.data import PARTITIONS, Federation, Preparation
from coterie.engines import Serial
from coterie.errors import RequestError
from coterie.experiment import Experiment
from coterie.measure import MEASURES
from coterie.problem import Model, cross_entropy
from coterie.recipes import READINGS, Case, Recipe, load, names, papers, published
from coterie.recipes.costs import cost
from coterie.recipes.estimate import estimate
from coterie.recipes.outcome import compared, value
from coterie.recipes.shorten import Changes, changed, shortenings
from coterie.recipes.sources import SOURCES, source
from coterie.text import parse
from helpers_cli import ENVIRONMENT, Cli, assert_same_run

RECIPES = [load(name) for name in names()]
SHORT = ("--case", "1", "--data", "digits", "--model", "small-cnn", "--clients", "5", "--rounds", "2", "--seeds", "1")


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    with Cli() as started:
        yield started


def named(recipe: Recipe) -> str:
    return recipe.name


def test_all_experiments_of_five_papers_are_there() -> None:
    counts = {paper: sum(r.paper == paper for r in RECIPES) for paper in papers()}
    assert counts == {"dfedalt": 9, "dfedpgp": 9, "fedlmt": 13, "dfedsam": 8, "fedavg-p": 7}


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_every_name_is_one_of_ours(recipe: Recipe) -> None:
    for entry in recipe.methods.values():
        known = settings_of(algorithms.builder(entry.builder))
        assert set(known) >= {*entry.settings, *entry.paper, *entry.code}
        assert entry.point in ("after_mix", "after_train", "after_finetune")
    for case in recipe.cases:
        assert parse(case.data).name in SOURCES
        assert parse(case.partition).name in PARTITIONS
        assert parse(case.model).name in models.BUILDERS
        assert set(case.methods) <= set(recipe.methods)
        assert set(case.settings) <= set(case.methods)
        assert case.preparation is None or Preparation(**case.preparation).std
    assert len({case.label for case in recipe.cases}) == len(recipe.cases)
    assert set(recipe.record) <= set(MEASURES)
    assert {r.chosen for r in recipe.readings} <= {*READINGS, "ours"}
    assert all(r.why and r.paper and r.code for r in recipe.readings)


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_settings_are_complete_in_every_reading(recipe: Recipe) -> None:
    for number, case in enumerate(recipe.cases, 1):
        for method in case.methods:
            for reading in (None, *READINGS):
                asked = recipe.settings(method, number, reading)
                built = recipe.algorithm(method, reading, number).settings
                assert json.loads(json.dumps({k: built[k] for k in asked})) == asked
                assert set(built) == set(asked)


def one_sample_each(case: Case) -> Federation:
    known = source(case.data)
    tokens = len(known.shape) == 1
    x = torch.zeros(case.clients, *known.shape, dtype=torch.int64 if tokens else torch.float32)
    y = torch.zeros(case.clients, *(known.shape if tokens else ()), dtype=torch.int64)
    rows = tuple(torch.arange(i, i + 1) for i in range(case.clients))
    return Federation(x, y, x, y, rows, rows, known.classes)


def test_every_method_binds_at_its_published_size() -> None:
    amounts = ("lr", "lr_min", "lr_decay", "personal_lr", "momentum", "weight_decay", "clip", "rho", "svd_every")
    done: set[str] = set()
    modules: dict[str, Model] = {}
    for recipe in RECIPES:
        for case in recipe.cases:
            federation = one_sample_each(case)
            if case.model not in modules:
                with torch.device("meta"):  # shapes only: no memory, no decomposition
                    modules[case.model] = Model(recipe.model(case), cross_entropy)
            for method in case.methods:
                for reading in (None, *READINGS):
                    shape = {k: v for k, v in recipe.settings(method, case, reading).items() if k not in amounts}
                    key = json.dumps([case.model, case.clients, recipe.entry(method).builder, shape])
                    if key not in done:
                        done.add(key)
                        algorithm = recipe.algorithm(method, reading, case)
                        parts = (modules[case.model], federation, algorithm, Serial(), 0, case.rounds or 1)
                        Experiment.of(*parts, record=recipe.record).check()
    assert len(done) > 100


def test_where_paper_and_code_differ_both_are_kept() -> None:
    recipe = load("dfedalt-t1")
    assert recipe.settings("dfedalt")["weight_decay"] == 0.0005
    assert recipe.settings("dfedalt", reading="paper")["weight_decay"] == 0.005
    assert recipe.settings("dfedalt", reading="paper")["topology"] == "random:10"
    assert recipe.settings("dfedalt", case="cifar10 pathological:2")["personal_epochs"] == 5
    assert recipe.settings("fedrep", case="cifar10 pathological:2")["personal_epochs"] == 10
    assert load("dfedpgp-t1").settings("dfedpgp", reading="paper")["topology"] == "random-push:10"
    assert load("dfedsam-t1").settings("dfedsam", reading="code")["momentum"] == 0.9
    assert load("000-T1").name == "dfedalt-t1"


def test_every_published_number_has_a_place_or_a_reason() -> None:
    numbers = published()
    assert len(numbers) == 1070
    for p in numbers:
        recipe = load(p.recipe)
        assert p.paper == recipe.paper
        assert not p.method or p.method in recipe.methods
        assert p.reason or (p.case and p.method), p
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
    sent = {p.method: p.value for p in published("fedlmt-t2-image") if p.case == 1 and p.metric == "comm_gparams"}
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
    progressive = load("fedlmt-t7").cases[0].estimates
    assert progressive["progfed"]["bytes"] == pytest.approx(8e9 * 148.687, rel=1e-3)  # both directions, 4 bytes


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
        {"round": t + 1, "personal_accuracy_after_mix": a, "personal_accuracy_after_train": b}
        for t, (a, b) in enumerate([(0.5, 0.9), (0.95, 0.7), (0.6, 0.6)])
    ]
    alt, avg = recipe.entry("dfedalt"), recipe.entry("fedavg")
    assert value("rounds_to_90", recipe, alt, rows, 1.0) == 2
    assert value("rounds_to_90", recipe, avg, rows, 1.0) == 1
    assert value("rounds_to_99", recipe, alt, rows, 1.0) is None
    assert value("personal_accuracy", load("dfedalt-t1"), alt, rows, 1.0) == pytest.approx(95)
    assert value("global_accuracy", load("fedlmt-t3"), alt, rows, 1.0) == pytest.approx(60)
    gradients = [{"gradient_norm_shared": 7.0, "gradient_norm_personal": 10.0}]
    assert value("gradient_norm", load("fedavg-p-f1a"), alt, gradients, 0.9) == pytest.approx(4)
    sent = [{"parameters_sent": 3_000_000_000}] * 2
    assert value("comm_gparams", load("fedlmt-t2-image"), alt, sent, 0.1) == pytest.approx(3)


def test_difference_is_ours_minus_theirs() -> None:
    row = {"round": 1, "personal_accuracy_after_mix": 0.9}
    (result,) = compared(load("dfedalt-t1"), 1, "dfedalt", [[row], [row]])
    assert result.published is not None
    assert result.published.value == 88.85
    assert result.difference == pytest.approx(1.15)
    assert result.spread == 0


def test_fewer_clients_get_graphs_that_fit() -> None:
    for recipe in RECIPES:
        for reading in (None, *READINGS):
            small = changed(recipe, Changes(clients=5), reading)
            for case in small.cases:
                for method in case.methods:
                    graph = small.settings(method, case, reading).get("topology")
                    if graph and graph != "grid":  # five clients make no grid, which the graph itself says
                        assert topology.build(graph, 5).n == 5


def test_the_published_size_is_no_shortening() -> None:
    recipe = load("fedlmt-t2-image")
    assert shortenings(recipe, recipe.cases[0], Changes(rounds=2000, clients=100, data="cifar10"), seeds=1) == []


def test_list_and_show_need_no_torch() -> None:
    program = (
        "import sys; from coterie.cli.recipe_show import show_recipe, show_recipes; from coterie.recipes import names\n"
        "show_recipes(None)\nfor name in names(): show_recipe(name)\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    for text in ("dfedalt-t1", "Table 1, Figure 3", "88.85", "weight_decay=0.005", "85.30?"):
        assert text in done.stdout


def test_a_shortened_run_stands_beside_the_published_numbers_and_says_so(cli: Cli, tmp_path: Path) -> None:
    done = cli.succeed("recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedalt", *SHORT, "--out", "a", cwd=tmp_path)
    assert "SHORTENED, not comparable" in done.out
    told = ("2 of 500 rounds", "5 of 100 clients", "1 of 3 seeds", "digits instead of cifar10", "small-cnn instead of")
    assert [text for text in told if text not in " ".join(done.out.split())] == []
    assert "84.17" in done.out
    assert "88.85" in done.out
    assert "after local training" in done.out
    assert "after mixing" in done.out
    saved = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert [r["method"] for r in saved["results"]] == ["fedavg", "dfedalt"]
    assert saved["shortened"]
    best = max(json.loads(line)["personal_accuracy_after_mix"] for line in metrics(tmp_path / "a/case1-dfedalt-seed0"))
    assert saved["results"][1]["ours"] == [pytest.approx(100 * best)]


def metrics(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_an_interrupted_recipe_is_resumed_to_the_same_numbers(cli: Cli, tmp_path: Path) -> None:
    command = ("recipe", "run", "dfedalt-t1", "--methods", "fedavg,dfedalt", *SHORT)
    cli.succeed(*command, "--out", "whole", cwd=tmp_path)
    killed = cli.run(*command, "--out", "cut", cwd=tmp_path, at="rename cut/case1-dfedalt-seed0/checkpoint/*2.json")
    assert killed.status == -signal.SIGKILL
    cli.refuse(*command, "--out", "cut", cwd=tmp_path, names=("already exists", "--resume"))
    cli.succeed(*command, "--out", "cut", "--resume", cwd=tmp_path)
    for method in ("fedavg", "dfedalt"):
        assert_same_run(tmp_path / "whole" / f"case1-{method}-seed0", tmp_path / "cut" / f"case1-{method}-seed0")
    one, other = (json.loads((tmp_path / a / "recipe.json").read_text()) for a in ("whole", "cut"))
    assert one == other
    shutil.rmtree(tmp_path / "cut")


WRONG = {
    "unknown recipe": (("run", "dfedalt-t9"), ("did you mean dfedalt-t",)),
    "unknown recipe shown": (("show", "nothing"), ("nothing",)),
    "unknown paper": (("list", "--paper", "dfedatl"), ("dfedalt",)),
    "method of another recipe": (("run", "dfedalt-t3", "--methods", "fedavg"), ("dfedalt-t3", "fedavg")),
    "case out of range": (("run", "dfedalt-t3", "--case", "3"), ("1 to 2",)),
    "case without meaning": (("run", "dfedalt-t3", "--case", "svhn"), ("svhn", "cifar10 dirichlet:0.3")),
    "unknown reading": (("run", "dfedalt-t3", "--reading", "notes"), ("paper", "code")),
    "method not run in this case": (("run", "fedlmt-t3", "--case", "2", "--methods", "fedavg"), ("fedavg", "--case")),
    "nothing to train": (("run", "fedlmt-t1"), ("coterie capacity",)),
    "nothing at all": (("run", "dfedpgp-f4"), ("nothing is trained",)),
    "data that is not there": (("run", "dfedalt-t3", "--data", "cifar11"), ("cifar11",)),
    "a model that does not fit": (("run", "dfedalt-t3", *SHORT, "--model", "resnet19"), ("resnet18-gn",)),
    "resume of nothing": (("run", "dfedalt-t3", "--resume"), ("--out",)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_run_is_refused_in_one_sentence(cli: Cli, tmp_path: Path, wrong: str) -> None:
    arguments, told = WRONG[wrong]
    cli.refuse("recipe", *arguments, cwd=tmp_path, names=told)
    assert not list(tmp_path.iterdir())


def test_in_python_the_same_sentences() -> None:
    with pytest.raises(RequestError, match="did you mean dfedalt-t1"):
        load("dfedalt-t11")
    with pytest.raises(RequestError, match="method of dfedalt-t3"):
        load("dfedalt-t3").algorithm("scaffold")
