"""The table of rooms in docs/architecture.md: from FLOORS of tests/house/test_layers.py and the rooms' docstrings."""

import ast
from pathlib import Path
from typing import Any

import tables

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"
LAYERS = ROOT / "tests" / "house" / "test_layers.py"


def layers(name: str) -> Any:
    """Return a table of test_layers.py, which holds the package to it."""
    for node in ast.parse(LAYERS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def purpose(room: str) -> str:
    """Return the first line of a room's docstring."""
    file = PACKAGE / room / "__init__.py"
    text = (file if file.exists() else PACKAGE / f"{room}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].removesuffix(".").replace("``", "`")


def may_import(floor: int) -> str:
    """Return which rooms one on this floor may import."""
    return {0: "nothing", 1: "floor 0"}.get(floor, f"floors 0 to {floor - 1}")


def table() -> str:
    """Return the rooms from the top to the ground, with what each is for and may import."""
    floors = list(enumerate(layers("FLOORS")))
    rows = [
        [str(floor), f"`{room}`", purpose(room), may_import(floor)] for floor, rooms in floors[::-1] for room in rooms
    ]
    return tables.table(["floor", "room", "what it is", "may import"], rows)


def exceptions() -> str:
    """Return the rooms whose imports wait, and the files that import from above."""
    late = ", ".join(f"`{room}`" for room in sorted(layers("LAZY")))
    upward = ", ".join(f"`{file}` imports `{room}`" for file, room in sorted(layers("UPWARD")))
    return f"Imports that wait until a function runs: {late}. Imports from above, which wait as well: {upward}."
