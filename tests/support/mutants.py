"""Change one line of the package at a time, and see whether a test notices: `make mutants`.

A mutant is the package with one change: a flipped comparison, another operator, a negated condition, another constant
or a statement less. Mutants are drawn by a seed, in turn from every room, so that a run that ends early is a sample as
well. Each one runs in a copy of the tree. The changes that no test can notice are in equivalent_mutants.toml, each with
its reason, and do not count.
"""

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
# The tests that should notice a change in a room, without `test_`.
ROOMS = {
    "local": "local corrections momentum optimizers own_optimizers oracles oracles_personal one_sample exact_personal "
    "models modules",
    "exchange": "robust channel gossip offline oracles unequal",
    "algorithms": "oracles oracles_papers oracles_personal baselines fedrod channel unequal depths corrections traffic "
    "capacities finetuned robust methods settings pooled momentum server_optimizers constants laws",
    "measure": "measure metrics convergence paired gains selection assumptions answer newcomers work columns",
    "topology": "topology sparse gossip channel own_parts",
    "store": "store folders digests lock sitting saved_run resume cli_errors",
    "engines": "engines trace dropout buckets threads rounding layout one_sample compiler",
    "submodels": "width lowrank basis staged unequal capacity depths",
    "data": "data sources sources_own transform tables text validation given_data targets inputs released spec pipes "
    "own_parts predict_files fetch bombs",
    "training": "first finetuned evaluation_interval predict newcomers saved_run selection sitting resume settings "
    "models_own memory limits arguments tune",
    "study": "compare tune tune_python variations settings_file presets saved_run sitting watch",
}


def both_ways(*pairs: tuple[type[ast.AST], type[ast.AST]]) -> dict[type[ast.AST], type[Any]]:
    """Return which operator takes the place of which."""
    return {a: b for pair in pairs for a, b in (pair, pair[::-1])}


