"""Lists of names, in helps and on pages, have every name of their table; pages have what a script makes of it."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import coterie as ct
import lists
from coterie.core.choices import ENGINES, INITS, LOSS_NAMES, METRICS
from coterie.core.schema import ENGINE_NAME, Init, MeasureName, Precision, Select
from coterie.data.catalog import CATALOG
from coterie.data.partition import NATURAL
from coterie.local.paces import PACES
from coterie.local.parse import OPTIMIZERS
from coterie.models.losses import LOSSES
from coterie.training.select_engine import TAKES
from coterie.training.settings import RAY

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """The words of a page."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def first_column(name: str) -> set[str]:
    """The names in the first column of a page's tables, without their arguments."""
    cells = re.findall(r"^\| (`.*?) \|", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {text for cell in cells for text in re.findall(r"`([\w-]+)", cell)}


@pytest.mark.parametrize("name", lists.PAGES)
def test_the_lists_of_a_page_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert lists.written(text) == text, "run `make lists`"
    assert text.count("<!-- list: ") == len(lists.LIST.findall(text)) > 0


def test_the_command_lists_what_there_is() -> None:
    assert lists.NAMES_FILE.read_text(encoding="utf-8") == lists.listed(), "run `make lists`"


def test_every_list_is_on_a_page() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in lists.PAGES)
    assert {name for _, name, _ in lists.LIST.findall(text)} == lists.lists().keys()


def test_a_list_is_written_anew_and_what_stands_around_it_stays() -> None:
    old = "Models: <!-- list: optimizers -->`sgd`, `gone`<!-- end -->, or yours <!-- list: metrics --><!-- end -->."
    new = lists.written(old)
    assert new.startswith("Models: <!-- list: optimizers -->`sgd`, `adam`, `adamw`<!-- end -->, or yours <!-- list: ")
    assert new.endswith("`iou`<!-- end -->.")


@pytest.mark.parametrize(
    ("title", "table"),
    [
        ("Topologies", ct.topology.BUILDERS),
        ("Partitions", [*ct.data.PARTITIONS, NATURAL]),
        ("Data", ct.data.SOURCES),
        ("Published data, whose files Coterie reads", CATALOG),
        ("Models", ct.models.BUILDERS),
        ("Metrics", ct.measure.BUILT_IN),
        ("Optimizers", OPTIMIZERS),
    ],
)
def test_the_readme_lists_every_name(title: str, table: list[str]) -> None:
    names = re.search(rf"{title}: <!-- list: [\w ]+ -->(.*?)<!-- end -->", page("README.md"))
    assert names is not None
    assert re.findall(r"`(.*?)`", names[1]) == list(table)


def test_the_readme_lists_every_method_once() -> None:
    names = re.findall(r"<!-- list: methods, .*? -->(.*?)<!-- end -->", page("README.md"))
    assert sorted(re.findall(r"`(.*?)`", "".join(names))) == sorted(ct.algorithms.BUILDERS)


@pytest.mark.parametrize(
    ("option", "table"),
    [
        ("metric", ct.measure.BUILT_IN),
        ("loss", LOSSES),
        ("record", get_args(MeasureName)),
        ("engine", [*TAKES, RAY]),
        ("precision", get_args(Precision)),
        ("select", get_args(Select)),
        ("init", get_args(Init)),
    ],
)
def test_the_help_lists_every_name(option: str, table: list[str]) -> None:
    commands: Any = typer.main.get_command(import_module("coterie.cli.app").app)
    shown = next(param.help for param in commands.commands["run"].params if param.name == option)
    assert set(table) <= set(re.findall(r"[a-z0-9][a-z0-9-]*", shown))


def test_what_the_helps_are_made_from_has_the_names_of_the_tables() -> None:
    assert list(METRICS) == list(ct.measure.BUILT_IN)
    assert list(LOSS_NAMES) == list(LOSSES)
    assert list(ENGINES) == [*TAKES, RAY]
    assert tuple(INITS) == get_args(Init)
    saved = {name for name in ENGINES if any(re.match(ENGINE_NAME, text) for text in (name, f"{name}:serial"))}
    assert saved == ENGINES.keys() - {"auto"}  # a run's files name the one that was selected


def test_the_pages_have_every_metric_and_topology() -> None:
    assert set(ct.measure.BUILT_IN) <= first_column("docs/metrics.md")
    assert set(ct.topology.BUILDERS) <= first_column("docs/own-topology.md")


def test_the_page_of_optimizers_has_every_optimizer_and_schedule() -> None:
    text = page("docs/your-own-optimizer.md")
    assert all(f"`{name}`" in text for name in OPTIMIZERS)
    assert all(f"`{name}:" in text for name in PACES)
