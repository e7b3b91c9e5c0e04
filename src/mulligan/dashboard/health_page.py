"""Health page: state and size of the store, dropped records, hook errors and retention."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from mulligan import __version__
from mulligan.dashboard import formatting
from mulligan.dashboard.page_query import PageQuery
from mulligan.record.dropped_records import HookErrors, count_dropped, read_hook_errors
from mulligan.settings import hook_folder
from mulligan.store.base import DAY, DEFAULT_TENANT, Retention, RunQuery, Store

CONTEXT_SAMPLE_RUNS = 200
"""Newest runs checked for a task description."""
MIN_CONTEXT_SHARE = 0.8
"""Target share of runs with a task description."""


def health(store: Store, tenant: str, page_query: PageQuery, retention: Retention) -> dict[str, Any]:
    store_health = store.health(tenant)
    recent = store.runs(tenant, RunQuery(limit=CONTEXT_SAMPLE_RUNS))
    runs_with_context = sum(history.run.context is not None for history in recent)
    dropped_count = count_dropped(store, tenant)
    path = Path(store_health.where)
    is_default_tenant = tenant == DEFAULT_TENANT
    files = [
        file
        for file in (path, path.with_name(f"{path.name}-wal"))
        if store_health.where and is_default_tenant and file.is_file()
    ]
    return {
        "health": store_health,
        # Location and total size cover all tenants, so only the operator sees them.
        "is_own": is_default_tenant,
        "size": formatting.size(sum(file.stat().st_size for file in files)) if files else formatting.NONE,
        "dropped": dropped_count,
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
