"""What changed in a period: patterns that are new, that came back, or that grow, and days on which nothing did."""

from __future__ import annotations

import contextlib
import math
import random

import pytest
from agents_week import fill

from mulligan.contract.counters import HOUR, Cell
from mulligan.contract.store import DAY, DEFAULT_TENANT, PatternCommand, PatternQuery, find_new_start
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import History, Pattern, Run, Step
from mulligan.report.changes import find_changes, find_growing, split_days
from mulligan.report.stats import compare_stats
from mulligan.store.sqlite import SqliteStore

NOW = 20_000 * DAY + DAY // 2
TODAY = NOW // DAY * DAY
NEW_SINCE_YESTERDAY = PatternQuery(since=NOW - 23 * HOUR, new_since=find_new_start(NOW - 23 * HOUR, NOW))
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
    found_changes = find_changes(store, DEFAULT_TENANT, PatternQuery(since=since), NOW).rows
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
    [change] = find_changes(store, DEFAULT_TENANT, PatternQuery(since=SINCE), NOW).rows
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


def test_a_pattern_that_began_before_the_period_is_new_for_48_hours(store):
    add_runs(store, NOW - 30 * HOUR, "pay", 4)
    add_runs(store, NOW - HOUR, "pay", 1)
    add_runs(store, NOW - 30 * HOUR, "search", 1)  # does not occur any more
    assert changes_of(store, since=NOW - 23 * HOUR) == [("new", "pay", "1.3")]
    assert [pattern.tool for pattern in store.patterns(DEFAULT_TENANT, NEW_SINCE_YESTERDAY)] == ["pay"]
    [pattern] = store.patterns(DEFAULT_TENANT, PatternQuery(tool="pay"))
    store.update_pattern(DEFAULT_TENANT, PatternCommand("assign", pattern.id, at=NOW, text="ann"))
    store.update_pattern(DEFAULT_TENANT, PatternCommand("acknowledge", pattern.id, at=NOW))
    assert [pattern.status for pattern in store.patterns(DEFAULT_TENANT, NEW_SINCE_YESTERDAY)] == ["acknowledged"]
    add_runs(store, NOW - 49 * HOUR, "pay", 1)
    assert changes_of(store, since=NOW - 23 * HOUR) == []
    assert store.patterns(DEFAULT_TENANT, NEW_SINCE_YESTERDAY) == []


def test_a_young_store_compares_with_the_days_before(store):
    for day in range(13, 1, -1):
        add_runs(store, NOW - day * DAY, "pay", 1, 49)
    for day in (1, 0):
        add_runs(store, NOW - day * DAY, "pay", 15, 35, version="1.4")
    assert changes_of(store) == changes_of(store, since=NOW - DAY) == [("growing", "pay", "1.4")]
    [change] = find_changes(store, DEFAULT_TENANT, PatternQuery(since=SINCE), NOW).rows
    assert change.effect == "2.0 % to 30.0 % of attempts"
    assert change.since == NOW // DAY * DAY - DAY, "the break is not diluted by the rest of the week"


@pytest.mark.parametrize(("days", "short_history"), [(1, 1), (2, 2), (3, None)])
def test_a_history_that_is_too_short_to_judge_growth_is_named(store, days, short_history):
    for day in range(days):
        add_runs(store, NOW - day * DAY, "pay", 1, 9)
    assert find_changes(store, DEFAULT_TENANT, PatternQuery(since=SINCE), NOW).short_history == short_history


def test_growth_is_found_after_three_days_of_history():
    attempts = dict.fromkeys((TODAY - 2 * DAY, TODAY - DAY, TODAY), 500)
    counts = {TODAY - 2 * DAY: 4, TODAY - DAY: 5, TODAY: 60}
    looks = split_days(attempts, TODAY, days=2)
    [growth] = find_growing([Pattern("p", "t", "f", "tool/timeout", days=counts)], attempts, looks)
    assert growth.since == TODAY


def draw_poisson(rng, mean):
    if mean > 50:
        return max(0, round(rng.gauss(mean, mean**0.5)))
    count, product, limit = 0, rng.random(), math.exp(-mean)
    while product >= limit:
        count, product = count + 1, product * rng.random()
    return count


@pytest.mark.parametrize("spread", [0.0, 0.3], ids=["chance", "days differ"])
@pytest.mark.parametrize("history", [3, 8, 14, 35])
def test_pages_of_stable_stores_call_something_growing_or_worse_in_at_most_5_percent(history, spread):
    """1,000 pages in all, of two days and of a week. Traffic differs by weekday; 1 to 20 patterns."""
    rng, alarms, pages = random.Random(history), 0, 125
    for page in range(pages):
        days = (2, 7)[page % 2]
        scale, weekdays = 10 ** rng.uniform(1.5, 3.5), [rng.uniform(0.2, 1) for _ in range(7)]
        means = {TODAY - n * DAY: scale * weekdays[n % 7] * (1 if n else rng.random()) for n in range(history)}
        attempts = {day: count for day, mean in means.items() if (count := draw_poisson(rng, mean))}
        patterns = []
        for number in range(rng.choice((1, 5, 20))):
            rate = 10 ** rng.uniform(-3.5, -1.5)
            counts = {
                day: min(count, draw_poisson(rng, count * rate * rng.lognormvariate(0, spread)))
                for day, count in attempts.items()
            }
            patterns.append(Pattern(f"p{number}", "tool", "f", "tool/timeout", days=counts))
        is_growing = bool(find_growing(patterns, attempts, split_days(attempts, TODAY, days)))
        alarms += is_growing or has_worse_card(rng, attempts, days)
    assert alarms <= 0.05 * pages


def has_worse_card(rng, attempts, days):
    """Whether the headline figures of a period are called worse than those of the period before."""
    cells = []
    for start in (TODAY - (2 * days - 1) * DAY, TODAY - (days - 1) * DAY):
        calls = sum(attempts.get(day, 0) for day in range(start, start + days * DAY, DAY))
        unrecovered, recovered = (min(calls // 3, draw_poisson(rng, calls * rate)) for rate in (0.03, 0.05))
        partial = min(unrecovered, calls // 4)
        fields = {"first_try": calls - unrecovered - recovered, "recovered": recovered, "unrecovered": unrecovered}
        cells.append(Cell(calls=calls, runs={"partial": partial, "success": calls // 4 - partial}, **fields))
    return any(row.verdict == "worse" for row in compare_stats(*cells))
