from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
from session_logs import find_failures

from mulligan.core.records import to_builtins
from mulligan.report.scan_page import render_page
from mulligan.report.scan_report import (
    AgentFinding,
    DayFinding,
    Findings,
    FixFinding,
    KindFinding,
    PatternFinding,
    SpiralFinding,
    ToolFinding,
)

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)><a href="javascript:alert(3)">\'{{7*7}}</style>'


def findings(text: str) -> Findings:
    """Every text of it is this one."""
    return Findings(
        sessions=2, compacted_sessions=1, calls=40, failures=9, recovered=5, repeats_after_compaction=2,
        failure_seconds=75.0, user_rejected=1, cancelled=1, first_seen_at=1_772_000_000_000,
        last_seen_at=1_772_300_000_000,
        agents=(AgentFinding(agent=text, sessions=2, calls=40, failures=9),),
        kinds=(
            KindFinding(
                kind=f"tool/{text}", remedy="replan", failures=9, recovered=5, repeats_after_compaction=2, tool=text
            ),
        ),
        tools=(ToolFinding(tool=text, calls=40, failures=9, recovered=5, failure_seconds=75.0),),
        patterns=(
            PatternFinding(tool=text, kind=text, fingerprint=text, message=text, failures=9, sessions=2, recovered=5,
                         repeats_after_compaction=2, first_seen_at=1, last_seen_at=2),
        ),
        fixes=(FixFinding(tool=text, kind=text, action=text, successes=5, failures=9, before=text, after=text),),
        spirals=(
            SpiralFinding(run=text, agent=text, project=text, started_at=1, tool=text, kind=text, message=text,
                          failures=40, duration_seconds=60.0, recovered_by=text),
        ),
        days=(DayFinding(day="2026-02-25", calls=30, recovered=5, unrecovered=3),
              DayFinding(day="2026-02-26", calls=10, recovered=0, unrecovered=1)),
    )  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "br", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def test_hostile_texts_are_only_text():
    made = render_page(findings(HOSTILE), 1_772_400_000_000, HOSTILE)
    tags = parsed(made)
    assert not {"script", "img", "iframe", "link", "object", "form"} & set(tags.tags)
    assert not [each for each in tags.attributes if each[1].startswith("on") or each[1] in ("style", "src")]
    assert all(str(value).startswith("#") for _, name, value in tags.attributes if name == "href")
    assert tags.tags.count("style") == 1
    assert made.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 10


def test_the_policy_in_its_head_allows_its_own_style_and_nothing_else():
    import base64
    import hashlib

    made = render_page(findings("x"), 1_772_400_000_000)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', made)
    (style,) = re.findall(r"<style>(.*?)</style>", made, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style
    assert "@import" not in style
    assert not re.findall(r"(?:https?:)?//\w", made)


def test_it_shows_what_was_found_and_needs_neither_script_nor_colour():
    made = render_page(findings("Edit"), 1_772_400_000_000, "3 logs read")
    for text in (
        "22.5",
        "5 of 9",
        "Repeated after compaction",
        "75 s",
        "3 logs read",
        "✕" * 24 + " +16",
        "unrecovered",
    ):
        assert text in made
    assert "<title>2026-02-25: 5 recovered, 3 unrecovered, 30 calls</title>" in made
    assert "prefers-color-scheme: dark" in made


def test_failures_of_which_nobody_knows_when_are_not_left_out_without_a_word():
    dated, both = (
        render_page(msgspec.structs.replace(findings("x"), undated=undated), 1_772_400_000_000) for undated in (0, 3)
    )
    assert "without a timestamp" not in "".join(dated)
    assert "Not shown: 3 failures without a timestamp." in "".join(both)


def test_nothing_found_is_a_page_too():
    made = render_page(find_failures([]), 1_772_400_000_000)
    parsed(made)
    assert "No tool calls found." in made


def test_a_page_is_small():
    assert len(render_page(findings("x" * 200), 0)) < 100_000
    assert to_builtins(findings("x"))["failures"] == 9


def test_page_hides_home_folders_and_counts_one_call_as_one():
    text = r"/home/ada/shop/a.py, /Users/bob/b.py, C:\Users\carl\c.py, /srv/dora/d.py, /srv/doras/e.py"
    page = render_page(findings(text), 0, home="/srv/dora")
    assert r"~/shop/a.py, ~/b.py, ~\c.py, ~/d.py, /srv/doras/e.py" in page
    assert not [name for name in ("/ada", "/bob", "carl", "dora/") if name in page]
    assert "1 call rejected by the user" in page
