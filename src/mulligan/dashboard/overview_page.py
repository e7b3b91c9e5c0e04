"""Overview page: run outcomes, most frequent failures and recovery."""

from __future__ import annotations

from typing import Any

from mulligan.core.records import Fix, Pattern
from mulligan.dashboard import charts, formatting, metric_cards
from mulligan.dashboard.page_query import PageQuery
from mulligan.store.base import DAY, FixQuery, RunQuery, Store

MAX_SHOWN_PATTERNS = 10
MAX_SHOWN_TOOLS = 8
TREND_DAYS = 7


def overview(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    series = store.stats(tenant, page_query.stats_query(by="time"))
    cell = series.total
    if not cell.calls and not cell.kinds and not cell.runs:
        return {"empty": empty_state(store, tenant, page_query)}
    before = store.stats(tenant, page_query.previous_stats_query()).total
    tools = store.stats(tenant, page_query.stats_query(by="tool"))
    patterns = store.patterns(tenant, page_query.pattern_query(order="unrecovered", limit=MAX_SHOWN_PATTERNS))
    return {
        "empty": None,
        "cards": metric_cards.cards(page_query, cell, before),
        "runs": sum(cell.runs.values()),
        "running": cell.running,
        "cell": cell,
        "has_runs": metric_cards.has_runs(page_query),
        "chart": metric_cards.outcomes(page_query, series),
        "kinds": metric_cards.kinds(cell),
        "failures": sum(counters.failures for counters in cell.kinds.values()),
        "latency": metric_cards.latency(page_query, series),
        "means": metric_cards.recovery_methods(cell),
        "costs": metric_cards.costs(cell),
        "tools": metric_cards.metric_rows(tools.parts.items(), MAX_SHOWN_TOOLS),
        "all_tools": len(tools.parts),
        "patterns": [build_pattern_row(store, tenant, page_query, pattern) for pattern in patterns],
        "grain": "hour" if series.grain == "hour" else "day",
    }


def build_pattern_row(store: Store, tenant: str, page_query: PageQuery, pattern: Pattern) -> dict[str, Any]:
    """Build the row of a pattern in a list, with its recent trend and best fix."""
    fixes = store.fixes(
        tenant, FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=page_query.now, limit=3)
    )
    return {
        "pattern": pattern,
        "spark": charts.render_sparkline(
            daily_occurrences(page_query, pattern), f"Occurrences by day, last {TREND_DAYS} days"
        ),
        "recovered": formatting.percent(pattern.recovered, pattern.occurrences),
        "fix": choose_fix(fixes),
    }


def daily_occurrences(page_query: PageQuery, pattern: Pattern, day_count: int = TREND_DAYS) -> list[int]:
    """Return the occurrences of a pattern on each of the last days, including today."""
    today = page_query.now // DAY * DAY
    return [pattern.days.get(today - (day_count - 1 - offset) * DAY, 0) for offset in range(day_count)]


def choose_fix(fixes: list[Fix]) -> Fix | None:
    """Choose the fix to show: applied automatically first, then most successes."""
    order = {"approved": 0, "promoted": 1, "proposed": 2, "paused": 3, "demoted": 4, "expired": 5, "revoked": 6}
    return min(fixes, key=lambda fix: (order[fix.state], -fix.successes, fix.id), default=None)


def empty_state(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Describe why a page is empty: no runs at all, or none for this period and these filters."""
    newest = store.runs(tenant, RunQuery(limit=1))
    if not newest:
        return {"is_new": True}
    newest_start = newest[0].run.started_at
    return {
        "is_new": False,
        "newest": newest_start,
        "newest_week": page_query.link_with_dates(newest_start - 6 * DAY, newest_start),
        "is_narrow": bool(page_query.filters),
    }
