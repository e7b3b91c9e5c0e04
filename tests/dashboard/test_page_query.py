"""What a URL asks, and that every link asks what it says."""

from __future__ import annotations

from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import DAY
from mulligan.core.failure import SettingsError
from mulligan.dashboard import formatting
from mulligan.dashboard.page_query import UNNAMED_AGENT, PageQuery
from mulligan.report.resources import PATTERN_SPEC, RUN_SPEC

HOUR = 3_600_000
NOW = 1_790_000_000_000 // DAY * DAY + 15 * HOUR + 123
words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40).filter(lambda text: text.strip())


def asked(path: str = "/", **query: str) -> PageQuery:
    return PageQuery.parse(path, query, NOW)


def followed(link: str) -> PageQuery:
    """The question that a browser asks by a link."""
    parts = urlsplit(unescape(link))
    return PageQuery.parse(parts.path, dict(parse_qsl(parts.query)), NOW)


def test_without_a_word_it_is_the_last_seven_days_of_which_today_is_one():
    week = asked()
    assert week.since == NOW // DAY * DAY - 6 * DAY
    assert len(week.buckets) == 7
    assert week.buckets[-1] == NOW // DAY * DAY


def test_a_day_is_twenty_four_hours_of_which_this_is_one():
    day = asked(range="24h")
    assert day.grain == "hour"
    assert len(day.buckets) == 24
    assert day.buckets[-1] == NOW // HOUR * HOUR


def test_an_hour_includes_the_one_before_and_all_has_no_start():
    assert len(asked(range="1h").buckets) == 2
    assert len(asked(range="90d").buckets) == 90
    assert asked(range="all").since == 0
    assert followed(asked(range="all").link("/runs")).period == "all"


def test_a_link_to_another_selection_starts_at_its_first_page():
    assert followed(asked("/runs", cursor="abc", page="3").link(status="failure")).other_parameters == {}


def test_days_that_are_named_are_asked_for_whole():
    some = asked(**{"from": "2026-09-01", "to": "2026-09-03"})
    assert (formatting.date(some.since), formatting.date(some.until or 0)) == ("2026-09-01", "2026-09-04")
    assert len(some.buckets) == 3
    assert some.dates == ("2026-09-01", "2026-09-03")


def test_the_time_before_is_as_long_and_ends_where_this_one_begins():
    for question in (
        asked(),
        asked(range="24h"),
        asked(range="30d"),
        asked(**{"from": "2026-09-01", "to": "2026-09-03"}),
    ):
        before = question.previous_stats_query()
        assert before.until == question.since
        length = len(question.buckets) * (HOUR if question.grain == "hour" else DAY)
        assert question.since - (before.since or 0) == length


def test_an_agent_without_a_name_can_be_asked_for():
    assert asked(agent=UNNAMED_AGENT).stats_query().agent == ""
    assert asked().stats_query().agent is None


def test_a_type_alone_asks_for_all_its_kinds():
    question = asked(kind="tool")
    assert question.stats_query().kind == "tool"
    assert question.query(RUN_SPEC).kind == question.query(PATTERN_SPEC).kind == "tool/"
    assert asked(kind="tool/timeout").query(RUN_SPEC).kind == "tool/timeout"


@given(st.dictionaries(st.sampled_from(["agent", "tool", "model", "session"]), words))
def test_a_link_asks_what_is_asked_here_and_nothing_else(filters):
    question = PageQuery.parse("/runs", {**filters, "range": "30d"}, NOW)
    there = followed(question.link("/patterns"))
    assert there.filters == {name: value for name, value in question.filters.items() if name in ("agent", "tool")}
    assert there.since == question.since
    assert followed(question.link("/patterns", keep=False)).filters == {}
    for name in filters:
        assert name not in followed(question.link(**{name: None})).filters


@given(words)
def test_a_name_leads_to_its_own_page_whatever_is_in_it(name):
    link = unescape(asked(range="24h").detail_link("tools", name))
    parts = urlsplit(link)
    query = dict(parse_qsl(parts.query))
    found = query.get("name") or parts.path.removeprefix("/tools/")
    assert found == name
    assert parts.path == "/tools" or parts.path == f"/tools/{name}"
    assert query["range"] == "24h"
    assert not parts.netloc


@pytest.mark.parametrize(
    "query", [{"range": "2d"}, {"from": "x"}, {"to": "2026-02-30"}, {"from": "2027-01-01"}, {"status": "odd"}]
)
def test_what_cannot_be_meant_is_refused(query):
    with pytest.raises(SettingsError):
        PageQuery.parse("/runs", query, NOW)


def test_a_link_drops_a_filter_that_means_something_else_there():
    lessons = asked("/learned", state="active", tool="search")
    assert followed(lessons.link("/patterns")).filters == {"tool": "search"}
