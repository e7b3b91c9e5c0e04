"""What changed in a period: failure patterns that are new, that came back after they were resolved, or that grow.

A pattern grows if it occurs more often on the latest days than its share of the attempts on earlier days lets expect:
of the same weekdays in a store of four weeks, else of the days before. Counts are compared as square roots, whose
variance does not depend on their mean (Anscombe, Biometrika 35, 1948). Days differ by more than chance, so the variance
is that between the earlier days; where these are few, a usual one counts too (Smyth, Statistical Applications in
Genetics 3, 2004). All of the period, its last two days and the current one are looked at. The permitted error is
divided among all patterns and looks (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_CHANGE_DAYS, PatternQuery, RunQuery, Store, find_new_start
from mulligan.core.records import History, Pattern
from mulligan.report.differences import ERROR_RATE, t_quantile
from mulligan.report.tables import format_share

MAX_CHANGES = 5
"""Changes of each type that are listed."""
MAX_COMPARED_PATTERNS = 50
"""The most frequent patterns of all compared days. Others are not compared."""
WEEKS = 4
MAX_GROWTH_DAYS = DEFAULT_CHANGE_DAYS
MIN_EARLIER_DAYS = 2
MIN_GROWN_OCCURRENCES = 5
MIN_GROWTH = 1.2
"""A clear growth by less is no change that a person must know."""
USUAL_SPREAD = 0.3
"""By how much the rate of a usual pattern differs between days, as a standard deviation of its logarithm."""
USUAL_SPREAD_DAYS = 4
"""Earlier days that are as certain as that assumption."""


class PatternChange(NamedTuple):
    """One pattern that changed."""

    type: Literal["regressed", "new", "growing"]
    pattern: Pattern
    since: int
    """When it was first seen, or seen again; the start of the latest days if it grows."""
    first_run: History | None
    """The run in which it began; if it grows, the newest one. None if it is no longer stored."""
    effect: str = ""
    """By how much it grows."""

    @property
    def version(self) -> str:
        """The version that brought it back; otherwise that of the run. Empty if unknown."""
        if self.type == "regressed":
            return self.pattern.regressed_version
        return self.first_run.run.version or "" if self.first_run is not None else ""

    @property
    def occurrences(self) -> int:
        """Failed attempts since the day on which the change began."""
        return sum(count for day, count in self.pattern.days.items() if day + DAY > self.since)


class Changes(NamedTuple):
    """What changed in a period."""

    rows: list[PatternChange]
    short_history: int | None = None
    """Days with attempts, if they are too few to judge growth."""


def find_changes(store: Store, tenant: str, query: PatternQuery, now: int) -> Changes:
    """Return what changed since the start of a query's period: regressed patterns, then new and growing ones."""
    since = query.since or 0
    new_start = find_new_start(since, now)
    changes: list[PatternChange] = []
    regressed_query = msgspec.structs.replace(query, regressed=True, order="unrecovered", limit=MAX_COMPARED_PATTERNS)
    for pattern in store.patterns(tenant, regressed_query):
        if pattern.regressed_at >= since:
            first_run = _find_last_run(store, tenant, pattern, pattern.regressed_at)
            changes.append(PatternChange("regressed", pattern, pattern.regressed_at, first_run))
    known_ids = {change.pattern.id for change in changes}
    changes = changes[:MAX_CHANGES]
    new_query = msgspec.structs.replace(query, new_since=new_start, order="unrecovered", limit=MAX_CHANGES)
    for pattern in store.patterns(tenant, new_query):
        if pattern.id not in known_ids:
            first_run = _find_last_run(store, tenant, pattern, pattern.first_seen_at)
            changes.append(PatternChange("new", pattern, pattern.first_seen_at, first_run))
    today = now // DAY * DAY
    days = min(MAX_GROWTH_DAYS, (today - since // DAY * DAY) // DAY + 1)
    earlier_start = today - (days - 1 + WEEKS * 7) * DAY
    parts = store.stats(tenant, StatsQuery(now=now, since=earlier_start, by="time")).parts
    attempts = {int(day): cell.attempts for day, cell in parts.items() if cell.attempts}
    looks = split_days(attempts, today, days)
    if not looks:
        return Changes(changes, len(attempts))
    compared_query = msgspec.structs.replace(
        query, since=earlier_start, order="occurrences", limit=MAX_COMPARED_PATTERNS
    )
    patterns = [
        pattern
        for pattern in store.patterns(tenant, compared_query)
        if pattern.first_seen_at < new_start and pattern.id not in known_ids
    ]
    for growth in find_growing(patterns, attempts, looks)[:MAX_CHANGES]:
        runs = store.runs(tenant, RunQuery(pattern=growth.pattern.id, since=growth.since, limit=1))
        changes.append(PatternChange("growing", growth.pattern, growth.since, next(iter(runs), None), growth.effect))
    return Changes(changes)


def _find_last_run(store: Store, tenant: str, pattern: Pattern, seen_at: int) -> History | None:
    """Return the last run with a pattern that began no later than a time; None if it is no longer stored."""
    return next(iter(store.runs(tenant, RunQuery(pattern=pattern.id, until=seen_at + 1, limit=1))), None)


class Look(NamedTuple):
    """Latest days, and the earlier ones that they are compared with. All have attempts."""

    latest: Sequence[int]
    earlier: Sequence[int]


def split_days(attempts: Mapping[int, int], today: int, days: int) -> list[Look]:
    """Return the looks at the last days that have enough earlier days: all, the last two, and the current one."""
    looks = []
    for length in sorted({days, min(days, 2), 1}, reverse=True):
        start = today - (length - 1) * DAY
        latest = [day for day in range(start, today + 1, DAY) if attempts.get(day)]
        earlier = [day for day in range(start - WEEKS * 7 * DAY, start, DAY) if attempts.get(day)]
        if latest and len(earlier) >= MIN_EARLIER_DAYS:
            looks.append(Look(latest, earlier))
    return looks


class Growth(NamedTuple):
    """A pattern that grows."""

    pattern: Pattern
    since: int
    factor: float
    effect: str
    """Its shares of the attempts before and now."""


def find_growing(patterns: Iterable[Pattern], attempts: Mapping[int, int], looks: Sequence[Look]) -> list[Growth]:
    """Return the patterns that grow, the fastest first, each at its clearest look. `attempts` has all by day."""
    # Others cannot be said to grow, so they add no false alarm (Tarone, Biometrics 46, 1990).
    tests = [
        (pattern, look)
        for pattern in patterns
        for look in looks
        if sum(pattern.days.get(day, 0) for day in (*look.earlier, *look.latest)) >= MIN_GROWN_OCCURRENCES
    ]
    clearest: dict[str, tuple[float, Growth]] = {}
    for pattern, look in tests:
        clearness, factor = _measure_growth(pattern.days, attempts, look, ERROR_RATE / len(tests))
        latest = sum(pattern.days.get(day, 0) for day in look.latest)
        if clearness <= max(1.0, clearest.get(pattern.id, (0.0,))[0]) or latest < MIN_GROWN_OCCURRENCES:
            continue
        if factor >= MIN_GROWTH:
            shares = " to ".join(_format_share_of(pattern.days, attempts, days) for days in (look.earlier, look.latest))
            clearest[pattern.id] = clearness, Growth(pattern, look.latest[0], factor, f"{shares} of attempts")
    return sorted((growth for _, growth in clearest.values()), key=lambda growth: -growth.factor)


def _format_share_of(counts: Mapping[int, int], attempts: Mapping[int, int], days: Iterable[int]) -> str:
    rows = [(min(counts.get(day, 0), attempts[day]), attempts[day]) for day in days]
    return format_share(sum(count for count, _ in rows), sum(total for _, total in rows))


def _measure_growth(
    counts: Mapping[int, int], attempts: Mapping[int, int], look: Look, error: float
) -> tuple[float, float]:
    """Return how clear the growth is, above 1 if it is by more than chance, and its factor."""
    latest, earlier = look
    weeks = {(latest[0] - day - 1) // (7 * DAY) for day in earlier}
    weekdays = {day // DAY % 7 for day in earlier}
    has_weekdays = len(weeks) == WEEKS and len(earlier) >= len(weekdays) + MIN_EARLIER_DAYS

    def group_of(day: int) -> int:
        return day // DAY % 7 if has_weekdays else 0

    before: dict[int, float] = {}
    totals: dict[int, int] = {}
    for day in earlier:
        before[group_of(day)] = before.get(group_of(day), 0.5) + counts.get(day, 0)
        totals[group_of(day)] = totals.get(group_of(day), 0) + attempts[day]

    def expect(days: Iterable[int]) -> list[tuple[int, float, int]]:
        """Return actual and expected occurrences by day, with its group."""
        groups = [(day, group_of(day)) for day in days if group_of(day) in totals]
        return [(counts.get(day, 0), before[group] / totals[group] * attempts[day], group) for day, group in groups]

    compared, usual = expect(latest), expect(earlier)
    actual, expected = sum(row[0] for row in compared), math.fsum(row[1] for row in compared)
    if not expected:
        return 0.0, 1.0
    size, usual_size = (
        math.fsum(mean**2 for _, mean, _ in rows) / math.fsum(mean for _, mean, _ in rows) for rows in (compared, usual)
    )
    degrees = len(usual) - len(totals)
    squares = math.fsum(_root_difference(count, mean) ** 2 for count, mean, _ in usual)
    usual_variance = 1 + USUAL_SPREAD**2 * usual_size
    variance = (squares + USUAL_SPREAD_DAYS * usual_variance) / (degrees + USUAL_SPREAD_DAYS)
    # Days differ by a share, so more attempts increase the variance.
    variance = 1 + max(variance - 1, 0) * max(size / usual_size, 1)
    by_group: dict[int, float] = {}
    for _, mean, group in compared:
        by_group[group] = by_group.get(group, 0.0) + mean
    uncertainty = math.fsum(mean**2 / before[group] for group, mean in by_group.items()) / expected
    quantile = t_quantile(1 - error, degrees + USUAL_SPREAD_DAYS)
    clearness = _root_difference(actual, expected) / (quantile * math.sqrt(variance * (1 + uncertainty)))
    return clearness, actual / expected


def _root_difference(count: float, mean: float) -> float:
    """Return by how much a count differs from its mean, with a variance of about 1 if only chance differs."""
    return 2 * (math.sqrt(count + 0.375) - math.sqrt(mean + 0.375))
