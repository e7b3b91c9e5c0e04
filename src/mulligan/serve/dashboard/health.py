"""Health page: state and size of the store, dropped records, hook errors and retention."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from mulligan import __version__
from mulligan.remember.recording.losses import Faults, dropped, hook_faults
from mulligan.remember.store import DAY, LOCAL, Retention, RunQuery, Store
from mulligan.serve.dashboard import shown
from mulligan.serve.dashboard.asked import Asked
from mulligan.settings import hook_folder

RECENT = 200
"""Newest runs checked for a task description."""
GOAL = 0.8
"""Target share of runs with a task description."""


def health(store: Store, tenant: str, asked: Asked, retention: Retention) -> dict[str, Any]:
    found = store.health(tenant)
    recent = store.runs(tenant, RunQuery(limit=RECENT))
    said = sum(history.run.context is not None for history in recent)
    lost = dropped(store, tenant)
    path = Path(found.where)
    is_own = tenant == LOCAL
    files = [each for each in (path, path.with_name(f"{path.name}-wal")) if found.where and is_own and each.is_file()]
    return {
        "health": found,
        # Location and total size cover all tenants, so only the operator sees them.
        "is_own": is_own,
        "size": shown.size(sum(each.stat().st_size for each in files)) if files else shown.NONE,
        "dropped": lost,
        # Hook errors belong to this host's owner, not to other tenants.
        "hooks": hook_faults(hook_folder()) if is_own else Faults(),
        "context": shown.percent(said, len(recent)) if recent else shown.NONE,
        "recent": len(recent),
        "is_told": not recent or said >= GOAL * len(recent),
        "retention": [
            ("Runs in which something failed", _kept(retention.failures)),
            ("Runs in which nothing did", _kept(retention.successes)),
            ("Figures by the hour", _kept(retention.hours)),
            ("Figures by the day", "for ever"),
            ("Size of the file", shown.size(retention.size) if retention.size else "unlimited"),
        ],
        "version": __version__,
        "sqlite": sqlite3.sqlite_version,
    }


def _kept(millis: int | None) -> str:
    return "for ever" if millis is None else f"{millis // DAY} days"
