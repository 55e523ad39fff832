"""The house: rooms whose imports point downward, files and functions of a readable size, a name for one thing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import coterie
from measure_walks import round_walk

PACKAGE = Path(coterie.__file__).parent
# From the ground up: a room imports from its own and from those below it. Rooms on one floor do not know each other.
FLOORS = (
    ("core",),
    ("data", "store", "topology"),
    ("engines",),
    ("exchange", "models"),
    ("local",),
    ("submodels",),
    ("algorithms", "measure"),
    ("method", "track"),
    ("training",),
    ("cluster", "export", "net"),
    ("report",),
    ("study",),
    ("cli",),
    ("papers",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Imports when a function runs that point upward: Ray is of no use to most runs, and a run shows itself by a report.
UPWARD = {("training/rounds.py", "cluster"), ("training/run.py", "report")}
LAZY = {"cli", "papers"}  # these rooms import others when a function runs: help and recipes need no torch
TYPES = {"training/settings.py"}  # its options are declared without torch, and checked when torch is there anyway
# Functions of more than 30 lines, docstring aside. A family shows its whole program in one place.
LONG = {
    "algorithms/controlled.py controlled",
    "algorithms/fedhmv2.py fedhmv2",
    "algorithms/method.py method",
    "algorithms/peers.py decentralized",
    "algorithms/pushsum.py push_sum",
    "algorithms/server.py federated",
    "training/experiment.py run_shard_round",
}


@cache
def parsed() -> list[tuple[str, str, ast.Module]]:
    """(file, text, tree) of everything in the package."""
    files = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    return [(name, text, ast.parse(text)) for name, text in texts.items()]


def imports() -> Iterator[tuple[str, str, bool]]:
    """(file, room, whether it is imported with the file) for everything that a file takes from the package."""
    for name, _, tree in parsed():
        if name == "__init__.py":  # the door to all of them
            continue
        for_types = [node for part in tree.body if isinstance(part, ast.If) for node in part.body]
        for node in ast.walk(tree):
            if node not in for_types and isinstance(node, ast.ImportFrom) and node.level:
                here = ["coterie", *name.split("/")[:-1]]
                path = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
                rooms = [path[1]] if path[1:] and path[1] else [alias.name for alias in node.names]
                yield from ((name, room, node in tree.body) for room in rooms)


def test_rooms_point_downward() -> None:
    found = set()
    for file, room, at_once in imports():
        if room == "__version__":
            continue
        own = file.split("/")[0].removesuffix(".py")
        if room == own or FLOOR[room] < FLOOR[own]:
            assert at_once or own in LAZY or room == own or file in TYPES, f"{file} imports {room} when a function runs"
            continue
        assert not at_once, f"{file} imports {room}, which is above it"
        found.add((file, room))
    assert found == UPWARD


def test_papers_stand_on_what_is_public() -> None:
    """Nothing below imports them, which the floors hold; they import nothing private of it."""
    for file, _, tree in parsed():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and file.startswith("papers/")]
        names = [part for node in nodes for part in (*(node.module or "").split("."), *(a.name for a in node.names))]
        assert [name for name in names if name.startswith("_")] == [], file


def test_files_have_a_readable_size() -> None:
    assert {file: lines for file, text, _ in parsed() if (lines := len(text.splitlines())) > 500} == {}


def test_functions_have_a_readable_size() -> None:
    found = set()
    for file, _, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = node.body[bool(ast.get_docstring(node)) :] or node.body
                if (node.end_lineno or 0) - first[0].lineno >= 30:
                    found.add(f"{file} {node.name}")
    assert found == LONG


def test_asserts_have_no_effect() -> None:
    """Python leaves them out under -O: a call or an assignment in one would be left out as well."""
    for file, _, tree in parsed():
        asserted = (found.test for found in ast.walk(tree) if isinstance(found, ast.Assert))
        for node in (part for test in asserted for part in ast.walk(test)):
            pure = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "len")
            assert pure or not isinstance(node, ast.Call | ast.NamedExpr | ast.Await), f"{file}, line {node.lineno}"


def test_a_class_name_exists_once() -> None:
    names = [node.name for _, _, tree in parsed() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_a_round_is_short() -> None:
    """On the serial engine, which is there to be read; the page of the architecture draws the same path."""
    called = round_walk("serial", "dfedalt", topology="ring").called
    assert len(called) <= 98, called
    assert len({each.file for each in called}) <= 20
    drawn = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = drawn.split("## The walk of a round")[1].split("\n## ")[0]
    steps = re.findall(r"^    +((?:\w+\.)*\w+)", drawing, flags=re.MULTILINE)
    names = [each.name.replace(".<locals>", "") for each in called]
    places = [names.index(step) for step in steps]
    assert len(steps) > 20
    assert places == sorted(places)


def test_only_preparing_builds_an_experiment() -> None:
    """Everything that trains is checked in one place; an experiment itself is bound again where it changes."""
    built = re.compile(r"\bExperiment(\.of|\.bound)?\(")
    places = {name for name, text, _ in parsed() if built.search(text)}
    assert places == {"training/prepare.py", "training/experiment.py"}


def test_an_option_of_a_run_stands_in_few_files() -> None:
    """Where it is declared, typed and used, and where real peers write it; other things have these names, too."""
    others = re.compile(r"plotly\.offline|WANDB_MODE=offline|run\.offline|_patience|--patience")
    for option in ("patience", "offline"):
        word = re.compile(rf"\b{option}\b")
        files = [name for name, text, _ in parsed() if word.search(others.sub("", text))]
        assert len(files) <= 5, f"{option} stands in {files}"
