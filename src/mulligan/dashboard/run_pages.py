"""Runs page: a filtered, paginated list, and the detail page of one run."""

from __future__ import annotations

from typing import Any

from mulligan.core import calls
from mulligan.core.failure import SettingsError
from mulligan.core.records import History
from mulligan.dashboard import timeline
from mulligan.dashboard.overview_page import empty_state
from mulligan.dashboard.page_query import PageQuery
from mulligan.report import run_text
from mulligan.store.base import Store

RUNS_PER_PAGE = 25


def runs(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    before = _parse_cursor(page_query.other_parameters.get("before", ""))
    histories = store.runs(tenant, page_query.run_query(limit=RUNS_PER_PAGE + 1, before=before))
    more = None
    if len(histories) > RUNS_PER_PAGE:
        histories = histories[:RUNS_PER_PAGE]
        more = page_query.link(before=f"{histories[-1].run.started_at}:{histories[-1].run.id}")
    return {
        "empty": empty_state(store, tenant, page_query) if not histories and before is None else None,
        "rows": [build_run_row(history) for history in histories],
        "more": more,
        "first": page_query.link(before=None) if before is not None else None,
    }


def build_run_row(history: History) -> dict[str, Any]:
    """Build the row of a run in a list."""
    summary = run_text.to_facts(history)
    failed = [call for call in calls.group_attempts(history.steps) if call.has_failed and call.first.type != "run"]
    linked = {link.failed_call for link in history.links}
    return summary | {
        "failed": len(failed),
        "unrecovered": sum(not call.has_succeeded and call.id not in linked for call in failed),
        "lasted": (history.run.ended_at - history.run.started_at) / 1000 if history.run.ended_at else None,
        "context": history.run.context,
    }


def run(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    """Return the page of one run, by its id or an unambiguous prefix of it."""
    history = store.run(tenant, id)
    if history is None:
        matches = store.find(tenant, id, limit=2)
        history = store.run(tenant, matches[0].id) if len(matches) == 1 else None
    if history is None:
        return None
    page = page_query.other_parameters.get("page", "1")
    if not page.isascii() or not page.isdigit() or len(page) > 9 or int(page) < 1:
        raise SettingsError(f"Invalid page {page[:20]!r}. Use a number from 1.")
    return timeline.build_run_page(history, int(page) - 1)


def _parse_cursor(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    started, _, id = text.partition(":")
    if not started.isascii() or not started.isdigit() or len(started) > 15:
        raise SettingsError(f"Invalid before {text[:40]!r}. Use the link to older runs on /runs.")
    return int(started), id
