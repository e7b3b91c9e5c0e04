"""mulligan audit: the log of changes that operators made."""

from __future__ import annotations

import click

from mulligan.failure import SettingsError
from mulligan.remember.store import LOCAL, AuditQuery
from mulligan.remember.urls import is_remote
from mulligan.report import audit as told
from mulligan.report.tables import as_csv
from mulligan.serve.cli.options import (
    as_json,
    csv_option,
    limit_option,
    moment,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    told_more,
    width,
)


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
    settings = settings_with(store)
    if tenant is not None and is_remote(settings.store_url):
        raise SettingsError(f"at {settings.store_url} you are the tenant of your token. Leave out --tenant.")
    kept = opened(settings)
    query = AuditQuery(by=by, do=do, since=moment(past), limit=limit)
    found = kept.audit(tenant or LOCAL, query) if kept is not None else []
    if as_json:
        print_json([told.facts(each) for each in found])
    elif as_comma:
        print_lines(as_csv((told.facts(each) for each in found), told.CSV))
    elif found:
        print_lines(told.listed(found, width()))
        told_more(len(found), limit)
    else:
        click.echo("Nobody has changed anything." if not (by or do or past) else "No change matches.")
