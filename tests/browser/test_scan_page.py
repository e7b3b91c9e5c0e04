"""The page of a scan in a real browser, full of hostile texts. Run with `make test-browser`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from colours import contrast, luminance
from session_logs import ClaudeCode, find_failures, read, write

from mulligan.report.scan_page import render_page

pytestmark = pytest.mark.browser

TEXTS = (
    '"><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "javascript:alert(1)",
    "<iframe src=https://example.org></iframe>",
    "<link rel=stylesheet href=https://example.org/x.css>",
    '"><meta http-equiv=refresh content="0;url=https://example.org">',
    "<form action=https://example.org><button autofocus onfocus=alert(1)>",
    "' onmouseover='alert(1)",
    "<a href=https://example.org ping=https://example.org>x</a>",
    "\u202etxt.exe\u202c <b>bold</b> \x1b[31m",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!--<img src=--><img src=x onerror=alert(1)//>",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page made of logs in which every text is an attack: tools, arguments, errors, projects, sessions."""
    folder = tmp_path_factory.mktemp("hostile")
    histories = []
    for number, text in enumerate(TEXTS):
        log = ClaudeCode(f"s{number}{text}", cwd=f"/home/{text}", version=text)
        entries: list[Any] = [log.user(text)]
        for attempt in range(4):
            id = f"toolu_{number}_{attempt}"
            entries.append(log.call(id, text, attempt * 10, **{text: text, "command": text}))
            entries.append(
                log.result(id, f"{text} not found {text}", attempt * 10 + 1, is_error=attempt < 3 or not number)
            )  # one stays unrecovered
        histories += read(write(folder / f"{number}.jsonl", *entries))
    path = folder / "page.html"
    path.write_text(render_page(find_failures(histories), 1_772_400_000_000, TEXTS[0]), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_texts_open_no_dialog_and_reach_nobody(browser, hostile, scheme):
    context = browser.new_context(color_scheme=scheme)
    tab = context.new_page()
    dialogs: list[str] = []
    asked: list[str] = []
    complaints: list[str] = []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    context.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(hostile.as_uri())
    for each in tab.query_selector_all("summary"):
        each.click()
    tab.mouse.move(300, 300)
    tab.wait_for_timeout(200)
    assert dialogs == []
    assert asked == [hostile.as_uri()]
    assert complaints == []
    assert tab.url == hostile.as_uri()
    assert tab.evaluate("document.querySelectorAll('script, img, iframe, link, form, object, embed').length") == 0
    assert "<script>alert(1)" not in tab.content()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark_on_a_desk_and_on_a_phone(browser, hostile, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})
    tab = context.new_page()
    tab.goto(hostile.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    card = tab.eval_on_selector(".card", "each => getComputedStyle(each).backgroundColor")
    for selector, needed in ((".card strong", 4.5), (".card small", 4.5), (".bad", 4.5), (".good", 4.5), ("th", 4.5)):
        assert contrast(tab.eval_on_selector(selector, "each => getComputedStyle(each).color"), card) >= needed
    for selector in (".fill", ".lost", ".won"):  # graphics need less than text
        assert contrast(tab.eval_on_selector(selector, "each => getComputedStyle(each).fill"), card) >= 3
    dark = luminance(card) < 0.2
    assert dark is (scheme == "dark")
    context.close()
