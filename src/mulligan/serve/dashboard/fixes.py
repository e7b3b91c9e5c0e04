"""Fixes: what turned failures into successes, on what that rests, and which of it is tried without asking."""

from __future__ import annotations

from typing import Any, get_args

from mulligan.failure import SettingsError
from mulligan.records import Fix, FixState, pattern_id
from mulligan.remember.store import FixQuery, Store
from mulligan.report.fixes import is_tried, untried
from mulligan.serve.dashboard import lessons, patterns
from mulligan.serve.dashboard.asked import Asked

SHOWN = 100
EVERY = 100_000
STATES: dict[str, str] = {
    "proposed": "seen to work; not proven yet, so it is offered and not tried",
    "promoted": "proven",
    "approved": "approved by a person",
    "demoted": "failed twice in a row: offered, not tried",
    "expired": "not used for 30 days",
    "paused": "used so often, or failing so often, that a person should look",
    "revoked": "taken back by a person",
}


def standing(fix: Fix) -> str:
    """What its state means for this one: of what is proven, some can only be told."""
    if fix.state not in ("promoted", "approved"):
        return STATES[fix.state]
    why = untried(fix)
    return f"{STATES[fix.state]}: " + (f"told, not tried: {why}" if why else "tried without asking")


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
            patterns.fix(each) | {"pattern": pattern_id(each.tool, each.fingerprint), "standing": standing(each)}
            for each in found
        ],
        "tried": sum(map(is_tried, found)),
        "state": state,
        "states": STATES,
        "is_cut": len(found) == SHOWN,
    }


def fix(store: Store, tenant: str, asked: Asked, id: str) -> dict[str, Any] | None:
    every = store.fixes(tenant, FixQuery(now=asked.now, limit=EVERY))
    found = [each for each in every if each.id == id] or [each for each in every if each.id.startswith(id)]
    if len(found) != 1:
        return None
    pattern = store.pattern(tenant, pattern_id(found[0].tool, found[0].fingerprint))
    return patterns.fix(found[0]) | {
        "pattern": pattern,
        "evidence": store.evidence(tenant, found[0].id),
        "lesson": lessons.of_fix(store, tenant, found[0], asked.now),
        "standing": standing(found[0]),
        "untried": untried(found[0]),
    }


def decide(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> bool:
    """Approves a fix or takes it back, from the form beside it."""
    do = form.get("do", "")
    if do not in ("approve", "revoke"):
        raise SettingsError(f"do takes approve or revoke, got {do[:40]!r}.")
    return store.decide(tenant, id, approved=do == "approve", at=now)
