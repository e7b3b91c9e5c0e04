"""Overview page: run outcomes, most frequent failures and recovery."""

from __future__ import annotations

from typing import Any

from mulligan.records import Fix, Pattern
from mulligan.remember.store import DAY, FixQuery, RunQuery, Store
from mulligan.serve.dashboard import charts, figures, shown
from mulligan.serve.dashboard.asked import Asked

PATTERNS = 10
TOOLS = 8
DAYS = 7


def overview(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    series = store.stats(tenant, asked.stats(by="time"))
    cell = series.total
    if not cell.calls and not cell.kinds and not cell.runs:
        return {"empty": emptiness(store, tenant, asked)}
    before = store.stats(tenant, asked.before()).total
    tools = store.stats(tenant, asked.stats(by="tool"))
    patterns = store.patterns(tenant, asked.patterns(order="given_up", limit=PATTERNS))
    return {
        "empty": None,
        "cards": figures.cards(asked, cell, before),
        "runs": sum(cell.runs.values()),
        "running": cell.running,
        "cell": cell,
        "has_runs": figures.has_runs(asked),
        "chart": figures.outcomes(asked, series),
        "kinds": figures.kinds(cell),
        "failures": sum(known.failures for known in cell.kinds.values()),
        "latency": figures.latency(asked, series),
        "means": figures.means(cell),
        "costs": figures.costs(cell),
        "tools": figures.rows(tools.parts.items(), TOOLS),
        "all_tools": len(tools.parts),
        "patterns": [row(store, tenant, asked, pattern) for pattern in patterns],
        "grain": "hour" if series.grain == "hour" else "day",
    }


def row(store: Store, tenant: str, asked: Asked, pattern: Pattern) -> dict[str, Any]:
    """Build the row of a pattern in a list, with its recent trend and best fix."""
    known = store.fixes(tenant, FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=asked.now, limit=3))
    return {
        "pattern": pattern,
        "spark": charts.spark(days(asked, pattern), f"Failures on each of the last {DAYS} days"),
        "overcome": shown.percent(pattern.overcome, pattern.count),
        "fix": best(known),
    }


def days(asked: Asked, pattern: Pattern, number: int = DAYS) -> list[int]:
    """Return the occurrences of a pattern on each of the last days, including today."""
    today = asked.now // DAY * DAY
    return [pattern.days.get(today - (number - 1 - place) * DAY, 0) for place in range(number)]


def best(known: list[Fix]) -> Fix | None:
    """Choose the fix to show: applied automatically first, then most successes."""
    order = {"approved": 0, "promoted": 1, "proposed": 2, "paused": 3, "demoted": 4, "expired": 5, "revoked": 6}
    return min(known, key=lambda fix: (order[fix.state], -fix.worked, fix.id), default=None)


def emptiness(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    """Describe why a page is empty: no runs at all, or none for this period and these filters."""
    newest = store.runs(tenant, RunQuery(limit=1))
    if not newest:
        return {"is_new": True}
    at = newest[0].run.started
    return {
        "is_new": False,
        "newest": at,
        "there": asked.with_dates(at - 6 * DAY, at),
        "is_narrow": bool(asked.filters),
    }
