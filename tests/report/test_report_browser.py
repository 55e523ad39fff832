"""The report in a real browser: nothing complains, nothing is loaded, tables sort, pointing tells numbers."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import coterie as ct
from coterie.models.model import Model, cross_entropy
from local_peers import participants, run_together, write_log

pytest.importorskip("plotly", reason="a report needs plotly: pip install 'coterie[report]'")
driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'coterie[dev]'")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE, DESK = 390, 1200  # pixels


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: the one playwright brought, else the system's."""
    with driver.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = own if own.exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if path is None:
            pytest.skip("there is no Chromium: run playwright install chromium, or install it with the system")
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three small real runs."""
    fed = ct.data.federate("digits", clients=6, partition="dirichlet:0.1", seed=0)
    common: dict[str, Any] = {"lr": 0.02, "epochs": 1, "batch_size": 16}
    runs = [
        ct.fit(ct.models.build("small-cnn", fed), fed, algorithm, rounds=2, progress=False)
        for algorithm in (
            ct.algorithms.local(**common),
            ct.algorithms.fedavg(**common, participation=1.0),
            ct.algorithms.dfedavg(**common, topology="random-pull:2"),
        )
    ]
    return ct.report.write(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two of three real peers, one of which went on without the third."""
    home = tmp_path_factory.mktemp("federation")
    fed = ct.data.federate("digits", clients=3, partition="iid", seed=0)
    method = ct.algorithms.dfedavg(lr=0.02, steps=2, batch_size=16, topology="ring")
    peers = participants(lambda: Model(ct.models.build("mlp", fed), cross_entropy), fed, method, 3, home, wait=10.0)
    run_together(peers)
    write_log(peers[0].folder, {1: [], 2: ["site-2"], 3: ["site-2"]})
    write_log(peers[1].folder, {1: [], 2: [], 3: []}, begun=(1, 3))
    return ct.report.write([p.folder for p in peers[:2]], home / "report.html")


