"""mulligan alerts: the targets and rules of alerts, a test message, and what was sent."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.cli.options import CommandContext, command
from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.failure import SettingsError
from mulligan.report.alert_targets import SELECTABLE_TYPES, TARGET_FORMS
from mulligan.report.alerts import parse_alert_settings
from mulligan.report.tables import format_age, format_count, render_columns, to_line, trusted_line
from mulligan.server.tenant_alerts import TenantAlerts, alert_facts, load_history, settings_facts
from mulligan.server.tenants import Tenants
from mulligan.store.urls import is_remote

tenant_option = click.option("--tenant", metavar="NAME", default=DEFAULT_TENANT, show_default=True, help="Tenant.")


@click.group(
    cls=CommandGroup,
    epilog="Examples:\n\n  mulligan alerts set --target slack:https://hooks.slack.com/services/...\n\n"
    "  mulligan alerts test\n\n  mulligan alerts list",
)
def alerts() -> None:
    """Show and change where alerts of a server go, test them, and list what was sent.

    These commands open the store directly, like `mulligan tenant`.
    """


def _open(context: CommandContext, tenant: str) -> tuple[Store, TenantAlerts]:
    settings = context.settings
    if is_remote(settings.store_url):
        raise SettingsError(
            f"Alerts cannot be managed through the server {settings.store_url}. Name its store: --store PATH"
        )
    store = context.require_store()
    tenants = Tenants(store)
    tenants.refresh()
    if tenants.find(tenant) is None:
        raise SettingsError("No tenant of this name. List all: mulligan tenant list")
    rules = parse_alert_settings(settings.alerts)
    tenant_alerts = TenantAlerts(store, tenants, rules, settings.alert_command, settings.alert_webhook)
    tenant_alerts.link = settings.base_url
    return store, tenant_alerts


@command("mulligan alerts set --target slack:https://hooks.slack.com/services/...",
         "mulligan alerts set --tenant acme --type new_pattern --quiet-hours '22:00-07:00 Europe/Berlin'",
         parent=alerts, name="set")  # fmt: skip
@tenant_option
@click.option(
    "--target", "targets", multiple=True, metavar="TARGET", help=f"{TARGET_FORMS}. Replaces those set before."
)
@click.option("--no-targets", is_flag=True, help="Remove the targets.")
@click.option("--type", "types", multiple=True, type=click.Choice((*SELECTABLE_TYPES, "all")), help="Types to send.")
@click.option("--failure-rate", type=float, help="Ratio of unrecovered calls in ten minutes, from 0 to 1.")
@click.option("--min-calls", type=int, help="Calls in ten minutes below which the ratio is ignored.")
@click.option(
    "--interval", "interval_minutes", type=float, metavar="MINUTES", help="Minimum time between equal alerts."
)
@click.option("--quiet-hours", metavar="HOURS", help="Such as `22:00-07:00 Europe/Berlin`; `none` for no quiet hours.")
@click.option("--resolved/--no-resolved", default=None, help="Whether a message says that an alert is over.")
def _set_alerts(context: CommandContext, tenant: str, no_targets: bool, **options: Any) -> None:
    """Change the targets and rules of a tenant's alerts, or show them. A server follows within a second."""
    _, tenant_alerts = _open(context, tenant)
    changes = {name: value for name, value in options.items() if value not in (None, ())}
    if no_targets:
        changes["targets"] = ()
    if "types" in changes and "all" in changes["types"]:
        changes["types"] = ()
    if changes.get("quiet_hours") == "none":
        changes["quiet_hours"] = ""
    settings = tenant_alerts.settings_for(tenant)
    if changes:
        settings = tenant_alerts.change_settings(tenant, changes)
    labels = [target.label for target in tenant_alerts.find_targets(tenant)]
    facts = {**settings_facts(settings), "targets": labels}
    rows = {
        "targets": trusted_line(", ".join(labels)) or "none",
        "types": ", ".join(settings.types) or "all",
        "failure rate": f"{settings.failure_rate:g} of at least {format_count(settings.min_calls, 'call')} in 10 min",
        "interval": f"{settings.interval_minutes:g} min",
        "quiet hours": settings.quiet_hours or "none",
        "resolved messages": "yes" if settings.resolved else "no",
    }
    table = render_columns(list(rows.items()), width=context.width)
    context.print(facts, [*table, "", "Send a test message: mulligan alerts test"])


@command("mulligan alerts test", "mulligan alerts test --tenant acme --json", parent=alerts)
@tenant_option
def test(context: CommandContext, tenant: str) -> None:
    """Send a test message to every target now. Exits with 1 if a target did not accept it."""
    _, tenant_alerts = _open(context, tenant)
    results = tenant_alerts.send_test(tenant)
    if not results:
        raise SettingsError(
            "No target to test. Add one: mulligan alerts set --target slack:https://hooks.slack.com/..."
        )
    rows = [(trusted_line(result.label), to_line(result.error, 200) or "accepted") for result in results]
    facts = [{"target": result.label, "accepted": not result.failed, "error": result.error} for result in results]
    context.print({"tenant": tenant, "targets": facts}, render_columns(rows, width=context.width))
    if any(result.failed for result in results):
        raise SystemExit(1)


@command("mulligan alerts list", "mulligan alerts list --tenant acme --json", parent=alerts, name="list")
@tenant_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200), help="Maximum number of alerts.")
def _list_alerts(context: CommandContext, tenant: str, limit: int) -> None:
    """List the latest alerts, the newest first, with their deliveries."""
    store, _ = _open(context, tenant)
    entries = load_history(store, tenant).alerts[::-1][:limit]
    rows = [("when", "state", "alert", "deliveries")]
    for entry in entries:
        deliveries = "; ".join(
            f"{trusted_line(delivery.label)}: {delivery.error or ('sent' if delivery.sent_at else 'pending')}"
            for delivery in entry.deliveries
        )
        text = f"resolved: {entry.alert.text}" if entry.alert.resolved else entry.alert.text
        age = format_age(entry.alert.at, context.now)
        rows.append((age, entry.state, to_line(text, 100), trusted_line(deliveries)))
    empty = "No alerts. Send a test message: mulligan alerts test"
    context.print(
        [alert_facts(entry) for entry in entries], render_columns(rows, width=context.width) if entries else empty
    )
