"""Routes about alerts: the rules and targets of a tenant, what was sent, and a test message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.contract.store import Store
from mulligan.core.failure import SettingsError
from mulligan.report.alert_targets import check_public_target
from mulligan.report.alerts import MAX_TARGETS, AlertSettings
from mulligan.server.access import Caller
from mulligan.server.app import Server
from mulligan.server.bodies import invalid, json_response, read_json
from mulligan.server.payloads import Payload
from mulligan.server.tenant_alerts import TenantAlerts, alert_facts, load_history, parse_stored_target, settings_facts

MAX_TARGET_CHARS = 2000
TargetText = Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_CHARS)]
SelectableType = Literal[
    "person_needed", "new_pattern", "high_failure_rate", "circuit_open", "regressed_pattern", "budget_exhausted",
    "server_unhealthy",
]  # fmt: skip


class AlertRulesPayload(Payload, frozen=True):
    """Changes of the alerts of a tenant. Fields that are not sent stay as they are."""

    add_targets: Annotated[
        Annotated[list[TargetText], Meta(max_length=MAX_TARGETS)] | None,
        Meta(description="slack:URL, teams:URL, pagerduty:ROUTING_KEY or mail:ADDRESS."),
    ] = None
    remove_targets: Annotated[
        Annotated[list[TargetText], Meta(max_length=MAX_TARGETS)] | None,
        Meta(description="Ids of targets, from the response of GET /v1/alerts."),
    ] = None
    types: Annotated[list[SelectableType] | None, Meta(description="Types that are sent. Empty means all.")] = None
    failure_rate: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Ratio of unrecovered calls in ten minutes from which on an alert is sent."),
    ] = None
    min_calls: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None,
        Meta(description="Calls in ten minutes below which the ratio is not computed."),
    ] = None
    interval_minutes: Annotated[
        Annotated[float, Meta(ge=0, le=1440)] | None,
        Meta(description="Minimum time between two alerts about the same."),
    ] = None
    quiet_hours: Annotated[
        Annotated[str, Meta(max_length=80)] | None,
        Meta(description="Such as 22:00-07:00 Europe/Berlin: alerts wait until they end. Empty: none."),
    ] = None
    resolved: Annotated[bool | None, Meta(description="Whether a message says that an alert is over.")] = None


class AlertTestPayload(Payload, frozen=True):
    """A test message to every target. It has no fields."""


def change_rules(
    alerts: TenantAlerts,
    caller: Caller,
    changes: Mapping[str, Any],
    added_targets: Sequence[str],
    removed_targets: Iterable[str],
    *,
    is_operator: bool = False,
) -> AlertSettings:
    """Change the alerts of the caller's tenant. Raise `SettingsError` if that is not possible or not permitted."""
    for target in added_targets:
        parsed_target = parse_stored_target(target)
        if not is_operator or parsed_target.type == "command":
            check_public_target(parsed_target)
    return alerts.change_settings(caller.tenant, changes, added_targets, removed_targets)


def rules_facts(alerts: TenantAlerts, tenant: str) -> dict[str, Any]:
    """Return the rules of a tenant and the targets in use, without secrets."""
    targets = [{"id": target.id, "label": target.label} for target in alerts.find_targets(tenant)]
    return settings_facts(alerts.settings_for(tenant)) | {"targets": targets}


def answer_alerts(store: Store, tenant: str, values: dict[str, Any], request: Request) -> Response:
    entries = load_history(store, tenant).alerts[::-1][: values["limit"]]
    rules = rules_facts(request.state.alerts, tenant)
    return json_response({"alerts": list(map(alert_facts, entries)), "rules": rules, "now": values["now"]})


def build_routes(server: Server) -> Iterable[BaseRoute]:
    async def change(request: Request) -> Response:
        payload, caller = await read_json(request, AlertRulesPayload), request.state.caller
        changes = {name: value for name, value in msgspec.structs.asdict(payload).items() if value is not None}
        added, removed = changes.pop("add_targets", ()), changes.pop("remove_targets", ())
        if "types" in changes:
            changes["types"] = tuple(changes["types"])

        def apply() -> dict[str, Any]:
            try:
                change_rules(server.alerts, caller, changes, added, removed)
            except SettingsError as error:
                raise invalid(str(error)) from None
            return {"rules": rules_facts(server.alerts, caller.tenant)}

        return json_response(await server.run_in_reader(apply))

    async def test(request: Request) -> Response:
        await read_json(request, AlertTestPayload)
        caller = request.state.caller

        def queue() -> dict[str, Any]:
            try:
                return alert_facts(server.alerts.queue_test(caller.tenant, caller.name))
            except SettingsError as error:
                raise invalid(str(error)) from None

        return json_response(await server.run_in_reader(queue))

    return [
        server.route("/v1/alerts", change, "admin", "POST"),
        server.route("/v1/alerts/test", test, "admin", "POST"),
    ]
