"""Pages across all records: overview, search, comparison, health and audit."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from mulligan import __version__
from mulligan.core.failure import SettingsError
from mulligan.dashboard import formatting, metric_cards
from mulligan.dashboard.memory_pages import build_lesson_row, build_pattern_row
from mulligan.dashboard.page_query import PageQuery, parse_date_range
from mulligan.record.journal_import import HookErrors, count_dropped, read_hook_errors
from mulligan.report import stats as stats_report
from mulligan.report.resources import AUDIT_SPEC, PATTERN_SPEC
from mulligan.report.tables import format_timestamp
from mulligan.settings import hook_folder
from mulligan.store.base import DAY, DEFAULT_TENANT, LessonQuery, PatternQuery, Retention, RunQuery, Store
from mulligan.store.counters import Stats

MAX_SHOWN_PATTERNS = 10
MAX_SHOWN_TOOLS = 8
MAX_SHOWN_RESULTS = 20
MAX_SHOWN_ENTRIES = 200
DIMENSIONS = {
    "version": "versions", "agent": "agents", "model": "models", "environment": "environments", "tool": "tools",
    "time": "periods",
}  # fmt: skip
"""Dimensions whose values can be compared."""
MAX_CHOICES = 100
"""Limit of values offered for selection."""
CONTEXT_SAMPLE_RUNS = 200
"""Newest runs checked for a task description."""
MIN_CONTEXT_SHARE = 0.8
"""Target share of runs with a task description."""


def overview(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    series = store.stats(tenant, page_query.stats_query(by="time"))
    cell = series.total
    if not cell.calls and not cell.kinds and not cell.runs:
        return {"empty": metric_cards.empty_state(store, tenant, page_query)}
    before = store.stats(tenant, page_query.previous_stats_query()).total
    tools = store.stats(tenant, page_query.stats_query(by="tool"))
    patterns = store.patterns(tenant, page_query.query(PATTERN_SPEC, order="unrecovered", limit=MAX_SHOWN_PATTERNS))
    return {
        "empty": None,
        "runs": sum(cell.runs.values()),
        "running": cell.running,
        "has_runs": metric_cards.has_runs(page_query),
        **metric_cards.metric_context(page_query, series, before),
        "costs": metric_cards.costs(cell),
        "tools": metric_cards.metric_rows(tools.parts.items(), MAX_SHOWN_TOOLS),
        "all_tools": len(tools.parts),
        "patterns": [build_pattern_row(store, tenant, page_query, pattern) for pattern in patterns],
        "grain": "hour" if series.grain == "hour" else "day",
    }


def search(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Find runs by id prefix, patterns and lessons by text, tools and agents by name."""
    text = page_query.other_parameters.get("q", "")
    if not text:
        return {"q": "", "runs": [], "patterns": [], "lessons": [], "tools": [], "agents": [], "is_empty": True}
    patterns = store.patterns(tenant, PatternQuery(text=text, limit=MAX_SHOWN_RESULTS, order="unrecovered"))
    if not patterns and len(text) > 4 and (pattern := store.pattern(tenant, text)) is not None:
        patterns = [pattern]
    lessons = store.lessons(tenant, LessonQuery(text=text, now=page_query.now, limit=MAX_SHOWN_RESULTS))
    results: dict[str, Any] = {
        "runs": store.find(tenant, text, limit=MAX_SHOWN_RESULTS),
        "patterns": [build_pattern_row(store, tenant, page_query, pattern) for pattern in patterns],
        "lessons": list(map(build_lesson_row, lessons)),
    }
    for by, name in (("tool", "tools"), ("agent", "agents")):
        parts = store.stats(tenant, page_query.stats_query(by=by, since=None, until=None)).parts
        results[name] = sorted(part for part in parts if text.casefold() in part.casefold())[:MAX_SHOWN_RESULTS]
    return {"q": text, **results, "is_empty": not any(results.values())}


# Comparison


