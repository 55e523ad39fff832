"""Readings of paper and released code: every row of a recipe's table is what the recipe then runs."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.data import Transform
from coterie.papers.recipes import READINGS, Case, Protocol, Reading, Recipe, Statement, load, names
from coterie.papers.recipes.reading import ReadingName, merge

RECIPES = [load(name) for name in names()]
SILENT = ("not stated", "not released", "not public")
IDS = [recipe.name for recipe in RECIPES]


def concerned(recipe: Recipe, said: Statement) -> Iterator[tuple[Case, str]]:
    """The cases and methods whose settings a row speaks of."""
    for case in recipe.cases:
        for method in case.methods:
            if said.applies_to_case(case.label) and said.applies_to_method(method, recipe.methods[method].settings):
                yield case, method


def assert_has(recipe: Recipe, said: Statement, row: Reading) -> None:
    """The recipe is as one reading says."""
    for case, method in concerned(recipe, said):
        settings = recipe.settings(method, case)
        assert {k: settings[k] for k in said.settings} == dict(said.settings), (recipe.name, row.what, method)
    for case in recipe.cases:
        if said.applies_to_case(case.label):
            for part, value in said.case.items():
                assert getattr(case, part) == merge(getattr(case, part), value), (recipe.name, row.what, case.label)
    for part, value in said.protocol.items():
        assert getattr(recipe.protocol, part) == value, (recipe.name, row.what)


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_every_row_of_the_table_is_what_is_run(recipe: Recipe) -> None:
    """In our choice what we say we take, in a reading what the row says it has."""
    for row in recipe.readings:
        for said in row.says.get(row.chosen, ()):
            assert_has(recipe, said, row)
        for reading in READINGS:
            for said in row.says.get(reading, ()):
                assert_has(recipe.read(reading), said, row)


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_nothing_in_the_table_is_without_effect_or_reason(recipe: Recipe) -> None:
    for row in recipe.readings:
        assert row.chosen in (*READINGS, "ours"), row
        assert row.why, row
        assert set(row.says) <= {*READINGS, "ours"}, row
        for reading in READINGS:
            text = getattr(row, reading)
            assert text, row
            if text in SILENT:
                assert reading not in row.says, row
            elif row.unswitched is None:
                assert row.says.get(reading), f"{recipe.name}: {row.what} says what {reading} has, and nothing is run"
        for said in (said for all_of_it in row.says.values() for said in all_of_it):
            assert said.settings or said.case or said.protocol, row
            assert set(said.case) <= {field.name for field in fields(Case)} - {"label", "methods", "settings"}
            assert set(said.protocol) <= set(Protocol._fields)
            assert any(said.applies_to_case(case.label) for case in recipe.cases), (recipe.name, row.what, said.cases)
            assert not said.settings or list(concerned(recipe, said)), (recipe.name, row.what)
            for method in said.methods or ():
                assert set(said.settings) <= set(recipe.methods[method].settings), (row.what, method)


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_a_reading_replaces_what_a_case_varies_only_case_by_case(recipe: Recipe) -> None:
    """Else all cases of a sweep over it would become one and the same."""
    for row in recipe.readings:
        for said in (said for all_of_it in row.says.values() for said in all_of_it if not said.cases):
            for case, method in concerned(recipe, said):
                assert not set(said.settings) & set(case.settings.get(method, {})), (recipe.name, row.what, case.label)


def numbers(value: Any) -> set[float]:
    """The numbers in a value or a text; yes and no are none."""
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, int | float):
        return {float(value)}
    return {float(word) for word in re.findall(r"\d+\.?\d*(?:e-\d+)?|(?<=\()-\d", str(value))}


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_the_numbers_that_are_switched_to_stand_in_the_text(recipe: Recipe) -> None:
    """All but those that the case has in any reading, and the means and deviations of images."""
    for row in recipe.readings:
        for reading in READINGS:
            told = numbers(getattr(row, reading))
            for said in row.says.get(reading, ()):
                case = next(case for case in recipe.cases if said.applies_to_case(case.label))
                pad = said.case.get("transform", {}).get("pad") or None
                parts = {k: v for k, v in said.case.items() if k != "transform"}
                switched = {n for value in (*said.settings.values(), pad) for n in numbers(value)}
                switched |= {n for k, value in parts.items() for n in numbers(value) - numbers(getattr(case, k))}
                assert {abs(n) for n in switched} <= {abs(n) for n in told}, (recipe.name, row.what, reading)


def test_what_the_files_of_the_released_code_have() -> None:
    """Values from the released scripts, in a place of their own: a row and what it runs could be wrong together."""
    t2 = load("fedlmt-t2-image").read("code")
    found = {case.data: t2.settings("fedlmt", case) for case in t2.cases}
    assert {k: (s["rank_ratio"], s["keep_layers"]) for k, s in found.items()} == {
        "cifar10": (0.2, 1),
        "cifar100": (0.2, 9),
        "svhn": (0.15, 3),
        "tiny-imagenet": (0.15, 3),
    }
    assert load("fedlmt-f1").read("code").settings("pfedlmt")["keep_layers"] == 11
    assert load("dfedsam-t1").read("code").settings("dfedsam")["momentum"] == 0.9
    ditto = load("dfedpgp-t1").read("code").settings("ditto")
    assert (ditto["prox"], ditto["lam"], ditto["epochs"], ditto["personal_epochs"]) == ("split", 0.5, 2, 3)
    assert (
        load("dfedsam-t2").read("code").settings("dfedsam", "cifar10 dirichlet:0.3 grid")["topology"] == "grid:apart=9"
    )
    assert load("dfedalt-t1").settings("dfedalt")["weight_decay"] == 0.0005


def test_what_the_papers_print() -> None:
    alt = load("dfedalt-t1").read("paper")
    assert alt.settings("dfedalt")["weight_decay"] == 0.005
    assert alt.settings("dfedalt")["topology"] == "random:10"
    assert alt.settings("dfedalt", "cifar10 pathological:2")["personal_epochs"] == 5
    assert alt.settings("fedrep", "cifar10 pathological:2")["personal_epochs"] == 10
    neighbors, clients = load("dfedpgp-f3a").read("paper"), load("dfedpgp-f3b").read("paper")
    assert [neighbors.settings("dfedpgp", n)["topology"] for n in neighbors.find()] == [
        f"random-push:{k}" for k in (2, 5, 10, 20, 40)
    ]
    assert [clients.settings("dfedpgp", n)["topology"] for n in clients.find()] == [
        f"random-push:{k}" for k in (4, 9, 10, 10, 10, 10)
    ]


@pytest.mark.parametrize("name", ["fedlmt-t1", "fedlmt-t2-image", "fedlmt-t3", "fedlmt-f1"])
@pytest.mark.parametrize("reading", [None, *READINGS])
def test_flanc_has_the_weight_decay_of_its_own_release(name: str, reading: ReadingName | None) -> None:
    """The paper refers to the settings of that release; the release of FedLMT has another value for its methods."""
    recipe = load(name).read(reading)
    cells = [(case, method) for case in recipe.cases for method in case.methods]
    assert {recipe.settings(m, case)["weight_decay"] for case, m in cells if m == "flanc"} == {0.0001}
    assert {recipe.settings(m, case)["weight_decay"] for case, m in cells if m != "flanc"} == {0.0005}


def test_images_are_prepared_as_a_reading_says() -> None:
    recipe = load("fedlmt-t2-image")
    ours, paper = recipe.case("svhn").transform, recipe.read("paper").case("svhn").transform
    assert ours is not None
    assert paper is not None
    assert Transform(**ours).pad == 2
    assert Transform(**paper) == Transform(mean=(0.4377, 0.4438, 0.4728), std=(0.198, 0.201, 0.197))


def test_the_released_code_divides_the_data_in_its_own_way() -> None:
    table, image = load("dfedalt-t1").read("code"), load("fedlmt-t2-image").read("code")
    assert [case.partition for case in table.cases[1:3]] == ["dirichlet-reuse:0.3", "pathological-random:2"]
    assert {case.partition for case in image.cases} == {"dirichlet-by-class-tests:0.5"}
    assert [load("dfedalt-t1").read(reading).init("dfedalt") for reading in READINGS] == ["per-client", "common"]


def test_one_reading_is_read_once() -> None:
    recipe = load("000-T1")
    assert recipe.name == "dfedalt-t1"
    assert recipe.read(None) is recipe
    assert recipe.read("code").readings == ()
    with pytest.raises(UserError, match="reading"):
        recipe.read("notes")
