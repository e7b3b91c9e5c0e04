"""What changed in a period: patterns that are new, that came back, or that grow, and days on which nothing did."""

from __future__ import annotations

import contextlib
import random

import pytest
from agents_week import fill

from mulligan.contract.store import DAY, DEFAULT_TENANT, PatternCommand, PatternQuery
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import History, Pattern, Run, Step
from mulligan.report.changes import find_changes, find_growing
from mulligan.store.sqlite import SqliteStore

NOW = 20_000 * DAY + DAY // 2
TIMEOUT = Kind.from_name("tool/timeout")
SINCE = NOW // DAY * DAY - 6 * DAY


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(SqliteStore(tmp_path / "a.db", lambda: NOW)) as store:
        yield store


def add_runs(store, at, tool, failed, succeeded=0, version="1.3"):
    """Store runs of one call each."""
    histories = []
    for number in range(failed + succeeded):
        id = f"run_{at}_{tool}_{number}"
        failure = Failure.of(TIMEOUT, f"{tool} is slow", fingerprint=tool)
        outcome = {"outcome": "failure", "failure": failure} if number < failed else {"outcome": "success"}
        step = Step(run=id, seq=1, call=1, name=tool, started_at=at + number, **outcome)
        run = Run(id=id, agent="ann", version=version, started_at=at + number, ended_at=at + 500, end_reason="finished")
        histories.append(History(run=run, steps=(step,)))
    fill(store, histories)


def changes_of(store, since=SINCE):
    found_changes = find_changes(store, DEFAULT_TENANT, PatternQuery(since=since), NOW)
    return [(change.type, change.pattern.tool, change.version) for change in found_changes]


def test_a_pattern_that_was_first_seen_in_the_period_is_new_with_the_version_of_its_first_run(store):
    add_runs(store, NOW - 20 * DAY, "search", 1)
    add_runs(store, NOW - 2 * DAY, "pay", 1, version="1.4")
    add_runs(store, NOW - DAY, "pay", 3, version="1.5")
    assert changes_of(store) == [("new", "pay", "1.4")]


def resolve(store, tool, at, version=""):
    [pattern] = store.patterns(DEFAULT_TENANT, PatternQuery(tool=tool))
    store.update_pattern(DEFAULT_TENANT, PatternCommand("resolve", pattern.id, at=at, text=version))


def test_a_resolved_pattern_that_occurs_again_regressed_with_the_version_that_brought_it_back(store):
    add_runs(store, NOW - 20 * DAY, "pay", 4)
    resolve(store, "pay", NOW - 10 * DAY)
    assert changes_of(store) == []
    add_runs(store, NOW - 2 * DAY, "pay", 1, version="1.4")
    add_runs(store, NOW - DAY, "pay", 1, version="1.5")
    assert changes_of(store) == [("regressed", "pay", "1.4")]
    assert changes_of(store, since=NOW - DAY // 2) == []  # it came back before


def test_a_pattern_that_was_resolved_and_came_back_on_the_same_day_regressed(store):
    add_runs(store, NOW - 3 * DAY, "pay", 1)
    resolve(store, "pay", NOW - 3 * DAY + 1000)
    add_runs(store, NOW - 3 * DAY + 2000, "pay", 1, version="1.4")
    assert changes_of(store) == [("regressed", "pay", "1.4")]


def test_runs_of_an_older_version_than_the_one_with_the_fix_bring_nothing_back(store):
    add_runs(store, NOW - 20 * DAY, "pay", 1, version="1.3")
    resolve(store, "pay", NOW - 10 * DAY, version="1.4")
    add_runs(store, NOW - 3 * DAY, "pay", 1, version="1.3")
    assert changes_of(store) == []
    add_runs(store, NOW - 2 * DAY, "pay", 1, version="1.5")
    assert changes_of(store) == [("regressed", "pay", "1.5")]


def test_a_pattern_that_takes_a_larger_share_than_on_the_same_weekdays_grows(store):
    for week in range(1, 5):
        for day in range(7):
            add_runs(store, NOW - (7 * week + day) * DAY, "pay", 1, 19)
    for day in range(7):
        add_runs(store, NOW - day * DAY, "pay", 12, 8, version="1.4")
    assert changes_of(store) == [("growing", "pay", "1.4")]
    [change] = find_changes(store, DEFAULT_TENANT, PatternQuery(since=SINCE), NOW)
    assert change.effect == "5.0 % to 60.0 % of attempts"
    assert change.occurrences == 84


def test_more_traffic_is_no_growth(store):
    for week in range(1, 5):
        for day in range(7):
            add_runs(store, NOW - (7 * week + day) * DAY, "pay", 1, 9)
    for day in range(7):
        add_runs(store, NOW - day * DAY, "pay", 5, 45)
    assert changes_of(store) == []


def test_muted_patterns_are_no_change(store):
    add_runs(store, NOW - DAY, "pay", 1)
    [pattern] = store.patterns(DEFAULT_TENANT, PatternQuery())
    store.update_pattern(DEFAULT_TENANT, PatternCommand("mute", pattern.id, at=NOW))
    assert changes_of(store) == []


@pytest.mark.parametrize("days", [2, 7])
def test_pages_without_a_change_name_one_in_at_most_5_percent(days):
    """Ten patterns whose rates differ by day, and 400 pages."""
    rng = random.Random(7)
    today = NOW // DAY * DAY
    latest = range(today - (days - 1) * DAY, today + 1, DAY)
    pages = 0
    for _ in range(400):
        attempts = {today - day * DAY: rng.randint(300, 1500) for day in range(35)}
        patterns = []
        for number in range(10):
            rate = rng.uniform(0.002, 0.05)
            counts = {}
            for day, total in attempts.items():
                mean = total * min(rate * rng.lognormvariate(0, 0.4), 0.5)
                counts[day] = max(0, round(rng.gauss(mean, mean**0.5)))
            patterns.append(Pattern(f"p{number}", "tool", "f", "tool/timeout", days=counts))
        pages += bool(find_growing(patterns, attempts, latest))
    assert pages <= 20
