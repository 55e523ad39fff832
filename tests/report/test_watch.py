"""Following runs by their files alone: half-written lines, waiting, stalling, the page that keeps up, clean ends."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import coterie as ct
from coterie.cli.results.watch import _table
from coterie.core.errors import UserError
from coterie.core.files import replace
from coterie.study.follow import BUILDING, STILL, Folder, Followed
from helpers_cli import DATA, Cli, Started
from pages import Page

pytest.importorskip("plotly", reason="the page needs plotly: pip install 'coterie[report]'")

TINY = (*DATA, "--model", "logreg", "--clients", "3", "--rounds", "4", "--set", "steps=1")
WAIT = 60.0  # seconds for what should take one


@pytest.fixture(scope="module")
def compared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison, to be played again file by file."""
    cwd = tmp_path_factory.mktemp("compared")
    cli.succeed("compare", "local", "fedavg", *TINY, "--out", "c", cwd=cwd)
    return cwd / "c"


class Backend:
    """Another process, as far as files tell: brings a finished run into a folder bit by bit."""

    def __init__(self, whole: Path, folder: Path) -> None:
        self.whole, self.folder = whole, folder
        self.lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.whole / "config.json", self.folder)

    def rounds(self, count: int, torn: str = "") -> None:
        (self.folder / "metrics.jsonl").write_text("".join(self.lines[:count]) + torn)

    def finish(self) -> None:
        self.rounds(len(self.lines))
        shutil.copytree(self.whole, self.folder, dirs_exist_ok=True)


@pytest.fixture
def run(compared: Path, tmp_path: Path) -> Backend:
    return Backend(compared / "fedavg-seed0", tmp_path / "a")


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time = time.time()

    def __call__(self) -> float:
        return self.time


def until(holds: Callable[[], Any]) -> Any:
    """Waits for something another process does."""
    end = time.monotonic() + WAIT
    while not (found := holds()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
    return found


def said(started: Started) -> str:
    out = started.log.with_suffix(".out")
    return out.read_text() if out.exists() else ""


# One run, looked at again and again


def test_a_run_from_its_first_file_to_its_last(run: Backend) -> None:
    followed = Followed(run.folder)
    assert followed.look().state == "waiting"
    run.folder.mkdir()
    (run.folder / "config.json").write_text('{"method": "fed')  # half of it
    assert followed.look().state == "waiting"
    run.begin()
    seen = followed.look()
    assert (seen.state, seen.done, seen.rounds, seen.left) == ("starting", 0, 4, None)
    run.rounds(0, torn='{"round": 1, "perso')
    assert followed.look().state == "starting"
    run.rounds(2, torn='{"round": 3, "perso')
    seen = followed.look()
    assert (seen.state, seen.done) == ("running", 2)
    assert followed.measured.row == json.loads(run.lines[1])
    assert followed.measured.bytes == sum(json.loads(line)["bytes_sent"] for line in run.lines[:2])
    run.finish()
    assert followed.look()[:3] == ("finished", 4, 4)


def test_the_time_that_is_left_is_what_was_seen_evaluations_included(run: Backend) -> None:
    clock = Clock()
    followed = Followed(run.folder, clock)
    run.begin()
    for done in (1, 2, 3):
        run.rounds(done)
        os.utime(run.folder / "metrics.jsonl", (clock.time, clock.time))
        seen = followed.look()
        assert seen.at_least == (done == 1)  # the rows alone do not tell of evaluations
        clock.time += 7
    assert seen.left == pytest.approx(7)
    assert followed.look().left == pytest.approx(0)


def test_a_run_without_news_is_stalled_until_there_are_some(run: Backend) -> None:
    clock = Clock()
    followed = Followed(run.folder, clock)
    run.begin()
    assert followed.look().state == "starting"
    clock.time += BUILDING + 60
    assert followed.look().state == "stalled"
    run.rounds(1)
    assert followed.look().state == "running"  # by our clock: that of the other machine may be wrong
    clock.time += STILL + 60
    seen = followed.look()
    assert seen.state == "stalled"
    assert seen.age == pytest.approx(STILL + 60)


def test_a_run_that_is_continued_may_lose_rounds_first(run: Backend) -> None:
    followed = Followed(run.folder)
    run.begin()
    for done in (3, 1, 2):
        run.rounds(done)
        seen = followed.look()
        assert seen.done == done
        assert followed.measured.row == json.loads(run.lines[done - 1])
    assert seen.state == "running"


# Folders


@pytest.mark.parametrize("name", ["nowhere", "other"])
def test_a_folder_that_is_no_run_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    names = (name, "give") + (("no folder",) if name == "nowhere" else ("holds no run",))
    cli.refuse("watch", name, cwd=tmp_path, names=names)


def test_runs_that_are_planned_are_waited_for(compared: Path, tmp_path: Path) -> None:
    home = tmp_path / "c"
    home.mkdir()
    folder = Folder(home)
    assert folder.look() == {}
    assert not folder.finished({})
    shutil.copy(compared / "plan.json", home)
    assert [(run.name, how.state) for run, how in folder.look().items()] == [
        ("local-seed0", "waiting"),
        ("fedavg-seed0", "waiting"),
    ]
    shutil.copytree(compared / "local-seed0", home / "local-seed0")
    assert not folder.finished(folder.look())
    Backend(compared / "fedavg-seed0", home / "fedavg-seed0").begin()
    page = ct.report.write([home], tmp_path / "page.html")  # of the one that has rounds
    assert set(Page(page).table()) == {"local"}
    shutil.copytree(compared / "fedavg-seed0", home / "fedavg-seed0", dirs_exist_ok=True)
    assert not folder.finished(folder.look())  # the comparison itself is not
    shutil.copy(compared / "compare.json", home)
    assert folder.finished(folder.look())


def test_a_comparison_without_any_round_has_no_page_yet(compared: Path, tmp_path: Path) -> None:
    for name in ("local-seed0", "fedavg-seed0"):
        Backend(compared / name, tmp_path / name).begin()
    with pytest.raises(UserError, match="no run with a finished round yet"):
        ct.report.html([tmp_path])


# The command


def test_everything_finished_is_told_once(cli: Cli, compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "c")
    done = cli.succeed("watch", "c", cwd=tmp_path)
    assert [line.split(",")[0] for line in done.out.splitlines()] == [
        "local-seed0: finished",
        "fedavg-seed0: finished",
    ]
    assert re.search(
        r"fedavg-seed0: finished, round 4/4, personal accuracy after aggregation .* %, train loss .* sent$", done.out
    )
    assert done.err == "page: c/report.html\n"
    page = Page(tmp_path / "c" / "report.html")
    assert page.root.all(id="live") == []
    assert page.root.one(id="command").text.endswith("coterie compare local fedavg " + " ".join(TINY))


def test_a_run_under_way_until_its_end(cli: Cli, run: Backend) -> None:
    run.folder.mkdir()
    watching = cli.start("watch", "a", "--every", "0.1", cwd=run.folder.parent)
    until(lambda: "nothing is there yet; waiting" in said(watching))
    run.begin()
    until(lambda: "a (fedavg): starting, round 0/4" in said(watching))
    run.rounds(2, torn='{"round": 3')
    until(lambda: "a (fedavg): running, round 2/4, personal accuracy after aggregation" in said(watching))
    page = run.folder / "report.html"
    live = Page(until(lambda: page.exists() and page)).root.one(id="live")
    assert live.attributes["data-seconds"] == "2"
    assert "fedavg, seed 0, after round 2 of 4" in live.text
    run.rounds(3)
    until(lambda: "after round 3 of 4" in page.read_text())
    run.finish()
    done = watching.wait()
    assert done.status == 0
    assert "a (fedavg): finished, round 4/4" in done.out
    assert len(done.out.splitlines()) <= 6  # not a line a look
    assert Page(page).root.all(id="live") == []
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".")]


