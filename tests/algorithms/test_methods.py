"""A method is its box: few lines of its own, found by reading the code, and a docstring that explains every keyword."""

import ast
import inspect
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

import coterie as ct
from coterie.algorithms import BUILDERS
from coterie.algorithms.about import COMMON, args_of
from coterie.algorithms.options import Options, Training
from coterie.local import corrections

PACKAGE = Path(ct.__file__).parent
LIMITS = {
    "dfedalt": 30,
    "dfedpgp": 45,
    "scaffold-p": 65,
    "ditto": 50,
    "dispfl": 85,  # of which its draws in several threads, which nobody else needs, are ten
    "heterofl": 55,
    "fedlmt": 40,
    "fedprox": 45,
    "pfedme": 45,
    "apfl": 45,
    "fedamp": 45,
}
Place = tuple[str, str]  # a module, and what it defines at its top
OUTSIDE = ""  # stands for the code of a module that belongs to no definition
Definition = ast.FunctionDef | ast.ClassDef


# The numbers of the methods' own papers or releases, without those that several methods have in common.
NUMBERS = {
    "fedprox": {"mu": 0.01},
    "scaffold-p": {"personal_outer_lr": 1.0541, "outer_lr": 3.0},
    "fedavg-p": {"personal_outer_lr": 1.0541, "outer_lr": 3.0},
    "dfedalt": {"personal_lr": 0.001, "personal_epochs": 1, "gossip_steps": 1, "rho": 0.0},
    "dfedpgp": {"personal_lr": 0.001, "personal_epochs": 1, "gossip_steps": 1, "rho": 0.0},
    "dfedsalt": {"personal_lr": 0.001, "personal_epochs": 1},
    "dfedsam": {"gossip_steps": 1},
    "dfedsam-mgs": {"gossip_steps": 4},
    "fedrep": {"personal_lr": 0.1, "personal_epochs": 10},
    "ditto": {"lam": 0.75},
    "pfedme": {"lam": 15.0, "inner_lr": 0.05, "inner_steps": 5, "beta": 1.0},
    "apfl": {"alpha": 0.5, "alpha_lr": 0.0},
    "fedamp": {"alpha": 5.0, "sigma": 5.0, "lam": 0.5},
    "fedrod": {"gamma": 1.0},
    "dispfl": {"density": 0.5, "prune_rate": 0.5},
    "flanc": {"n_basis": 0.25, "basis_fraction": 0.125, "orthogonal": 10.0},
    "depthfl": {"teaching": 0.1, "tau": 3.0, "feature_l2": 0.0},
    "fedhmv2": {"svd_every": 1, "keep_layers": 9},
}


@pytest.mark.parametrize("method", NUMBERS)
def test_numbers_that_are_not_given_are_those_of_the_paper(method: str) -> None:
    settings = ct.algorithms.build(method).settings
    assert {key: settings[key] for key in NUMBERS[method]} == NUMBERS[method]


def test_radii_are_those_that_the_papers_print() -> None:
    """FedSAM's is that of its own paper. DFedSalt's belongs to the adaptive form."""
    methods = ("fedsam", "dfedsam", "dfedsam-mgs", "dfedsalt")
    settings = {name: ct.algorithms.build(name).settings for name in methods}
    assert {name: (s["sam"], s["rho"], s["sam_eta"]) for name, s in settings.items()} == {
        "fedsam": ("plain", 0.05, 0),
        "dfedsam": ("plain", 0.01, 0),
        "dfedsam-mgs": ("plain", 0.01, 0),
        "dfedsalt": ("adaptive", 0.7, 0),
    }


class Code:
    """What a package defines at the top of its modules, and who uses what."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.trees = {module: ast.parse(text) for module, text in sources.items()}
        self.definitions: dict[Place, Definition] = {
            (module, node.name): node
            for module, tree in self.trees.items()
            for node in tree.body
            if isinstance(node, Definition)
        }
        self.users: dict[Place, set[Place]] = defaultdict(set)
        imported = {module: self.imported(module) for module in self.trees}

        def origin(place: Place) -> Place:
            """Where a name is defined that a module hands on from another one."""
            further = imported.get(place[0], {}).get(place[1], place)
            return place if further == place else origin(further)

        for module, tree in self.trees.items():
            known = {name: origin(place) for name, place in imported[module].items()}
            for node in tree.body:
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    self._note(module, node, known)

    def imported(self, module: str) -> dict[str, Place]:
        """What the names of a module mean that come from another one or are its own."""
        known = {name: place for place in self.definitions if place[0] == module for name in place[1:]}
        parent = module.split(".")
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.ImportFrom):
                above = parent[: len(parent) - node.level] if node.level else []
                origin = ".".join([*above, *([node.module] if node.module else [])])
                known |= {a.asname or a.name: (origin, a.name) for a in node.names}
        return known

    def _note(self, module: str, node: ast.stmt, known: dict[str, Place]) -> None:
        user = (module, node.name if isinstance(node, Definition) else OUTSIDE)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in known:
                self.users[known[part.id]].add(user)
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in known:
                origin, name = known[part.value.id]
                self.users[f"{origin}.{name}".lstrip("."), part.attr].add(user)

    def own(self, place: Place) -> set[Place]:
        """A definition and all that nobody else uses."""
        found = {place}
        while True:
            more = {p for p in self.definitions if self.users[p] - {p} and self.users[p] - {p} <= found} - found
            if not more:
                return found
            found |= more

    def lines(self, place: Place) -> int:
        """Of a definition, without docstrings and empty lines."""
        node, text = self.definitions[place], self.sources[place[0]].splitlines()
        told = {line for part in ast.walk(node) for line in docstring_lines(part)}
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        assert node.end_lineno is not None
        return sum(bool(text[k - 1].strip()) and k not in told for k in range(first, node.end_lineno + 1))


def docstring_lines(node: ast.AST) -> range:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    return range(0)


@cache
def package() -> Code:
    """This package, as it is."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(["coterie", *(p for p in parts if p != "__init__")])] = path.read_text(encoding="utf-8")
    return Code(found)