NEGATED = both_ways((ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
BOUNDARY = both_ways((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
# In this code `|` joins types and dictionaries, and any test would notice another operator there.
OPERATORS = both_ways((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)) | {ast.BitAnd: ast.BitOr}


class Mutant(NamedTuple):
    """A file with one change."""

    file: str
    line: int
    function: str
    before: str
    after: str
    text: str  # the whole file after the change

    @property
    def name(self) -> str:
        """The change, in words that stay true while other lines of the file change."""
        return f"{self.file}: {self.before} -> {self.after}"


def changes(node: ast.AST) -> Iterator[str]:
    """Yield what may stand in the place of a node."""
    match node:
        case ast.Compare(left, [operator], [right]):
            for table in (NEGATED, BOUNDARY):
                if other := table.get(type(operator)):
                    yield f"({ast.unparse(ast.Compare(left, [other()], [right]))})"
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            yield f"({ast.unparse(ast.BinOp(left, OPERATORS[type(operator)](), right))})"
        case ast.BoolOp(operator, values):
            yield f"({ast.unparse(ast.BoolOp(OPERATORS[type(operator)](), values))})"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield str(value + 1)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"


def conditions(node: ast.AST) -> list[ast.expr]:
    """Return the conditions of a statement or an expression that are not comparisons, which are flipped anyway."""
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else getattr(node, "ifs", [])
    return [test for test in tests if not isinstance(test, ast.Compare)]


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node in which a change may matter: no texts, annotations or representations."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"} or isinstance(node, ast.Raise):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not is_text(part):
                yield part


def is_text(node: ast.AST) -> bool:
    """Tell whether a node only makes words: texts, representations, errors, and what is for type checkers."""
    match node:
        case ast.JoinedStr() | ast.FunctionDef(name="__repr__" | "__str__") | ast.If(ast.Name("TYPE_CHECKING")):
            return True
        case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(attr=name)):
            return name.endswith(("Error", "warn")) or name == "print"
        case ast.Expr(value):
            return is_text(value)
    return False


def places(node: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str, str]]:
    """Yield (node, function around it, text in its place) for every change below a node."""
    inside = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else function
    for part in parts(node):
        yield from ((part, inside, text) for text in changes(part))
        yield from ((test, inside, f"(not ({ast.unparse(test)}))") for test in conditions(part))
        yield from places(part, inside)


def replaced(text: str, node: Any, new: str) -> str:
    """Return a text with a node replaced; ``ast`` counts columns in bytes."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = text.encode()
    return (data[:start] + new.encode() + data[end:]).decode()


def mutants_of(file: str) -> list[Mutant]:
    """Return all mutants of a file of the package, one for each change of a line."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines, by_name = text.splitlines(), {}
    for node, function, new in places(ast.parse(text)):
        line = node.lineno  # type: ignore[attr-defined]
        changed = replaced(text, node, new)
        mutant = Mutant(file, line, function, lines[line - 1].strip(), changed.splitlines()[line - 1].strip(), changed)
        by_name.setdefault(mutant.name, mutant)
    return list(by_name.values())


def drawn(rooms: list[str], seed: int) -> Iterator[Mutant]:
    """Yield the mutants of these rooms in a random order, one room after the other."""
    orders = []
    for room in rooms:
        files = sorted((ROOT / "src/coterie" / room).rglob("*.py"))
        mutants = [mutant for file in files for mutant in mutants_of(file.relative_to(ROOT).as_posix())]
        random.Random(f"{seed} {room}").shuffle(mutants)
        orders.append(mutants)
    for row in itertools.zip_longest(*orders):
        yield from (mutant for mutant in row if mutant)


class FirstFailure:
    """A plugin of pytest that writes down the first test that fails."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Write the name of a test that failed, or of a file that could not be imported."""
        if report.failed:
            self.file.write_text(report.nodeid, encoding="utf-8")

    pytest_collectreport = pytest_runtest_logreport


class Copy:
    """A copy of the tree in which one file at a time is changed."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.tree, self.failure, self.limit = folder / "tree", folder / "failure", limit
        ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "site", "dist", "build")
        shutil.copytree(ROOT, self.tree, ignore=ignored)
        self.times = itertools.count(int(time.time()))  # two versions of a file must not share a compiled one
        self.passed, self.left_out = {"", "timeout"}, list[str]()

    def write(self, file: str, text: str) -> None:
        """Write a file with a time of its own."""
        path = self.tree / file
        path.write_text(text, encoding="utf-8")
        os.utime(path, (next(self.times),) * 2)

    def ask(self, mutant: Mutant) -> str:
        """Return the test that notices a mutant, "" if none does, or "timeout"."""
        unchanged = (self.tree / mutant.file).read_text(encoding="utf-8")
        self.write(mutant.file, mutant.text)
        noticed = self.first_failure(tests_of(mutant))
        self.write(mutant.file, unchanged)
        alone = [mutant.file, noticed] if "::" in noticed else ["--collect-only", noticed]  # a file not imported
        if noticed not in self.passed and self.first_failure(alone):
            if f"--deselect={noticed}" in self.left_out:
                sys.exit(f"{noticed} cannot be left out and fails without any change: make it pass first")
            print(f"{noticed} fails without any change, and is left out", flush=True)
            self.left_out.append(f"--deselect={noticed}")
            return self.ask(mutant)
        self.passed.add(noticed)
        return noticed

    def first_failure(self, words: list[str]) -> str:
        """Run tests in a fork, which has torch already, and return the first one that fails."""
        self.failure.write_text("", encoding="utf-8")
        process = os.fork()
        if not process:
            self.run_tests(words)
        end = time.monotonic() + self.limit
        try:
            while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # what the tests have started ends with them
        if not ended[0]:
            os.waitpid(process, 0)
            return "timeout"
        failure = self.failure.read_text(encoding="utf-8")
        return failure or (words[0] if os.waitstatus_to_exitcode(ended[1]) not in {0, 5} else "")  # 5: no test in there

    def run_tests(self, words: list[str]) -> None:
        """Run pytest in this process, and end it."""
        os.setsid()
        os.chdir(self.tree)
        os.environ |= {"PYTHONPATH": str(self.tree / "src"), "PYTHONUTF8": "1", "OMP_WAIT_POLICY": "passive"}
        ours = tuple(str(ROOT / name) for name in ("src", "tests"))  # the environment may lie below ROOT, too
        sys.path[:] = [str(self.tree / "src"), *(path for path in sys.path if not path.startswith(ours))]
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        words = ["-x", "-q", "-p", "no:cacheprovider", *words, *self.left_out]
        status = 3  # as pytest says that itself has failed
        with contextlib.suppress(BaseException):
            status = int(pytest.main(words, [FirstFailure(self.failure)]))
        os._exit(status)


def file_of_tests(name: str) -> str:
    """Return the file of tests with this name, in whichever room it is."""
    (file,) = (ROOT / "tests").glob(f"*/test_{name}.py")
    return file.relative_to(ROOT).as_posix()


def tests_of(mutant: Mutant) -> list[str]:
    """Return the file itself, for its examples, and the tests of its room, first those that name the changed code."""
    path = Path(mutant.file)
    files = (file_of_tests(name) for name in ROOMS[path.parts[2]].split())
    words = "|".join({path.stem, mutant.function} - {""})
    return [mutant.file, *sorted(files, key=lambda file: -len(re.findall(words, (ROOT / file).read_text("utf-8"))))]


def report(results: dict[str, dict[str, Any]], equivalent: dict[str, str]) -> int:
    """Print survivors and the score; return how many survivors matter."""
    alive = {name: result for name, result in results.items() if not result["noticed"]}
    late = sum(result["noticed"] == "timeout" for result in results.values())
    matter = {name: result for name, result in alive.items() if name not in equivalent}
    for result in matter.values():
        print(f"{result['place']}\n    - {result['before']}\n    + {result['after']}")
    killed, same = len(results) - len(alive) - late, len(alive) - len(matter)
    print(f"{len(results)} mutants: {killed} noticed, {len(matter)} not, {same} equivalent, {late} too long")
    if killed + len(matter):
        print(f"The tests notice {killed / (killed + len(matter)):.0%} of those that matter.")
    return len(matter)


def main() -> None:
    """Draw mutants, run each that the state does not know yet, and report all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="how many mutants are drawn")
    parser.add_argument("--room", choices=ROOMS, action="append", help="only this room of the package; may be repeated")
    parser.add_argument("--limit", type=float, default=600, help="seconds that the tests of one mutant may take")
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".mutants.json", help="the results, from which a run goes on"
    )
    parser.add_argument("--again", action="store_true", help="run the mutants again that matter and no test noticed")
    chosen = parser.parse_args()
    results = json.loads(chosen.state.read_text(encoding="utf-8")) if chosen.state.exists() else {}
    equivalent = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    mutants = list(itertools.islice(drawn(chosen.room or list(ROOMS), chosen.seed), chosen.count))
    import torch  # noqa: F401 - before the forks, which then need no seconds for it

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        copy = Copy(Path(folder), chosen.limit)
        for number, mutant in enumerate(mutants, 1):
            settled = mutant.name in equivalent or not chosen.again
            if mutant.name in results and (settled or results[mutant.name]["noticed"]):
                continue
            start, place = time.monotonic(), f"{mutant.file}:{mutant.line}"
            noticed = copy.ask(mutant)
            changed = {"place": place, "before": mutant.before, "after": mutant.after}
            results[mutant.name] = changed | {"noticed": noticed}
            chosen.state.write_text(json.dumps(results, indent=1), encoding="utf-8")
            print(
                f"{number}/{len(mutants)} {place} {noticed or 'NOT NOTICED'} ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    ours = {mutant.name: results[mutant.name] for mutant in mutants if mutant.name in results}
    sys.exit(1 if report(ours, equivalent) else 0)


if __name__ == "__main__":
    main()