@contextmanager
def opened(browser: Any, report: Path, width: int = DESK, scheme: str = "light") -> Iterator[Any]:
    """The page, drawn; afterwards nothing may have complained or been asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    try:
        yield page
        assert said == [report.as_uri()]
        assert page.is_hidden("#trouble")
    finally:
        context.close()


def column(page: Any, number: int) -> list[str]:
    return [text.strip() for text in page.locator(f"#s1 tbody tr > :nth-child({number})").all_inner_texts()]


def numbers(page: Any, number: int) -> list[float]:
    cells = page.locator(f"#s1 tbody tr > :nth-child({number})").all()
    return [float(v) for cell in cells if (v := cell.get_attribute("data-value"))]


def test_a_page_is_loaded_when_all_its_figures_are_drawn(browser: Any, report: Path) -> None:
    """Headless printing and screenshots take a page when it is loaded, and wait for nothing else."""
    page = browser.new_page(viewport={"width": DESK, "height": 300})
    page.add_init_script(
        "addEventListener('load', () => { window.atLoad = document.querySelectorAll('.main-svg').length; })"
    )
    page.goto(report.as_uri(), wait_until="load")
    plots = page.locator(".plot").count()
    assert plots > 5
    assert page.evaluate("window.atLoad") >= plots
    assert page.locator("iframe").count() == 0
    page.close()


def test_a_table_sorts_by_click(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert column(page, 1) == ["local", "fedavg", "dfedavg"]
        heading = page.locator("#s1 thead th").nth(1)
        for order in ("descending", "ascending", "descending"):  # the better first
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == order
            assert numbers(page, 2) == sorted(numbers(page, 2), reverse=order == "descending")
        sent = page.locator("#s1 thead button", has_text="sent")
        sent.click()
        assert heading.get_attribute("aria-sort") is None
        assert column(page, 1)[0] == "local"  # sends nothing
        assert "Sorted by sent, ascending" in page.inner_text("#s1 .said")


def test_a_table_sorts_by_keyboard(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        page.focus("#s1 .scroll")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert column(page, 1) == ["dfedavg", "fedavg", "local"]
        page.keyboard.press("Space")
        assert column(page, 1) == ["local", "fedavg", "dfedavg"]
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert numbers(page, 2) == sorted(numbers(page, 2), reverse=True)


def point_at(page: Any, chart: str, trace: str, place: int) -> str:
    """Moves the mouse to a point of a trace, the first for which ``trace`` holds, and reads what appears."""
    page.locator(f"#{chart} .plot").scroll_into_view_if_needed()
    x, y = page.evaluate(
        f"""() => {{
            const plot = document.querySelector("#{chart} .plot"), box = plot.getBoundingClientRect();
            const trace = plot.data.find((t) => {trace}), layout = plot._fullLayout;
            return [box.left + layout.xaxis._offset + layout.xaxis.d2p(trace.x[{place}]),
                    box.top + layout.yaxis._offset + layout.yaxis.d2p(trace.y[{place}])];
        }}"""
    )
    page.mouse.move(x - 40, y + 3)
    page.mouse.move(x, y, steps=4)
    page.wait_for_selector(f"#{chart} .hoverlayer .hovertext", timeout=10_000)
    return str(page.text_content(f"#{chart} .hoverlayer .hovertext"))


def test_pointing_tells_numbers(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        assert "round 2" in point_at(page, "s1-rounds", "t.name === 'fedavg'", 1)
        told = point_at(page, "s1-topology", "t.text && String(t.text[0]).includes('weight')", 0)
        assert "→" in told
        assert "weight 0.333" in told  # of three: itself and two others


def test_views_are_chosen(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        before = page.evaluate("document.querySelector('#s1-rounds .plot').data.map((t) => t.y)")
        page.locator("#s1-rounds label", has_text="training loss").click()
        after = page.evaluate("document.querySelector('#s1-rounds .plot').data.map((t) => t.y)")
        assert before != after
        assert page.locator("#s1-rounds .ytitle").text_content() == "training loss"


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_page_never_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    with opened(browser, report, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in page.locator(".plot .main-svg").all():
            assert chart.bounding_box()["width"] <= width
        if width == DESK:
            assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))") == 0


def test_a_figure_is_saved_as_svg_for_white_paper(browser: Any, report: Path, tmp_path: Path) -> None:
    with opened(browser, report, scheme="dark") as page:
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download as SVG: Accuracy over rounds").click()
        assert saved.value.suggested_filename == "s1-rounds.svg"
        saved.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "rgb(255, 255, 255)" in text
    assert all(name in text for name in ("local", "fedavg", "dfedavg", "accuracy, %"))


def test_the_toolbar_is_out_of_the_way_on_phones(browser: Any, report: Path) -> None:
    """A mouse brings it up; a finger would find it above the legend."""
    for width, bars in ((PHONE, 0), (DESK, 1)):
        with opened(browser, report, width) as page:
            assert page.locator("#s1-rounds .modebar").count() == bars


def test_by_night_the_ink_is_light(browser: Any, report: Path) -> None:
    inks = {}
    for scheme in ("light", "dark"):
        with opened(browser, report, scheme=scheme) as page:
            inks[scheme] = page.evaluate(
                "[getComputedStyle(document.body).color, document.querySelector('.plot')._fullLayout.font.color]"
            )
            if scheme == "light":  # and it changes while the page is open
                page.emulate_media(color_scheme="dark")
                page.wait_for_function("document.querySelector('.plot')._fullLayout.font.color === '#e8eaee'")
    assert inks == {"light": ["rgb(31, 36, 48)", "#1f2430"], "dark": ["rgb(232, 234, 238)", "#e8eaee"]}


def test_printed_it_is_light_and_fits_the_paper(browser: Any, report: Path) -> None:
    with opened(browser, report, scheme="dark") as page:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        seen = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, document.querySelector('.plot').layout]"
        )
        assert seen[0] == "rgb(255, 255, 255)"
        assert (seen[1]["font"]["color"], seen[1]["width"]) == ("#1f2430", 680)
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.querySelector('.plot').layout.font.color") == "#e8eaee"


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_federation_s_page_tells_who_took_part(browser: Any, federation: Path, width: int) -> None:
    with opened(browser, federation, width) as page:
        assert page.inner_text("h1") == "federation test, 2 clients: how good is dfedavg?"
        assert page.locator("#s1 .members tbody th").all_inner_texts()[:2] == ["site-0", "site-1"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#s1 .members thead button", has_text="rounds without a neighbor").click()
        assert "Sorted by rounds without a neighbor" in page.inner_text("#s1 .members .said")
        assert page.locator("#s1 .members tbody th").first.inner_text() == "site-1"
        assert page.locator("#s1-attendance .yaxislayer-above text").all_text_contents() == ["site-1 ", "site-0 "]
        for view in page.locator("#s1-members label").all():
            view.click()
            assert page.locator("#s1-members .legendtext").all_text_contents() == ["site-0", "site-1"]
        page.locator("#s1-attendance .plot").scroll_into_view_if_needed()
        bar = page.locator("#s1-attendance .point path").nth(2).bounding_box()  # behind those of rounds with all
        page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2, steps=4)
        # On its way the pointer passes another bar, whose words may be there first.
        page.wait_for_selector("#s1-attendance .hovertext:has-text('site-0')", timeout=10_000)
        assert page.text_content("#s1-attendance .hovertext") == "site-0rounds 2 to 3: without site-2"


def test_without_scripts_the_table_is_there(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#s1 tbody tr").count() == 3
    assert page.locator("noscript").inner_text()
    context.close()
