"""Fixes page: what turned failures into successes, with evidence, state and use."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from mulligan.failure import SettingsError
from mulligan.records import Fix, FixState, pattern_id
from mulligan.remember.store import FixQuery, Store
from mulligan.report.fixes import describe_use, is_applied, why_unapplied
from mulligan.report.link_evidence import explain_trials
from mulligan.serve.dashboard import lessons, patterns
from mulligan.serve.dashboard.asked import Asked

SHOWN = 100
EVERY = 100_000
STATES: dict[str, str] = {
    "proposed": "seen to work; not proven yet",
    "promoted": "proven",
    "approved": "approved by a person",
    "demoted": "failed twice in a row",
    "expired": "not used for 30 days",
    "paused": "used so often, or failing so often, that a person should look",
    "revoked": "taken back by a person",
}


def describe_state(fix: Fix) -> str:
    """Describe the state of a fix: whether it is applied automatically, and if not, the reason."""
    if fix.state not in ("promoted", "approved"):
        return STATES[fix.state]
    why = why_unapplied(fix)
    return f"{STATES[fix.state]}: " + (f"not applied: {why}" if why else "applied automatically")


def fixes(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    state = asked.rest.get("state")
    if state is not None and state not in get_args(FixState):
        raise SettingsError(f"state takes {', '.join(get_args(FixState))}, got {state!r}.")
    found = store.fixes(
        tenant,
        FixQuery(tool=asked.filters.get("tool"), state=state, now=asked.now, limit=SHOWN),  # type: ignore[arg-type]
    )
    return {
        "rows": [
            patterns.fix(each) | {"pattern": pattern_id(each.tool, each.fingerprint), "standing": describe_state(each)}
            for each in found
        ],
        "applied": sum(map(is_applied, found)),
        "told": sum(fix.tellable for fix in found),
        "state": state,
        "states": STATES,
        "is_cut": len(found) == SHOWN,
    }


def fix(store: Store, tenant: str, asked: Asked, id: str) -> dict[str, Any] | None:
    every = store.fixes(tenant, FixQuery(now=asked.now, limit=EVERY))
    found = [each for each in every if each.id == id] or [each for each in every if each.id.startswith(id)]
    if len(found) != 1:
        return None
    (one,) = found
    evidence = store.evidence(tenant, one.id)
    return patterns.fix(one) | {
        "pattern": store.pattern(tenant, pattern_id(one.tool, one.fingerprint)),
        "evidence": evidence,
        "reasons": explain_trials(store, tenant, one, evidence),
        "lesson": lessons.of_fix(store, tenant, one, asked.now),
        "standing": describe_state(one),
        "uses": list(describe_use(one)),
        "unapplied": why_unapplied(msgspec.structs.replace(one, state="approved")),
    }


def decide(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> bool:
    """Approve or revoke a fix from its form."""
    do = form.get("do", "")
    if do not in ("approve", "revoke"):
        raise SettingsError(f"do takes approve or revoke, got {do[:40]!r}.")
    return store.decide(tenant, id, approved=do == "approve", at=now)
