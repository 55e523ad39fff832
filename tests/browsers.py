"""A real browser, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium: the one playwright brought, else the system's; without any, what needs it is skipped."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'coterie[dev]'")
    with driver.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = own if own.exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if path is None:
            pytest.skip("there is no Chromium: run playwright install chromium, or install it with the system")
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()
