"""The pages of the architecture: short, and every file, function and class that they name is there."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"
ROOTS = (ROOT, PACKAGE.parent, PACKAGE)
IN_RUNS = {"slot/name", "clients/common.safetensors"}  # places in the files of a run
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [ARCHITECTURE, *sorted((ROOT / "docs" / "design").glob("*.md"))]


def page(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def paths(text: str) -> set[str]:
    """The files and folders that a page names in code, as in `core/files.py`, `core/files` or `net/{peer,setup}/`."""
    named = re.findall(r"`((?:[\w{},.-]+/)+[\w{},.-]*)[` ]", text)
    spelled = (re.split(r"\{|\}", name) for name in named)
    return {"".join(parts) for pieces in spelled for parts in product(*(piece.split(",") for piece in pieces))}


def is_there(name: str) -> bool:
    """Whether a file or folder of the repository or of the package has this name, perhaps without its ending."""
    module, _, attribute = name.rpartition(".")
    places = [name, f"{name}.py"] if attribute in ("py", "md", "toml", "json") or not module else [name, f"{module}.py"]
    return any((root / place).exists() for root in ROOTS for place in places)


def test_the_architecture_is_short() -> None:
    lines = page(ARCHITECTURE).splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "Imports"))] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_files_that_a_page_names_are_there(path: Path) -> None:
    assert [name for name in sorted(paths(page(path)) - IN_RUNS) if not is_there(name)] == []


def defined() -> set[str]:
    """The names of all functions, and of methods behind those of their classes, in the package."""
    names = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                nested = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef) and part is not node]
                names |= {node.name, *(f"{node.name}.{part.name}" for part in nested)}
    return names


@pytest.mark.parametrize("walk", ["comparison", "peer's round"])
def test_the_functions_of_a_walk_are_there(walk: str) -> None:
    """A test of the house holds the walk of a round, in its order."""
    drawing = page(ARCHITECTURE).split(f"## The walk of a {walk}")[1].split("\n## ")[0]
    steps = re.findall(r"^    +((?:\w+\.)*\w+)(?:  |$)", drawing, flags=re.MULTILINE)
    assert len(steps) > 15
    assert set(steps) - defined() == set()
