"""Measure the sizes of the package: rooms, long functions, long calls, small modules and refusals.

Run it as ``python docs/generate/measure_sizes.py [PACKAGE]``, where PACKAGE is a folder such as ``src/coterie``.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import tables

SRC = Path(__file__).parents[2] / "src" / "coterie"
LONG_FUNCTION = 40  # lines without signature and docstring
MANY_ARGUMENTS = 6  # positional ones in a call
SMALL_MODULE = 40  # lines
ROWS = ("lines", "files", "longest", "functions", "refusals")


class Source(NamedTuple):
    """A file of the package."""

    name: str
    lines: int
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder, or the module that lies beside the folders."""
        return self.name.split("/")[0].removesuffix(".py")

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def calls(self) -> list[ast.Call]:
        """All calls."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @property
    def refusals(self) -> int:
        """How many times an error with a sentence of its own is raised."""
        raised = (node.exc for node in ast.walk(self.tree) if isinstance(node, ast.Raise))
        return sum(isinstance(error, ast.Call) and any(map(has_text, error.args)) for error in raised)

    def imported(self, modules: set[str]) -> Iterator[str]:
        """The files of the package that this file imports, when it is imported or later."""
        here = self.name.split("/")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
                path = "/".join(filter(None, base))
                places = [f"{path}/{alias.name}".lstrip("/") for alias in node.names]
                found = [f"{place}.py" for place in places if f"{place}.py" in modules]
                yield from found or [name for name in (f"{path}.py", f"{path}/__init__.py") if name in modules]


class Package:
    """All files of the package."""

    def __init__(self, folder: Path) -> None:
        texts = {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in sorted(folder.rglob("*.py"))}
        self.sources = [Source(name, len(text.splitlines()), ast.parse(text)) for name, text in texts.items()]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Who imports each file."""
        modules, importers = {source.name for source in self.sources}, defaultdict[str, set[str]](set)
        for source in self.sources:
            for name in source.imported(modules):
                importers[name].add(source.name)
        return importers

    def rooms(self) -> list[list[str]]:
        """Lines, files, the longest file, functions and refusals of every room, the largest room first."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for source in self.sources:
            sizes = dict(zip(ROWS, (source.lines, 1, 0, len(source.functions), source.refusals), strict=True))
            for room in (source.room, "all"):
                counts[room].update(sizes)
                counts[room]["longest"] = max(counts[room]["longest"], source.lines)
        largest = sorted(counts, key=lambda room: (room == "all", -counts[room]["lines"]))
        return [[room, *(f"{counts[room][column]:,}" for column in ROWS)] for room in largest]

    def long_functions(self) -> list[str]:
        """Functions whose body is longer than allowed, the docstring aside."""
        lengths = {(s.name, f.name): body_lines(f) for s in self.sources for f in s.functions}
        return [f"{file} {name}: {lines}" for (file, name), lines in lengths.items() if lines > LONG_FUNCTION]

    def long_calls(self) -> list[str]:
        """Calls with more positional arguments than allowed."""
        calls = ((s.name, c) for s in self.sources for c in s.calls if len(c.args) > MANY_ARGUMENTS)
        return [f"{file}:{call.lineno} {ast.unparse(call.func)[:60]}: {len(call.args)}" for file, call in calls]

    def small_modules(self) -> list[str]:
        """Small modules that a single file imports."""
        small = {s.name: s.lines for s in self.sources if s.lines < SMALL_MODULE and not s.name.endswith("__.py")}
        lonely = {name: self.importers[name] for name in small if len(self.importers[name]) == 1}
        return [f"{name} ({small[name]} lines), only for {next(iter(files))}" for name, files in lonely.items()]


def has_text(argument: ast.expr) -> bool:
    """Whether an argument contains a text that is written in the source."""
    parts = ast.walk(argument)
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value for part in parts)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[bool(ast.get_docstring(function)) :] or function.body
    return (function.end_lineno or 0) - body[0].lineno + 1


def main(folder: str = str(SRC)) -> None:
    """Print all sizes."""
    package = Package(Path(folder))
    print(tables.table(["room", *ROWS], package.rooms()))
    for title, rows in (
        (f"functions of more than {LONG_FUNCTION} lines", package.long_functions()),
        (f"calls with more than {MANY_ARGUMENTS} positional arguments", package.long_calls()),
        (f"modules of fewer than {SMALL_MODULE} lines with one importer", package.small_modules()),
    ):
        print(f"\n{title}: {len(rows)}")
        print("".join(f"  {row}\n" for row in rows), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
