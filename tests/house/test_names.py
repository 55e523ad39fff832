"""No part of the package knows a method by its name: a method says of itself what others need to know."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie.algorithms import BUILDERS

ROOT = Path(coterie.__file__).parent
THERE = ("algorithms", "papers")  # where methods are, and where papers say which ones they compare
EXCEPTIONS = {
    "cluster/start.py": "local is Ray's word for a cluster of one's own",
}
SPELLED = {spelled for name in BUILDERS for spelled in (name, name.replace("-", "_"))}
WORDS = {"local", "pooled"}
FILES = {
    p.relative_to(ROOT).as_posix(): p for p in sorted(ROOT.rglob("*.py")) if p.relative_to(ROOT).parts[0] not in THERE
}


def named(tree: ast.Module) -> Iterator[str]:
    """The methods that code names: in a text that is nothing else, as a function, imported or looked up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in SPELLED:
            yield str(node.value)
        # "local" is a word of English, and of Python's threading; samples of many owners are "pooled", too
        elif isinstance(node, ast.Attribute) and node.attr in SPELLED - WORDS:
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.alias) and node.name in SPELLED - WORDS:
            yield node.name


def test_nothing_is_known_by_the_name_of_a_method() -> None:
    found = {file: set(named(ast.parse(path.read_text(encoding="utf-8")))) for file, path in FILES.items()}
    assert {file: names for file, names in found.items() if names and file not in EXCEPTIONS} == {}
    assert all(found[file] for file in EXCEPTIONS)  # none that is not needed any more


@pytest.mark.parametrize(
    "code",
    ['x = "fedavg"', "algorithms.fedavg_p()", "from .algorithms import ditto", "def osgp(): ...", "{'local': 1}"],
)
def test_such_code_is_found(code: str) -> None:
    assert list(named(ast.parse(code)))
