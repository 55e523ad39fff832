"""What is released: wheel and sdist hold all there is, work where nothing else is installed, and agree in all places.

`make release-check` does the same with dependencies from the network; nothing here needs one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from contextlib import suppress
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path, PurePosixPath

import pytest

import coterie
from licenses import closure, others
from lower_bounds import COMMANDS, bounds, declared

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BESIDE = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md"),
    "conftest.py",
    *("constraints.txt", "mkdocs.yml", "pyproject.toml", "bench", "docs", "notebooks", "src", "tests"),
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*", "*.jsonl")


def inside(folder: Path) -> set[str]:
    """The names of all files below a folder, those that are left out excepted."""
    kept = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in kept if ".egg-info" not in str(p)}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel made of it, built in a copy: building leaves files behind."""
    pytest.importorskip("build", reason="a release is built with the package build: pip install 'coterie[dev]'")
    tree = tmp_path_factory.mktemp("release")
    for name in BESIDE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(
            source, tree / name, **({"ignore": LEFT_OUT} if source.is_dir() else {})
        )
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"], cwd=tree, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Deprecat" not in built.stdout + built.stderr
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    assert found.name == f"coterie-{coterie.__version__}-py3-none-any.whl"
    return found


def test_the_wheel_holds_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n.removeprefix("coterie/") for n in archive.namelist() if n.startswith("coterie/")}
        beside = {n for n in archive.namelist() if not n.startswith("coterie/")}
    assert names == inside(ROOT / "src" / "coterie")
    assert {"py.typed", "data/files/digits.npz", "report/files/page.js", "papers/recipes/files/published.csv"} <= names
    assert {PurePosixPath(n).parts[0] for n in beside} == {f"coterie-{coterie.__version__}.dist-info"}


def test_the_sdist_holds_what_the_tests_need(dist: Path) -> None:
    (found,) = dist.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    for folder in ("src/coterie", "tests", "docs", "bench"):
        assert {f"{folder}/{n}" for n in inside(ROOT / folder) if not n.endswith(".jsonl")} <= names
    assert {f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")} <= names
    assert {name for name in BESIDE if (ROOT / name).is_file()} <= names
    assert not [n for n in names if n.endswith(".pyc")]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"coterie-{coterie.__version__}.dist-info/METADATA").decode()
    about = HeaderParser().parsestr(text)
    assert (about["Name"], about["Version"]) == ("coterie", coterie.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    core = [re.split(r"\W", r)[0] for r in about.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert sorted(core) == ["msgspec", "numpy", "rich", "safetensors", "torch", "typer"]
    assert "make demo" in text  # the README


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel, what its core requires, and nothing else.

    What is required is linked from where it is installed: copies of it would take long, and new ones a network.
    """
    if sys.platform == "win32":
        pytest.skip("links need a privilege on Windows")
    home = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    needed, absent = closure(PROJECT["dependencies"])
    assert absent == set()
    for found in needed.values():
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(found.locate_file(name))))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    return python.parent


def in_empty(empty: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of the empty environment, with nothing of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST", "COV"))}
    environment = {**kept, "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    program, *arguments = command
    return subprocess.run([empty / program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


# Commands and calls that need an extra, and the words of their one sentence.
WITHOUT_EXTRAS = """
import contextlib, io, sys
from importlib.util import find_spec
from coterie.cli import main
import coterie as ct

assert ct.__file__.startswith(sys.prefix), ct.__file__
assert [name for name in ("plotly", "matplotlib", "onnx", "PIL", "pandas", "pytest") if find_spec(name)] == []
refused = {
    "report a --out r.html": "a report needs plotly: run pip install 'coterie[report]'",
    "topology ring --png g.png": "drawing a PNG needs matplotlib: run pip install 'coterie[report]'",
    "export a --client 1 --out m.onnx": "pip install 'coterie[export]'",
}
for command, words in refused.items():
    sys.argv, said = ["coterie", *command.split()], io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            assert end.code == 2, (command, end.code, said.getvalue())
    lines = [line for line in said.getvalue().splitlines() if line.startswith("coterie: ")]
    assert len(lines) == 1 and words in lines[0], (command, said.getvalue())
run = ct.load("a")
assert "<svg" in run._repr_html_()
try:
    run.history.frame()
except ct.UserError as error:
    assert "pip install 'coterie[tables]'" in str(error)
else:
    raise AssertionError("there is no pandas here")
ct.export.save(run, 1, "m.safetensors")
"""


def test_it_works_where_nothing_else_is_installed(empty: Path, tmp_path: Path) -> None:
    small = ("--clients", "3", "--rounds", "2", "--topology", "ring", "--set", "epochs=1", "--out", "a")
    done = in_empty(empty, tmp_path, "coterie", "run", "dfedsalt", *small)
    assert done.returncode == 0, done.stderr
    assert "dfedsalt" in done.stdout
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds"] == 2
    refused = in_empty(empty, tmp_path, "python", "-c", WITHOUT_EXTRAS)
    assert refused.returncode == 0, refused.stderr


# What says which version it is


def test_all_places_agree_about_the_version() -> None:
    yaml = pytest.importorskip("yaml")
    assert "version" not in PROJECT  # it is read from the package
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changelog, flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == coterie.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == coterie.__version__
    assert ("date-released" in citation) == (newest[2] != "unreleased")


def test_the_citation_names_the_papers() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format wants
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["license"] == PROJECT["license"]
    papers = json.loads(files("coterie.papers.recipes").joinpath("files", "papers.json").read_text(encoding="utf-8"))
    named = {reference["title"]: reference for reference in citation["references"]}
    assert named.keys() == {paper["title"] for paper in papers.values()}
    for paper in papers.values():
        reference = named[paper["title"]]
        assert reference.keys() >= {"type", "authors", "year"}
        assert f"{reference['authors'][0]['family-names']} et al." == paper["authors"]


def test_the_workflow_tests_every_version_everywhere() -> None:
    yaml = pytest.importorskip("yaml")
    path = ROOT / ".github" / "workflows" / "test.yml"
    if not path.exists():
        pytest.skip("an sdist has no workflow")
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"os": [f"{s}-latest" for s in ("ubuntu", "macos", "windows")], "python": list(VERSIONS)}
    assert any(step.get("run", "").startswith("make test") for step in workflow["jobs"]["test"]["steps"])
    named = {c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named == set(VERSIONS)


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_everything_it_brings_is_free(extra: str) -> None:
    found, absent = closure(PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"])
    if extra and absent:
        pytest.skip(f"not installed: {', '.join(sorted(absent))}")
    assert absent == set()
    assert others(found) == {}


def test_every_dependency_has_a_lowest_version_that_can_be_tried() -> None:
    """`make lowest` installs these; what has no bound would be installed in any version."""
    extras = PROJECT["optional-dependencies"]
    for dependencies in (PROJECT["dependencies"], *(extras[k] for k in extras if k != "all")):
        assert len(bounds(dependencies)) == len(dependencies)
    assert declared().keys() == COMMANDS.keys()
    assert declared()[""]["torch"] == "2.11"


def test_installed_versions_are_not_below_the_bounds() -> None:
    for extra in declared().values():
        for name, lowest in extra.items():
            with suppress(PackageNotFoundError):
                installed = re.findall(r"\d+", version(name))
                assert list(map(int, installed[:3])) >= list(map(int, lowest.split("."))), name
