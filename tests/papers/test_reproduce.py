"""docs/reproduce.md has a line for every table and figure of the papers, and says what is true now."""

import json

import pytest

import reproduce
import tried
from coterie.papers import recipes

LINES = {paper: reproduce.lines(paper) for paper in recipes.papers()}


@pytest.mark.parametrize("paper", recipes.papers())
def test_every_table_and_figure_has_its_line(paper: str) -> None:
    """Whole or in lettered parts; those without an experiment say why, and no recipe covers them."""
    told = {row[0].rstrip("abcd") for row in LINES[paper]}
    assert told == {f"{kind} {n}" for kind, count in reproduce.PRINTED[paper].items() for n in range(1, count + 1)}
    without = {item for of, item in reproduce.NO_EXPERIMENT if of == paper}
    assert not without & {item.rstrip("abcd") for item, _ in reproduce.covered(paper)}
    assert all(len(row) == 5 and all(row) for row in LINES[paper])


def test_every_recipe_and_every_published_number_has_a_line() -> None:
    commands = {row[1].split()[3] for rows in LINES.values() for row in rows if row[1] != "-"}
    assert {command.rstrip("`") for command in commands} == set(recipes.names())
    for number in recipes.published_numbers():
        kind, digits = {"T": "Table", "F": "Figure"}[number.table[0]], number.table[1:].split("-")[0]
        assert f"{kind} {digits}" in {row[0].rstrip("abcd") for row in LINES[number.paper]}, number


def test_the_page_is_up_to_date() -> None:
    page = reproduce.PAGE.read_text(encoding="utf-8")
    assert reproduce.written(page) == page, "run `make reproduce`"


def test_a_recipe_tried_at_its_size_has_a_run_of_its_size() -> None:
    """With the data, the clients, the model and the settings of the paper, after any number of rounds."""
    attempts = tried.load_attempts()
    for recipe in map(recipes.load, recipes.names()):
        if recipe.trains and recipe.paper != "fedavg-p" and tried.state(recipe.name, attempts) == tried.FULL:
            assert any(list(reproduce.cells(recipe, run["config"], 10**9)) for run in reproduce.all_runs()), recipe.name


def test_a_run_counts_where_it_is_what_was_published() -> None:
    run = json.loads((reproduce.EVIDENCE / "cifar10.json").read_text(encoding="utf-8"))["fedper"]
    table, config = recipes.load("dfedalt-t1"), run["config"]
    assert list(reproduce.cells(table, config, 500)) == [("cifar10 dirichlet:0.3", "fedper")]
    assert list(reproduce.cells(table, config, 480)) == []  # it was stopped
    for key, changed in (
        ("settings", {"lr": 0.5}),
        ("data", {"partition": "iid"}),
        ("data", {"clients": 50}),
        ("model", {"name": "resnet18-bn"}),
    ):
        assert list(reproduce.cells(table, {**config, key: {**config[key], **changed}}, 500)) == [], changed
    for around in ({"init": "per-client"}, {"validation": 0.2}, {"drop_messages": 0.1}, {"offline": 0.1}):
        assert list(reproduce.cells(table, {**config, **around}, 500)) == [], around
    assert list(reproduce.cells(table, {**config, "rounds": 1000}, 500))  # up to there its rates are the same
    run = json.loads((reproduce.EVIDENCE / "cifar10.json").read_text(encoding="utf-8"))["fedavg"]
    config = run["config"]
    assert "finetune_epochs" not in config["settings"]  # the run is older than this setting, so it tuned nothing
    assert list(reproduce.cells(table, config, 500)) == [("cifar10 dirichlet:0.3", "fedavg")]
    tuned = table.settings("fedavg-ft")
    assert list(reproduce.cells(table, {**config, "settings": tuned}, 500)) == [("cifar10 dirichlet:0.3", "fedavg-ft")]
    for changed in ({**config["settings"], "quantize": 8}, {**config["settings"], "no_longer_a_setting": 1}):
        assert list(reproduce.cells(table, {**config, "settings": changed}, 500)) == [], changed
    trained, counted = recipes.load("fedlmt-t2-image"), recipes.load("fedlmt-t1")  # of the same clients and model
    data = {"source": "cifar10", "partition": "dirichlet-by-class:0.5", "clients": 100}
    of_both = {
        "method": "fedlmt",
        "settings": trained.settings("fedlmt"),
        "data": data,
        "model": {"name": "resnet18-bn"},
        "transform": trained.case(1).transform,
        "rounds": 2000,
    }
    assert list(reproduce.cells(trained, of_both, 2000)) == [("cifar10 dirichlet-by-class:0.5", "fedlmt")]
    assert list(reproduce.cells(trained, {**of_both, "transform": None}, 2000)) == []
    assert list(reproduce.cells(trained, {**of_both, "rounds": 3000}, 2000)) == []  # its cosine ends elsewhere
    assert list(reproduce.cells(counted, of_both, 2000)) == []
    words = {row[0]: row[4] for row in LINES["dfedalt"]}
    assert words["Table 1"].startswith("[in part: ")
    assert words["Table 5"] == "never"
    assert {row[4] for row in LINES["fedavg-p"] if row[0].startswith("Figure")} == {"[run](evidence/004_recipes.md)"}
