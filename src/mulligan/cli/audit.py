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
from mulligan.report import audit_report as told
from mulligan.report.tables import render_csv
from mulligan.store.base import DEFAULT_TENANT, AuditQuery
from mulligan.store.urls import is_remote


@click.command(
    epilog="Examples:\n\n  mulligan audit --since 7d\n\n  mulligan audit --tenant acme --do token. --json\n\n"
    "  mulligan audit --by ann --csv"
)
@click.option("--tenant", metavar="NAME", help="Of this tenant; without it of your own.")
@click.option("--by", metavar="WHO", help="Only what this one changed.")
@click.option("--do", metavar="WHAT", help="Only this, such as fix.approve, or all that begin so, such as `fix.`")
@click.option("--since", "past", metavar="7d", help="Within this time: 24h, 7d, a date.")
@limit_option
@csv_option
@store_option
@as_json
def audit(
    tenant: str | None,
    by: str | None,
    do: str | None,
    past: str | None,
    limit: int,
    as_comma: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """What people changed, who and when: verdicts on fixes, patterns and lessons, tokens, tenants, forget, prune.

    It is only ever added to.
    """
    settings = load_settings(store)
    if tenant is not None and is_remote(settings.store_url):
        raise SettingsError(f"at {settings.store_url} you are the tenant of your token. Leave out --tenant.")
    existing_store = open_existing_store(settings)
    query = AuditQuery(by=by, do=do, since=parse_time_option(past), limit=limit)
    entries = existing_store.audit(tenant or DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([told.to_facts(entry) for entry in entries])
    elif as_comma:
        print_lines(render_csv((told.to_facts(entry) for entry in entries), told.CSV_COLUMNS))
    elif entries:
        print_lines(told.render_list(entries, terminal_width()))
        warn_if_truncated(len(entries), limit)
    else:
        click.echo("Nobody has changed anything." if not (by or do or past) else "No change matches.")