def test_looking_once(cli: Cli, run: Backend) -> None:
    run.begin()
    done = cli.succeed("watch", "a", "--once", cwd=run.folder.parent)
    assert done.out.startswith("a (fedavg): starting, round 0/4")
    assert done.err.startswith("no page: a has no finished round yet")
    run.rounds(2)
    assert (
        cli.succeed("watch", "a/config.json", "--once", "--out", "p.html", cwd=run.folder.parent).err
        == "page: p.html\n"
    )
    assert Page(run.folder.parent / "p.html").root.all(id="live") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_it_and_stills_the_page(cli: Cli, run: Backend, number: signal.Signals) -> None:
    run.begin()
    run.rounds(2)
    watching = cli.start("watch", "a", "--every", "0.1", cwd=run.folder.parent)
    page = run.folder / "report.html"
    until(page.exists)
    watching.send(number)
    done = watching.wait()
    assert done.status == 130
    assert "Traceback" not in done.err
    assert Page(page).root.all(id="live") == []
    assert "unfinished" in Page(page).root.one(id="s1").text


def test_a_table_in_a_terminal(compared: Path) -> None:
    console = Console(width=80, file=StringIO())
    console.print(_table(Folder(compared).look(), room=1))
    shown = console.file.getvalue()
    assert "local-seed0" in shown
    assert "4/4" in shown
    assert "no room for: 1 finished" in shown
    assert max(map(len, shown.splitlines())) <= 80


# The page in a browser


def test_the_page_loads_itself_again_and_the_reader_stays(run: Backend) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'coterie[dev]'")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    run.begin()
    run.rounds(2)
    path = run.folder / "report.html"

    def put(text: str) -> None:
        replace(path, lambda file: file.write_text(text, encoding="utf-8"))

    put(ct.report.html([run.folder], reload=1.0))
    with driver.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        found = own if own.exists() else next(filter(None, map(shutil.which, names)), None)
        if found is None:
            pytest.skip("there is no Chromium: run playwright install chromium, or install it with the system")
        browser = playwright.chromium.launch(executable_path=found)
        page = browser.new_context(viewport={"width": 1000, "height": 500}, offline=True).new_page()
        page.goto(path.as_uri())
        assert "after round 2 of 4" in page.inner_text("#live")
        page.evaluate("window.scrollTo(0, 700); document.querySelector('details').open = true")
        run.rounds(3)
        put(ct.report.html([run.folder], reload=1.0))
        page.wait_for_function("document.querySelector('#live').textContent.includes('after round 3')")
        assert page.evaluate("[window.scrollY, document.querySelector('details').open]") == [700, True]
        run.finish()
        put(ct.report.html([run.folder]))
        page.wait_for_function("document.querySelector('footer') && !document.querySelector('#live')")
        page.wait_for_selector("html[data-drawn]")
        assert page.evaluate("window.scrollY") == pytest.approx(
            700, abs=100
        )  # a line above is gone: what is read stays
        assert page.evaluate("document.querySelector('details').open")
        browser.close()
