"""A real browser: the Chromium of the system, driven by Playwright. Run with `make test-browser`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser has it")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what a screen reader cannot use."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: make test-browser has it")
    return next(Path(package.__file__).parent.rglob("axe.min.js")).read_text(encoding="utf-8")
