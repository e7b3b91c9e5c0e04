"""Every page of the dashboard, light and dark, as pictures in docs/dashboard: run by `make screenshots`.

The runs on them are made up (tests/support/agents_week.py), by one clock, so that a picture changes when a page does.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
WIDE, HIGH = 1280, 860
PHONE = 390
LONGEST = 1700
"""Pixels of a page that are shown."""
COLOURS = 160
"""Enough for a page, and a quarter of the bytes."""
PAGES = (
    "overview", "patterns", "pattern", "runs", "run", "tools", "tool", "agents", "agent", "models", "model",
    "sessions", "session", "learned", "lesson", "fix", "impact", "compare", "live", "health", "alerts", "audit",
    "settings", "search",
)  # fmt: skip


PLACE = """folder => document.querySelectorAll('main code').forEach(
    each => { each.textContent = each.textContent.replace(folder, '~/.local/share/mulligan'); })"""
"""Where the runs of a picture are kept says nothing, and differs each time."""


def main(where: Path) -> None:
    import dashboards  # type: ignore[import-not-found] # of tests/support: what the tests look at
    from playwright.sync_api import sync_playwright

    where.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, dashboards.week(Path(folder)) as week, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": WIDE, "height": HIGH}, color_scheme=scheme)
            tab = context.new_page()
            tab.goto(week.entry())
            for name in PAGES:
                tab.goto(week.url(week.pages[name]))
                tab.wait_for_timeout(400 if name == "live" else 60)
                tab.evaluate(PLACE, folder)
                _shot(tab, where / f"{name}{'-dark' if scheme == 'dark' else ''}.png")
            if scheme == "light":
                tab.set_viewport_size({"width": PHONE, "height": 844})
                for name in ("overview", "run", "impact"):
                    tab.goto(week.url(week.pages[name]))
                    _shot(tab, where / f"{name}-phone.png")
            context.close()
        browser.close()
    with (
        tempfile.TemporaryDirectory() as folder,
        dashboards.empty(Path(folder)) as nothing,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": WIDE, "height": HIGH}, color_scheme=scheme)
            tab = context.new_page()
            tab.goto(nothing.entry())
            _shot(tab, where / f"empty{'-dark' if scheme == 'dark' else ''}.png")
            context.close()
        browser.close()
    print(f"{len(list(where.glob('*.png')))} pictures in {where}")


def _shot(tab: Any, path: Path) -> None:
    from PIL import Image

    picture = Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, LONGEST)))
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "dashboard")