def compare(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Compare two versions, agents or periods, with significant differences marked."""
    by = page_query.other_parameters.get("by", "version")
    if by not in DIMENSIONS:
        raise SettingsError(f"Invalid by {by[:40]!r}. Use one of: {', '.join(DIMENSIONS)}.")
    sides = [page_query.other_parameters.get(side, "") for side in ("a", "b")]
    values: list[str] = []
    if by == "time":
        earlier = page_query.previous_stats_query()
        dates = formatting.date(earlier.since or 0), formatting.date((earlier.until or 1) - 1)
        sides = [sides[0] or "..".join(dates), sides[1] or "..".join(page_query.dates)]
        periods = [_parse_period(side, name, page_query.now) for side, name in zip(sides, "ab", strict=True)]
    else:
        values = _values(by, store.stats(tenant, page_query.stats_query(by=by)))
        if not any(sides) and len(values) >= 2:
            sides = values[:2]
        periods = [{by: side} for side in sides]
    context: dict[str, Any] = {
        "by": by, "dimensions": DIMENSIONS, "a": sides[0], "b": sides[1], "values": values[:MAX_CHOICES],
        "differences": None, "missing": None,
    }  # fmt: skip
    if not all(sides):
        return context
    cells = [
        store.stats(tenant, msgspec.structs.replace(page_query.stats_query(), **period)).total for period in periods
    ]
    return context | {
        "missing": [side for side, cell in zip(sides, cells, strict=True) if not cell.calls and not cell.runs],
        "differences": stats_report.compare_stats(*cells),
    }


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


def _parse_period(text: str, side: str, now: int) -> dict[str, Any]:
    first, dots, last = text.partition("..")
    if not dots:
        raise SettingsError(f"Invalid {side} {text[:40]!r}. Use two dates, for example 2026-01-01..2026-01-31.")
    since, until = parse_date_range(first, last, now)
    return {"since": since, "until": until}


# Health and audit


def health(store: Store, tenant: str, retention: Retention) -> dict[str, Any]:
    """Return the state and size of the store, dropped records, hook errors and retention."""
    store_health = store.health(tenant)
    recent = store.runs(tenant, RunQuery(limit=CONTEXT_SAMPLE_RUNS))
    runs_with_context = sum(history.run.context is not None for history in recent)
    path = Path(store_health.where)
    is_default_tenant = tenant == DEFAULT_TENANT
    has_files = store_health.where and is_default_tenant
    files = [file for file in (path, path.with_name(f"{path.name}-wal")) if has_files and file.is_file()]
    return {
        "health": store_health,
        # Location and total size cover all tenants, so only the operator sees them.
        "is_own": is_default_tenant,
        "size": formatting.size(sum(file.stat().st_size for file in files)) if files else formatting.NONE,
        "dropped": count_dropped(store, tenant),
        # Hook errors belong to this host's owner, not to other tenants.
        "hooks": read_hook_errors(hook_folder()) if is_default_tenant else HookErrors(),
        "context": formatting.percent(runs_with_context, len(recent)) if recent else formatting.NONE,
        "recent": len(recent),
        "has_enough_context": not recent or runs_with_context >= MIN_CONTEXT_SHARE * len(recent),
        "retention": [
            ("Runs with failures", _format_retention(retention.keep_failures)),
            ("Runs without failures", _format_retention(retention.keep_successes)),
            ("Hourly metrics", _format_retention(retention.keep_hourly)),
            ("Daily metrics", "forever"),
            ("Maximum file size", formatting.size(retention.max_size) if retention.max_size else "unlimited"),
        ],
        "version": __version__,
        "sqlite": sqlite3.sqlite_version,
    }


def _format_retention(millis: int | None) -> str:
    return "forever" if millis is None else f"{millis // DAY} days"


def audit(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """List changes by a tenant's operators, newest first, of all time. It requires the role admin."""
    entries = store.audit(tenant, page_query.query(AUDIT_SPEC, since=None, until=None, limit=MAX_SHOWN_ENTRIES))
    return {
        "rows": [(format_timestamp(entry.at), entry) for entry in entries],
        "is_cut": len(entries) == MAX_SHOWN_ENTRIES,
    }
