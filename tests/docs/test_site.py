"""The documentation: it builds without a network, its links lead somewhere, its code runs, its pictures are true."""

import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import blocks
import coterie as ct
import methods as method_pages
import webpages
from coterie.algorithms import base
from coterie.algorithms.options import Training
from coterie.data import sources as builtin
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES
from coterie.local.steps import Phase
from docstrings import about, formula
from helpers_cli import Cli
from method_round import CLIENTS, method_round
from words import LETTERS

ROOT = Path(__file__).parents[2]
METHODS = list(ct.algorithms.BUILDERS)
# MkDocs in a process that cannot reach any network, and that has no packages but those that `make docs` installs.
ALONE = """
import runpy, socket, sys
from importlib.machinery import PathFinder
def refuse(*a, **k): raise OSError("the site must be built without a network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Present
runpy.run_module("mkdocs", run_name="__main__")
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, once for all processes of the tests."""
    pytest.importorskip("mkdocs", reason="the site is built with pip install 'coterie[docs]'")
    fcntl = pytest.importorskip("fcntl", reason="other systems have no such module")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site" / "index.html").exists():
            build(shared / "site")
    return shared / "site"


def absent() -> set[str]:
    """The modules of installed packages that neither Coterie nor its extra docs needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["docs"])]
    needed: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name not in needed:
            needed.add(name)
            with suppress(metadata.PackageNotFoundError):
                every = map(Requirement, metadata.requires(name) or ())
                wanted += [r for r in every if any(marked(r, extra) for extra in extras)]
    owners = metadata.packages_distributions()
    return {module for module, names in owners.items() if not {canonicalize_name(n) for n in names} & needed}


def marked(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement holds here."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def build(out: Path) -> None:
    """Builds it; a warning is an error."""
    order = [
        sys.executable,
        "-c",
        f"ABSENT = {absent() - {'coterie'}}\n{ALONE}",
        "build",
        "--strict",
        "--site-dir",
        str(out),
    ]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(order, cwd=ROOT, env={**os.environ, **quiet}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = [(p.name, load) for p, page in webpages.read(site).items() for load in page.loads]
    assert [x for x in loads if webpages.elsewhere(x[1])] == []
    styles = [(p.name, url) for p in site.rglob("*.css") for url in re.findall(r"url\(([^)]*)\)", p.read_text())]
    assert [x for x in styles if webpages.elsewhere(x[1].strip("'\""))] == []


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = webpages.read(site.resolve())
    found = [
        (str(p.relative_to(site.resolve())), webpages.wrong_link(p, link, pages))
        for p, q in pages.items()
        for link in q.links
    ]
    assert len(found) > 1000
    assert [x for x in found if x[1]] == []


FIELDS = {
    "runs": (ct.Run, ct.Client),
    "data": (ct.data.Federation,),
    "algorithms": (Training,),
    "inside": (base.Program, base.Round, base.Trained, base.Problem, Phase),
}


@pytest.mark.parametrize("page", FIELDS)
def test_the_reference_shows_all_fields_with_a_sentence_each(site: Path, page: str) -> None:
    text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
    for kind in FIELDS[page]:
        start = text.index(f'id="{kind.__module__}.{kind.__qualname__}"')
        rows = re.findall(r"<tr>\s*<td>(.*?)</td>\s*</tr>", text[start:].partition("</table>")[0], flags=re.DOTALL)
        cells = [re.split(r"</td>\s*<td>", row) for row in rows]
        told = {re.sub(r"<.*?>", "", name): means for name, _, _, means in cells}
        assert list(told) == list(kind.__annotations__)
        assert all(means.endswith(".") for means in told.values())


def test_search_in_a_folder_brings_its_own_script(site: Path) -> None:
    """Browsers start no worker for a file; what stands in for one, and the index as a script, are part of the site."""
    page = webpages.Webpage((site / "methods" / "dfedalt.html").read_text(encoding="utf-8"))
    assert "../javascripts/iframe-worker.js" in page.loads
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_in_the_repository_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [x for x in links if not webpages.elsewhere(x) and not (ROOT / x).exists()] == []


def test_a_wrong_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text(
        '<h2 id="here">x</h2><a href="b.html">1</a><a href="#there">2</a><a href="http://x">3</a><a href="#here">4</a>'
    )
    pages = webpages.read(tmp_path)
    assert [webpages.wrong_link(page, link, pages) is None for link in pages[page].links] == [False, False, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_page(site: Path, method: str) -> None:
    text = (site / "methods" / f"{method}.html").read_text(encoding="utf-8")
    assert webpages.Webpage(text).headings == list(method_pages.SECTIONS)
    assert '<div class="recurrence"><div class="statement">' in text
    assert '<figure class="method"><svg' in text
    for setting in ct.algorithms.build(method).settings:
        assert f"<code>{setting}</code>" in text


@pytest.mark.parametrize("page", blocks.pages())
def test_the_code_of_a_page_runs(page: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as a program of the folder has it
    for name in blocks.files():
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert blocks.languages(text) <= {"python", "sh", "text", "toml"}
    blocks.run(text, cli, tmp_path)


def few_digits(seed: int = 0) -> Pool:
    """Every sixth digit: programs are the same for 36 methods but for their second line."""
    pool = builtin.digits(seed)
    return pool._replace(x=pool.x[::6], y=pool.y[::6], test_x=pool.test_x[::6], test_y=pool.test_y[::6])


@pytest.mark.parametrize("method", METHODS)
def test_the_code_of_a_method_runs(
    method: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SOURCES, "digits", few_digits)
    text = method_pages.page(method)
    assert [block.language for block in blocks.blocks(text)] == ["sh", "python"]
    blocks.run(text, cli, tmp_path)
    assert "% after aggregation" in capsys.readouterr().out


def test_the_scripts_behind_the_evidence_are_there() -> None:
    """They take minutes to hours, so nothing here runs them; what a page tells to call exists."""
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md")]
    named = {name for text in texts for name in re.findall(r"python ((?:docs|bench)/[\w/]+\.py)", text)}
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_what_is_not_run_has_a_reason() -> None:
    """The list of commands that are only parsed: short, and every test it names is there."""
    assert len(blocks.PARSED_ONLY) <= 7
    named = [re.findall(r"tests/[\w/]+\.py", reason) for reason in blocks.PARSED_ONLY.values()]
    assert all(files and (ROOT / files[0]).exists() for files in named)
    with pytest.raises(Exception, match="No such option"):
        blocks.parse(["topology", "ring", "--client", "3"])


def test_pictures_are_drawn_from_what_programs_do() -> None:
    methods = ("local", "fedavg", "dfedalt", "ditto", "pfedlmt")
    kept = {method: method_pages.personal_part(method_round(method)) for method in methods}
    assert list(kept.values()) == ["everything", "nothing", "the head", "a second model", "the last layers"]
    widths = [method_round("heterofl").towers[i][0][1].held for i in (0, 2, 4)]
    assert widths == [((0.0, 1.0),), ((0.0, 0.75),), ((0.0, 0.5),)]
    assert method_round("fedrolex").towers[4][0][1].held != widths[2]
    assert all(method_round(m).W is None for m in ("fedavg", "fedlmt", "scaffold"))
    directed = method_round("dfedpgp").W
    assert directed is not None
    assert float(directed.sum(0).sub(1).abs().max()) < 1e-12
    assert method_round("dfedsam-mgs").exchanges == 4
    assert method_round("fedsam").gradients == 2
    assert len(method_round("fedavg").cohort) == CLIENTS // 2
    assert method_round("local").traffic.totals.messages == 0


def test_docstrings_can_be_taken_apart() -> None:
    found = {method: about(ct.algorithms.builder(method)) for method in METHODS}
    assert found["dfedalt"].title == "DFedAlt"
    assert formula("u_i <- sum_j W[i, j] z_j;   personal_lr stays") == (
        '<div class="statement">u<sub>i</sub> ← Σ<sub>j</sub> W<sub>ij</sub> z<sub>j</sub></div>'
        '<div class="statement">personal_lr stays</div>'
    )
    assert all(any(re.search(p, a.recurrence) for p, _ in LETTERS) for a in found.values())
    with pytest.raises(ValueError, match="lacks 'Reference:'"):
        about(lambda: None)


def test_every_setting_is_explained() -> None:
    """By its own docstring, or by that of the options that all methods have."""
    lacking = {m: set(ct.algorithms.build(m).settings) - set(about(ct.algorithms.builder(m)).args) for m in METHODS}
    assert {m: names for m, names in lacking.items() if names} == {}
