"""mulligan audit: the log of changes that operators made."""

from __future__ import annotations

import click

from mulligan.cli.options import (
    as_json,
    csv_option,
    limit_option,
    load_settings,
    open_existing_store,
    parse_time_option,
    print_json,
    print_lines,
    store_option,
    terminal_width,
    warn_if_truncated,
)
from mulligan.core.failure import SettingsError
from mulligan.report import audit_report
from mulligan.report.tables import render_csv
from mulligan.store.base import DEFAULT_TENANT, AuditQuery
from mulligan.store.urls import is_remote


@click.command(
    epilog="Examples:\n\n  mulligan audit --since 7d\n\n  mulligan audit --tenant acme --action token. --json\n\n"
    "  mulligan audit --by ann --csv"
)
@click.option("--tenant", metavar="NAME", help="Tenant to read. Default: your own.")
@click.option("--by", metavar="WHO", help="Only changes by this person or token.")
@click.option("--action", metavar="ACTION", help="Only this action, such as fix.approve, or a prefix, such as `fix.`")
@click.option("--since", "past", metavar="7d", help="Only changes since this time: 24h, 7d, a date.")
@limit_option
@csv_option
@store_option
@as_json
def audit(
    tenant: str | None,
    by: str | None,
    action: str | None,
    past: str | None,
    limit: int,
    as_comma: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Show the audit log: who changed what, and when.

    It lists decisions about fixes, patterns and lessons, and changes by token, tenant, forget and prune. Entries are
    never removed.
    """
    settings = load_settings(store)
    if tenant is not None and is_remote(settings.store_url):
        raise SettingsError(f"The server at {settings.store_url} sets the tenant from your token. Remove --tenant.")
    existing_store = open_existing_store(settings)
    query = AuditQuery(by=by, action=action, since=parse_time_option(past), limit=limit)
    entries = existing_store.audit(tenant or DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([audit_report.to_facts(entry) for entry in entries])
    elif as_comma:
        print_lines(render_csv((audit_report.to_facts(entry) for entry in entries), audit_report.CSV_COLUMNS))
    elif entries:
        print_lines(audit_report.render_list(entries, terminal_width()))
        warn_if_truncated(len(entries), limit)
    else:
        click.echo("The audit log is empty." if not (by or action or past) else "No audit entry matches.")
