"""What changed in a period: failure patterns that are new, that came back after they were resolved, or that grow.

A pattern grows if its share of all attempts on the latest days is larger than on the same weekdays of the four weeks
before: a t-test of logarithms, because days differ by more than chance. The permitted error is divided among the
compared patterns (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, PatternQuery, RunQuery, Store
from mulligan.core.records import History, Pattern
from mulligan.report.differences import ERROR_RATE, Clusters, t_quantile
from mulligan.report.tables import format_share

MAX_CHANGES = 5
"""Changes of each type that are listed."""
MAX_COMPARED_PATTERNS = 50
"""The most frequent patterns of all compared days. Others are not compared."""
WEEKS = 4
MAX_GROWTH_DAYS = 7
MIN_EARLIER_DAYS = 4
MIN_GROWN_OCCURRENCES = 5
MIN_GROWTH = 1.2
"""A clear growth by less is no change that a person must know."""


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


def find_changes(store: Store, tenant: str, query: PatternQuery, now: int) -> list[PatternChange]:
    """Return what changed since the start of a query's period: regressed patterns, then new and growing ones."""
    since = query.since or 0
    changes: list[PatternChange] = []
    regressed_query = msgspec.structs.replace(query, regressed=True, order="unrecovered", limit=MAX_COMPARED_PATTERNS)
    for pattern in store.patterns(tenant, regressed_query):
        if pattern.regressed_at >= since:
            first_run = _find_last_run(store, tenant, pattern, pattern.regressed_at)
            changes.append(PatternChange("regressed", pattern, pattern.regressed_at, first_run))
    known_ids = {change.pattern.id for change in changes}
    changes = changes[:MAX_CHANGES]
    new_query = msgspec.structs.replace(query, new_since=since, order="unrecovered", limit=MAX_CHANGES)
    for pattern in store.patterns(tenant, new_query):
        if pattern.id not in known_ids:
            first_run = _find_last_run(store, tenant, pattern, pattern.first_seen_at)
            changes.append(PatternChange("new", pattern, pattern.first_seen_at, first_run))
    today = now // DAY * DAY
    days = min(MAX_GROWTH_DAYS, (today - since // DAY * DAY) // DAY + 1)
    start = today - (days - 1) * DAY
    earlier_start = start - WEEKS * 7 * DAY
    compared_query = msgspec.structs.replace(
        query, since=earlier_start, order="occurrences", limit=MAX_COMPARED_PATTERNS
    )
    patterns = [
        pattern
        for pattern in store.patterns(tenant, compared_query)
        if pattern.first_seen_at < since and pattern.id not in known_ids
    ]
    if patterns:
        parts = store.stats(tenant, StatsQuery(now=now, since=earlier_start, by="time")).parts
        attempts = {int(day): cell.attempts for day, cell in parts.items()}
        for pattern, effect in find_growing(patterns, attempts, range(start, today + 1, DAY))[:MAX_CHANGES]:
            runs = store.runs(tenant, RunQuery(pattern=pattern.id, since=start, limit=1))
            changes.append(PatternChange("growing", pattern, start, next(iter(runs), None), effect))
    return changes


def _find_last_run(store: Store, tenant: str, pattern: Pattern, seen_at: int) -> History | None:
    """Return the last run with a pattern that began no later than a time; None if it is no longer stored."""
    return next(iter(store.runs(tenant, RunQuery(pattern=pattern.id, until=seen_at + 1, limit=1))), None)


def find_growing(
    patterns: Iterable[Pattern], attempts: Mapping[int, int], days: Sequence[int]
) -> list[tuple[Pattern, str]]:
    """Return the patterns that grow, the fastest first, with their shares of the attempts before and now.

    `attempts` has all attempts by day, `days` are the latest days, at most a week.
    """
    earlier_days = [day - week * 7 * DAY for day in days for week in range(1, WEEKS + 1)]
    if sum(bool(attempts.get(day)) for day in earlier_days) < MIN_EARLIER_DAYS:
        return []

    def count(pattern: Pattern, days: Iterable[int]) -> list[tuple[int, int]]:
        return [(min(pattern.days.get(day, 0), attempts[day]), attempts[day]) for day in days if attempts.get(day)]

    day_counts = [(pattern, count(pattern, earlier_days), count(pattern, days)) for pattern in patterns]
    candidates = [row for row in day_counts if sum(part for part, _ in row[2]) >= MIN_GROWN_OCCURRENCES]
    growing = []
    for pattern, earlier, latest in candidates:
        growth, spread = _compare_days(earlier, latest, ERROR_RATE / len(candidates))
        if growth > max(spread, math.log(MIN_GROWTH)):
            shares = (format_share(*map(sum, zip(*group, strict=True))) for group in (earlier, latest))
            growing.append((growth, pattern, f"{' to '.join(shares)} of attempts"))
    growing.sort(key=lambda row: -row[0])
    return [(pattern, effect) for _, pattern, effect in growing]


def _compare_days(earlier: Clusters, latest: Clusters, error: float) -> tuple[float, float]:
    """Return the difference of the mean logarithms of daily shares, and by how much it differs by chance.

    The variance is that of the earlier days, so that one bad day of the latest does not hide itself, and at least
    that of independent failures.
    """
    before, after = ([math.log((part + 0.5) / total) for part, total in group] for group in (earlier, latest))
    mean = math.fsum(before) / len(before)
    variance = math.fsum((value - mean) ** 2 for value in before) / (len(before) - 1)
    variance = max(variance, 1 / (sum(part for part, _ in earlier) / len(earlier) + 0.5))
    quantile = t_quantile(1 - error / 2, len(before) - 1)
    spread = quantile * math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    return math.fsum(after) / len(after) - mean, spread
