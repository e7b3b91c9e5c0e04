"""The page of alerts: targets and rules of a tenant, a test message, and what was sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mulligan.contract.store import Store
from mulligan.core.failure import SettingsError
from mulligan.dashboard.page_query import PageQuery
from mulligan.report.alert_targets import SELECTABLE_TYPES
from mulligan.report.alerts import MAX_ALERTS_PER_HOUR
from mulligan.server.access import Caller
from mulligan.server.alert_routes import change_rules
from mulligan.server.tenant_alerts import TenantAlerts, load_history

MAX_SHOWN_ALERTS = 100
TYPE_NAMES = {
    "new_pattern": "a failure pattern is new",
    "regressed_pattern": "a resolved pattern occurs again",
    "person_needed": "a failure needs a person",
    "circuit_open": "the target of a tool is down",
    "high_failure_rate": "many calls are unrecovered",
    "budget_exhausted": "a daily quota is exhausted",
    "server_unhealthy": "the server is unhealthy (tenant local only)",
}
"""When an alert of each type is sent, in the order of the form."""
assert set(TYPE_NAMES) == set(SELECTABLE_TYPES)


def alerts(tenant_alerts: TenantAlerts, store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    own_ids = {target.id for target in tenant_alerts.list_own_targets(tenant)}
    entries = load_history(store, tenant).alerts[::-1]
    return {
        "tenant": tenant,
        "targets": [(target, target.id in own_ids) for target in tenant_alerts.find_targets(tenant)],
        "rules": tenant_alerts.settings_for(tenant),
        "types": TYPE_NAMES,
        "max_per_hour": MAX_ALERTS_PER_HOUR,
        "has_base_url": bool(tenant_alerts.link),
        "entries": entries[:MAX_SHOWN_ALERTS],
        "waits": any(entry.alert.type == "test" and entry.state == "pending" for entry in entries[:3]),
    }


def apply_form(
    tenant_alerts: TenantAlerts,
    caller: Caller,
    is_operator: bool,
    store: Store,
    tenant: str,
    now: int,
    _: str,
    form: Mapping[str, str],
) -> bool:
    """Change targets or rules as a form of the page says, or send a test message."""
    if target_id := form.get("remove"):
        change_rules(tenant_alerts, caller, {}, (), (target_id,))
        return True
    match form.get("action"):
        case "test":
            tenant_alerts.queue_test(tenant, caller.name)
        case "add":
            target = form.get("target", "").strip()
            change_rules(tenant_alerts, caller, {}, (target,), (), is_operator=is_operator)
        case "save":
            change_rules(tenant_alerts, caller, _read_rules(form), (), ())
        case _:
            raise SettingsError("Choose what to do: add a target, save the rules, or send a test message.")
    return True


def _read_rules(form: Mapping[str, str]) -> dict[str, Any]:
    types = tuple(name for name in TYPE_NAMES if f"type {name}" in form)
    if not types:
        raise SettingsError("Select at least one type of alert. To send none, remove the targets.")
    return {
        "types": () if len(types) == len(TYPE_NAMES) else types,
        "failure_rate": _read_number(form, "failure_rate") / 100,
        "min_calls": int(_read_number(form, "min_calls")),
        "interval_minutes": _read_number(form, "interval_minutes"),
        "quiet_hours": form.get("quiet_hours", "").strip(),
        "resolved": "resolved" in form,
    }


def _read_number(form: Mapping[str, str], name: str) -> float:
    text = form.get(name, "").strip()
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text, re.ASCII):
        raise SettingsError(f"Invalid number {text[:40]!r}. Use a number such as 15.")
    return float(text)
