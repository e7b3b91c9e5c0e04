"""Runs page: a filtered, paginated list, and the detail page of one run."""

from __future__ import annotations

from typing import Any

from mulligan import calls
from mulligan.failure import SettingsError
from mulligan.records import History
from mulligan.remember.store import Store
from mulligan.report import terminal
from mulligan.serve.dashboard import timeline
from mulligan.serve.dashboard.asked import Asked
from mulligan.serve.dashboard.overview import emptiness

SHOWN = 25


def runs(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    before = _before(asked.rest.get("before", ""))
    found = store.runs(tenant, asked.runs(limit=SHOWN + 1, before=before))
    more = None
    if len(found) > SHOWN:
        found = found[:SHOWN]
        more = asked.link(before=f"{found[-1].run.started}:{found[-1].run.id}")
    return {
        "empty": emptiness(store, tenant, asked) if not found and before is None else None,
        "rows": [row(history) for history in found],
        "more": more,
        "first": asked.link(before=None) if before is not None else None,
    }


def row(history: History) -> dict[str, Any]:
    """Build the row of a run in a list."""
    fact = terminal.facts(history)
    failed = [call for call in calls.group_attempts(history.steps) if call.has_failed and call.first.type != "run"]
    linked = {link.failed for link in history.links}
    return fact | {
        "failed": len(failed),
        "given_up": sum(not call.has_succeeded and call.id not in linked for call in failed),
        "lasted": (history.run.ended - history.run.started) / 1000 if history.run.ended else None,
        "context": history.run.context,
    }


def run(store: Store, tenant: str, asked: Asked, id: str) -> dict[str, Any] | None:
    """Return the page of one run, by its id or an unambiguous prefix of it."""
    history = store.run(tenant, id)
    if history is None:
        found = store.find(tenant, id, limit=2)
        history = store.run(tenant, found[0].id) if len(found) == 1 else None
    if history is None:
        return None
    page = asked.rest.get("page", "1")
    if not page.isascii() or not page.isdigit() or len(page) > 9 or int(page) < 1:
        raise SettingsError(f"page takes a number from 1 on, got {page[:20]!r}.")
    return timeline.told(history, int(page) - 1)


def _before(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    started, _, id = text.partition(":")
    if not started.isascii() or not started.isdigit() or len(started) > 15:
        raise SettingsError("before is what the link to older runs holds; go there from /runs.")
    return int(started), id
