"""The house: rooms whose imports point downward, and files of a readable size."""

import ast
from collections.abc import Iterator
from pathlib import Path

import coterie

PACKAGE = Path(coterie.__file__).parent
# From the ground up: a room imports from its own and from those below it. Rooms on one floor do not know each other.
FLOORS = (
    ("core",),
    ("data", "store"),
    ("topology",),
    ("engines",),
    ("exchange", "models"),
    ("local",),
    ("submodels",),
    ("algorithms", "measure"),
    ("method", "track"),
    ("training",),
    ("bench", "cluster", "export", "recipes", "theory"),
    ("report",),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Imports when a function runs that point upward: Ray is of no use to most runs.
UPWARD = {("training/fit.py", "cluster")}
LONG = {"training/experiment.py": 320, "training/fit.py": 320}  # one round; one run


def imports() -> Iterator[tuple[str, str, bool]]:
    """(file, room, whether it is imported with the file) for everything that a file takes from the package."""
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE)
        if name.as_posix() == "__init__.py":  # the door to all of them
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                here = ["coterie", *name.parts[:-1]]
                path = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
                rooms = [path[1]] if path[1:] and path[1] else [alias.name for alias in node.names]
                yield from ((name.as_posix(), room, node in tree.body) for room in rooms)


def test_rooms_point_downward() -> None:
    found = set()
    for file, room, at_once in imports():
        if room == "__version__":
            continue
        own = file.split("/")[0].removesuffix(".py")
        if room == own or FLOOR[room] < FLOOR[own]:
            continue
        assert not at_once, f"{file} imports {room}, which is above it"
        found.add((file, room))
    assert found == UPWARD


def test_files_have_a_readable_size() -> None:
    sizes = {f.relative_to(PACKAGE).as_posix(): len(f.read_text("utf-8").splitlines()) for f in PACKAGE.rglob("*.py")}
    assert {f: n for f, n in sizes.items() if n > LONG.get(f, 300)} == {}
