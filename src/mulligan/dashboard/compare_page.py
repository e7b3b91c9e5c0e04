"""Compare page: two versions, agents or periods, with significant differences marked."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.core.failure import SettingsError
from mulligan.dashboard import formatting
from mulligan.dashboard.page_query import PageQuery, parse_date_range
from mulligan.report import stats as stats_report
from mulligan.store.base import Store
from mulligan.store.counters import Stats, StatsQuery

DIMENSIONS = {
    "version": "versions", "agent": "agents", "model": "models", "environment": "environments", "tool": "tools",
    "time": "periods",
}  # fmt: skip
MAX_CHOICES = 100
"""Limit of values offered for selection."""


def compare(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    by = page_query.other_parameters.get("by", "version")
    if by not in DIMENSIONS:
        raise SettingsError(f"Invalid by {by[:40]!r}. Use one of: {', '.join(DIMENSIONS)}.")
    first_value, second_value = page_query.other_parameters.get("a", ""), page_query.other_parameters.get("b", "")
    context: dict[str, Any] = {
        "by": by,
        "dimensions": DIMENSIONS,
        "a": first_value,
        "b": second_value,
        "differences": None,
        "missing": None,
    }
    if by == "time":
        days = page_query.buckets
        first, last = page_query.dates
        earlier = page_query.previous_stats_query()
        context["a"] = (
            first_value or f"{formatting.date(earlier.since or 0)}..{formatting.date((earlier.until or 1) - 1)}"
        )
        context["b"] = second_value or f"{first}..{last}"
        context["values"] = []
        answers = [_stats_between(store, tenant, page_query, context[side], side) for side in ("a", "b")]
        context["grain"] = len(days)
    else:
        stats = store.stats(tenant, page_query.stats_query(by=by))  # type: ignore[arg-type]
        values = _values(by, stats)
        context["values"] = values[:MAX_CHOICES]
        if not first_value and not second_value and len(values) >= 2:
            context["a"], context["b"] = first_value, second_value = values[0], values[1]
        if not first_value or not second_value:
            return context
        answers = [
            store.stats(tenant, _stats_query_for(page_query, by, value)) for value in (first_value, second_value)
        ]
    context["missing"] = [
        context[side]
        for side, answer in zip("ab", answers, strict=True)
        if not answer.total.calls and not answer.total.runs
    ]
    context["differences"] = stats_report.compare_stats(answers[0].total, answers[1].total)
    context["calls"] = [answer.total.calls for answer in answers]
    return context


def _values(by: str, stats: Stats) -> list[str]:
    """Return the comparable values, most calls first.

    Stats label a version with its agent; only the version is used.
    """
    counts: dict[str, int] = {}
    for label, cell in stats.parts.items():
        name = label.rpartition(" ")[2] if by == "version" else label
        if name and formatting.is_display_safe(name):
            counts[name] = counts.get(name, 0) + cell.calls
    return sorted(counts, key=lambda name: (-counts[name], name))


def _stats_query_for(page_query: PageQuery, by: str, value: str) -> StatsQuery:
    return msgspec.structs.replace(page_query.stats_query(), **{by: value})


def _stats_between(store: Store, tenant: str, page_query: PageQuery, text: str, side: str) -> Stats:
    first, dots, last = text.partition("..")
    if not dots:
        raise SettingsError(f"Invalid {side} {text[:40]!r}. Use two dates, for example 2026-01-01..2026-01-31.")
    since, until = parse_date_range(first, last, page_query.now)
    return store.stats(tenant, msgspec.structs.replace(page_query.stats_query(), since=since, until=until))
