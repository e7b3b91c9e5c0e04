"""Fixes page: what turned failures into successes, with evidence, state and use."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, FixState, pattern_id
from mulligan.dashboard import lesson_pages, pattern_pages
from mulligan.dashboard.page_query import PageQuery
from mulligan.report.fix_report import describe_use, is_automatic, not_automatic_reason
from mulligan.report.link_evidence import explain_trials
from mulligan.store.base import FixQuery, Store

MAX_SHOWN_FIXES = 100
MAX_SEARCHED_FIXES = 100_000
STATE_DESCRIPTIONS: dict[str, str] = {
    "proposed": "succeeded in some runs; not promoted yet",
    "promoted": "promoted after enough successful runs",
    "approved": "approved by a person",
    "demoted": "failed twice in a row",
    "expired": "not used for 30 days",
    "paused": "used or failing unusually often; a person should check it",
    "revoked": "revoked by a person",
}


def describe_state(fix: Fix) -> str:
    """Describe the state of a fix: whether it is applied automatically, and if not, the reason."""
    if fix.state not in ("promoted", "approved"):
        return STATE_DESCRIPTIONS[fix.state]
    reason = not_automatic_reason(fix)
    return f"{STATE_DESCRIPTIONS[fix.state]}: " + (
        f"not applied automatically: {reason}" if reason else "applied automatically"
    )


def fixes(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    state = page_query.other_parameters.get("state")
    if state is not None and state not in get_args(FixState):
        raise SettingsError(f"Invalid state {state[:40]!r}. Use one of: {', '.join(get_args(FixState))}.")
    stored_fixes = store.fixes(
        tenant,
        FixQuery(tool=page_query.filters.get("tool"), state=state, now=page_query.now, limit=MAX_SHOWN_FIXES),  # type: ignore[arg-type]
    )
    return {
        "rows": [
            pattern_pages.build_fix_row(stored_fix)
            | {"pattern": pattern_id(stored_fix.tool, stored_fix.fingerprint), "standing": describe_state(stored_fix)}
            for stored_fix in stored_fixes
        ],
        "applied": sum(map(is_automatic, stored_fixes)),
        "shown": sum(fix.showable for fix in stored_fixes),
        "state": state,
        "states": STATE_DESCRIPTIONS,
        "is_cut": len(stored_fixes) == MAX_SHOWN_FIXES,
    }


def fix(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    all_fixes = store.fixes(tenant, FixQuery(now=page_query.now, limit=MAX_SEARCHED_FIXES))
    matches = [candidate for candidate in all_fixes if candidate.id == id] or [
        candidate for candidate in all_fixes if candidate.id.startswith(id)
    ]
    if len(matches) != 1:
        return None
    (matching_fix,) = matches
    evidence = store.evidence(tenant, matching_fix.id)
    return pattern_pages.build_fix_row(matching_fix) | {
        "pattern": store.pattern(tenant, pattern_id(matching_fix.tool, matching_fix.fingerprint)),
        "evidence": evidence,
        "reasons": explain_trials(store, tenant, matching_fix, evidence),
        "lesson": lesson_pages.lesson_row_for_fix(store, tenant, matching_fix, page_query.now),
        "standing": describe_state(matching_fix),
        "uses": list(describe_use(matching_fix)),
        "unapplied": not_automatic_reason(msgspec.structs.replace(matching_fix, state="approved")),
    }


def decide(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> bool:
    """Approve or revoke a fix from its form."""
    do = form.get("action", "")
    if do not in ("approve", "revoke"):
        raise SettingsError(f"Invalid decision {do[:40]!r}. Use approve or revoke.")
    return store.decide(tenant, id, approved=do == "approve", at=now)
