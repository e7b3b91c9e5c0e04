"""mulligan audit: the log of changes that operators made."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli.lists import print_list, read_list, resource_options
from mulligan.cli.options import load_settings
from mulligan.core.failure import SettingsError
from mulligan.report.resources import AUDIT_SPEC
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.urls import is_remote


@click.command(
    epilog="Examples:\n\n  mulligan audit --since 7d\n\n  mulligan audit --tenant acme --action token. --json\n\n"
    "  mulligan audit --by ann --csv"
)
@click.option("--tenant", metavar="NAME", help="Tenant to read. Default: your own.")
@resource_options(AUDIT_SPEC)
def audit(tenant: str | None, limit: int, as_csv: bool, store: str | None, as_json: bool, **filters: Any) -> None:
    """Show the audit log: who changed what, and when.

    It lists decisions about fixes, patterns and lessons, and changes by token, tenant, forget and prune. Entries are
    never removed.
    """
    settings = load_settings(store)
    if tenant is not None and is_remote(settings.store_url):
        raise SettingsError(f"The server at {settings.store_url} sets the tenant from your token. Remove --tenant.")
    _, entries = read_list(AUDIT_SPEC, settings, limit, filters, tenant or DEFAULT_TENANT)
    if not print_list(AUDIT_SPEC, entries, limit, as_json, as_csv):
        has_filters = any(value is not None for value in filters.values())
        click.echo("No audit entry matches." if has_filters else "The audit log is empty.")
