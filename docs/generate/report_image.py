"""The picture of a report in the README and on the site: `make report-image` trains the demo and draws it."""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent.parent / "report.png"
WIDTH, HEIGHT = 1000, 880  # the title, who gains, and the first sentences
COLORS = 32  # of a small file: the page has few


def main(report: Path) -> None:
    """Draw the beginning of a page as somebody sees it who opens it."""
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=own if own.exists() else shutil.which("chromium"))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-drawn]")
        page.screenshot(path=OUT)
        browser.close()
    Image.open(OUT).quantize(COLORS).save(OUT, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
