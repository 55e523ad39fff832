"""Lists of names that are written by hand, in helps and on pages, have every name of their table."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import coterie as ct
from coterie.core.schema import Init, MeasureName, Precision, Select
from coterie.data.catalog import CATALOG
from coterie.data.partition import NATURAL
from coterie.local.paces import PACES
from coterie.local.parse import OPTIMIZERS
from coterie.training.select_engine import TAKES

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    """The words of a page."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def first_column(name: str) -> set[str]:
    """The names in the first column of a page's tables, without their arguments."""
    cells = re.findall(r"^\| (`.*?) \|", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {text for cell in cells for text in re.findall(r"`([\w-]+)", cell)}


@pytest.mark.parametrize(
    ("title", "table"),
    [
        ("Topologies", ct.topology.BUILDERS),
        ("Partitions", [*ct.data.PARTITIONS, NATURAL]),
        ("Data", CATALOG),
        ("Models", ct.models.BUILDERS),
    ],
)
def test_the_readme_lists_every_name(title: str, table: list[str]) -> None:
    sentences = re.search(rf"{title}: (.*?)\.(?= [A-Z])", page("README.md"))
    assert sentences is not None
    assert set(table) <= set(re.findall(r"[a-z0-9][a-z0-9-]*", sentences[1]))


@pytest.mark.parametrize(
    ("option", "table"),
    [
        ("metric", ct.measure.BUILT_IN),
        ("record", get_args(MeasureName)),
        ("engine", [*TAKES, "ray"]),
        ("precision", get_args(Precision)),
        ("select", get_args(Select)),
        ("init", get_args(Init)),
    ],
)
def test_the_help_lists_every_name(option: str, table: list[str]) -> None:
    commands: Any = typer.main.get_command(import_module("coterie.cli.app").app)
    shown = next(param.help for param in commands.commands["run"].params if param.name == option)
    assert set(table) <= set(re.findall(r"[a-z0-9][a-z0-9-]*", shown))


def test_the_pages_have_every_metric_and_topology() -> None:
    assert set(ct.measure.BUILT_IN) <= first_column("docs/metrics.md")
    assert set(ct.topology.BUILDERS) <= first_column("docs/own-topology.md")


def test_the_page_of_optimizers_has_every_optimizer_and_schedule() -> None:
    text = page("docs/your-own-optimizer.md")
    assert all(f"`{name}`" in text for name in OPTIMIZERS)
    assert all(f"`{name}:" in text for name in PACES)