def own_lines(method: str) -> dict[str, int]:
    """The lines of a method and of every helper that only it uses; corrections are there for all of them."""
    builder, code = inspect.unwrap(BUILDERS[method]), package()
    own = code.own((builder.__module__, builder.__name__))
    return {f"{m}.{name}": code.lines((m, name)) for m, name in own if m != corrections.__name__}


@pytest.mark.parametrize("method", [method for method in LIMITS if method in BUILDERS])
def test_a_method_has_few_lines_of_its_own(method: str) -> None:
    lines = own_lines(method)
    assert sum(lines.values()) <= LIMITS[method], lines


def test_helpers_of_one_method_are_counted() -> None:
    """Where only it uses them, wherever they lie, with what only they use; not what a second one uses by any way."""
    code = Code(
        {
            "p.one": 'from .far import lone, both\n\ndef one():\n    """Said."""\n\n    return lone(both())\n',
            "p.two": "from .hub import both\n\ndef two():\n    return both\n",
            "p.hub": "from .far import both\n",
            "p.far": "def lone():\n    # Why.\n    return deep\n\ndef deep(): return 0\n\ndef both(): return 1\n",
        }
    )
    assert code.own(("p.one", "one")) == {("p.one", "one"), ("p.far", "lone"), ("p.far", "deep")}
    assert code.own(("p.two", "two")) == {("p.two", "two")}
    assert [code.lines(place) for place in (("p.one", "one"), ("p.far", "lone"))] == [2, 3]


@pytest.mark.parametrize("method", BUILDERS)
def test_every_own_keyword_is_explained(method: str) -> None:
    """In the Args of the docstring, in the order of the signature."""
    builder = BUILDERS[method]
    own = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert explained(inspect.getdoc(builder) or "") == own


def test_what_is_explained_once_is_written_once() -> None:
    """No docstring repeats the words for a keyword that several methods have, and none of those words is idle."""
    sources = {method: inspect.cleandoc(inspect.unwrap(build).__doc__ or "") for method, build in BUILDERS.items()}
    repeated = {(m, k) for m, text in sources.items() for k, words in args_of(text).items() if words == COMMON.get(k)}
    assert repeated == set()
    taken = {
        k for m, build in BUILDERS.items() for k in inspect.signature(build).parameters if k not in args_of(sources[m])
    }
    assert taken - {"options"} == set(COMMON)


def test_the_options_of_all_methods_are_the_values_of_training() -> None:
    """A TypedDict for editors and a NamedTuple with defaults: the same names and types, in the same order."""
    plain = get_type_hints(Options)
    assert list(plain) == list(Training._fields) == list(args_of(inspect.getdoc(Options) or ""))
    assert plain == {k: get_type_hints(Training)[k] for k in Training._fields}


def explained(docstring: str) -> list[str]:
    """The names of a docstring's Args list."""
    if "\nArgs:\n" not in docstring:
        return []
    listed = docstring.split("\nArgs:\n")[1].split("\n\n")[0].splitlines()
    return [line.split(":")[0].strip() for line in listed if line.startswith("    ") and line[4] != " "]


def test_a_list_of_arguments_is_read() -> None:
    text = "A.\n\nArgs:\n    mu: How strongly\n        it pulls: much.\n    nu: Less.\n\n>>> 1\n1"
    assert explained(text) == ["mu", "nu"]
    assert explained("A.") == []


@pytest.mark.parametrize(
    ("file", "other", "word"),
    [
        ("src/coterie/algorithms/dfedavg.py", "src/coterie/study/grids.py", "grids"),
        ("src/coterie/measure/metric.py", "tests/measure/test_metrics.py", "columns_cannot_have"),
    ],
)
def test_a_file_does_not_hide_the_function_of_its_name(file: str, other: str, word: str) -> None:
    """The second file takes the function from the package after pytest has loaded the first file."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", word, file, other]
    end = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stdout


def test_functions_of_the_package_are_no_tests() -> None:
    """Some are named test_, and pytest would look for fixtures of their arguments' names."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "src/coterie/data/partition.py"]
    end = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stdout


def test_every_file_that_has_the_name_of_a_function_is_imported_before_pytest_collects() -> None:
    """A package that is imported as a whole binds the name to the function, and keeps it."""
    code = """
import importlib, pkgutil, sys, types
import conftest
early = set(sys.modules)
names = [m.name for m in pkgutil.walk_packages(conftest.coterie.__path__, "coterie.") if "__main__" not in m.name]
for name in names:
    if name.split(".")[1] not in ("net", "cluster"):  # they need extras, and no file of theirs has such a name
        importlib.import_module(name)
for name in set(names) & set(sys.modules):
    package, _, leaf = name.rpartition(".")
    if not isinstance(getattr(sys.modules[package], leaf), types.ModuleType) and name not in early:
        print(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
