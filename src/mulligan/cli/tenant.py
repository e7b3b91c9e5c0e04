"""mulligan tenant: manage tenants, retention, quotas and unredacted arguments."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import click
import msgspec

from mulligan.cli.groups import CommandGroup
from mulligan.cli.lists import add_options
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    require_store,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.report.alerts import Alerts
from mulligan.report.tables import format_age, format_count, render_columns, to_facts, to_line
from mulligan.server import limits
from mulligan.server.entries import REFRESH_INTERVAL_SECONDS
from mulligan.server.tenants import (
    MEASURES,
    RETENTION_FIELDS,
    TENANT_NAME_PATTERN,
    Measure,
    Tenant,
    Tenants,
    unknown_tenant,
    with_quotas,
    with_retention_days,
)
from mulligan.server.tokens import Token, Tokens
from mulligan.store.base import DAY, DEFAULT_TENANT, Store
from mulligan.store.urls import is_remote, open_store

_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
TENANT_OPTIONS = (
    ("note", "TEXT", "Note about the tenant."),
    ("keep-failures", "DAYS", "Days to keep failed runs; `forever` or `default` (90)."),
    ("keep-successes", "DAYS", "Days to keep successful runs; `forever` or `default` (30)."),
    ("keep-hourly", "DAYS", "Days to keep hourly rollups; `forever` or `default` (35)."),
    ("requests", "N", "Requests per day, such as 500k, or `unlimited`."),
    ("records", "N", "Records per day, such as 2m, or `unlimited`."),
    ("bytes", "N", "Bytes per day, such as 5g, or `unlimited`."),
    ("unredacted-arguments", "NAMES", "Arguments stored with their values, separated by commas."),
    ("alert-command", "CMD", "Run this command for each alert of this tenant."),
    ("alert-webhook", "URL", "Post alerts of this tenant to this URL."),
)
tenant_options = add_options(
    *(click.option(f"--{name}", metavar=metavar, help=help) for name, metavar, help in TENANT_OPTIONS),
    store_option,
    as_json,
)
"""Options that define a tenant."""


@click.group(
    cls=CommandGroup,
    epilog="Examples:\n\n  mulligan tenant create acme --records 2m --unredacted-arguments query,path\n\n"
    "  mulligan token create --role ingest --tenant acme\n\n  mulligan tenant set acme --keep-failures 180\n\n"
    "  mulligan tenant remove acme",
)
def tenant() -> None:
    """Manage the tenants of a server, with their retention and quotas.

    Tenants cannot see each other's records. These commands open the store directly, so only its owner can run them;
    tenants cannot be created or changed over HTTP.
    """


def _apply_options(tenant: Tenant, options: dict[str, str | None]) -> Tenant:
    """Apply the given options to a tenant. Raise an error for invalid values."""
    texts = {name: text for name, text in options.items() if text is not None}
    ages = {name: texts[name] for name in RETENTION_FIELDS if name in texts}
    default_fields = [name for name, text in ages.items() if text == "default"]
    days = {name: _parse_days(name, text) for name, text in ages.items() if text != "default"}
    limits: dict[Measure, int | None] = {name: _parse_amount(name, texts[name]) for name in MEASURES if name in texts}
    fields: dict[str, Any] = {name: texts[name] for name in ("alert_command", "alert_webhook") if name in texts}
    if "note" in texts:
        fields["note"] = to_line(texts["note"], 200)
    if "unredacted_arguments" in texts:
        names = {name.strip() for name in texts["unredacted_arguments"].split(",")}
        fields["unredacted_arguments"] = tuple(sorted(names - {""}))
    tenant = with_quotas(with_retention_days(tenant, days, default_fields), limits)
    tenant = msgspec.structs.replace(tenant, **fields)
    if tenant.alert_command or tenant.alert_webhook:
        Alerts(command=tenant.alert_command, webhook=tenant.alert_webhook)  # raises for an invalid one
    return tenant


def _parse_days(name: str, text: str) -> int | None:
    if text == "forever":
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise SettingsError(
            f"Invalid --{name.replace('_', '-')} {text!r}. Use a number of days, `forever` or `default`."
        )
    return int(text)


def _parse_amount(name: str, text: str) -> int | None:
    if text == "unlimited":
        return None
    match = re.fullmatch(r"([0-9]{1,12})([kmg]?)", text.casefold())
    if match is None:
        raise SettingsError(f"Invalid --{name} {text!r}. Use a number per day, such as 500k or 2m, or `unlimited`.")
    return int(match[1]) * _FACTORS[match[2]]


def _check_name(name: str) -> str:
    if not TENANT_NAME_PATTERN.fullmatch(name):
        raise SettingsError(f"Invalid tenant name {name!r}. Use up to 80 letters, digits and . _ @ : / -")
    return name


def _local_store_url(store: str | None) -> str:
    url = load_settings(store).store_url
    if is_remote(url):
        raise SettingsError(f"Tenants cannot be managed through the server {url}. Name its store: --store PATH")
    return url


def _open_store(store: str | None) -> Store:
    _local_store_url(store)
    return require_store(load_settings(store))


@tenant.command(
    epilog="Examples:\n\n  mulligan tenant create acme --records 2m "
    "--unredacted-arguments query,path --keep-failures 180"
)
@click.argument("name")
@tenant_options
def create(name: str, store: str | None, as_json: bool, **options: Any) -> None:
    """Create a tenant. To give it access: mulligan token create --tenant NAME."""
    new_tenant = _apply_options(Tenant(name=_check_name(name), created_at=now_ms()), options)
    url = _local_store_url(store)
    if url.startswith("memory:"):
        raise SettingsError("A store in memory is lost when the command ends. Name a file: --store PATH")
    opened_store = open_store(url)
    try:
        Tenants(opened_store).create(new_tenant)
    finally:
        opened_store.close()
    if as_json:
        print_json(_facts(new_tenant))
    else:
        click.echo(f"Created tenant {name}. Give it access: mulligan token create --role ingest --tenant {name}")


@tenant.command("list", epilog="Examples:\n\n  mulligan tenant list --json")
@store_option
@as_json
def list_(store: str | None, as_json: bool) -> None:
    """List all tenants, including those that only a token names."""
    _local_store_url(store)
    existing_store = open_existing_store(load_settings(store))
    stored_tenants: dict[str, Tenant] = {}
    tokens: list[Token] = []
    if existing_store is not None:
        stored_tenants = {tenant.name: tenant for tenant in Tenants(existing_store).load_all()}
        tokens = Tokens(existing_store).load_all()
    names = sorted({DEFAULT_TENANT, *stored_tenants, *(token.tenant for token in tokens)})
    tenants = [stored_tenants.get(name) or Tenant(name=name) for name in names]
    if as_json:
        print_json([_facts(tenant) | {"tokens": _count_active_tokens(tokens, tenant.name)} for tenant in tenants])
        return
    rows = [("tenant", "created", "tokens", "daily quota", "note")]
    rows += [
        (to_line(tenant.name, 40), format_age(tenant.created_at, now_ms()) if tenant.created_at else "-",
         str(_count_active_tokens(tokens, tenant.name)),
         ", ".join(f"{limit:,} {name}" for name, limit in tenant.quotas.items()) or "-", to_line(tenant.note, 60))
        for tenant in tenants
    ]  # fmt: skip
    print_lines(render_columns(rows, width=terminal_width()))


@tenant.command(epilog="Examples:\n\n  mulligan tenant show acme --json")
@click.argument("name")
@store_option
@as_json
def show(name: str, store: str | None, as_json: bool) -> None:
    """Show one tenant: its settings, its usage today and its stored records."""
    existing_store = _open_store(store)
    tenant_record = Tenants(existing_store).find(name)
    tokens = [token for token in Tokens(existing_store).load_all() if token.tenant == name]
    if tenant_record is None and not tokens:
        raise unknown_tenant(name)
    tenant_record = tenant_record or Tenant(name=name)
    usage_today = limits.load_usage(existing_store, name).days.get(limits.day_of(now_ms()), {})
    health = existing_store.health(name)
    active_tokens = _count_active_tokens(tokens, name)
    if as_json:
        stored_counts = {"runs": health.runs, "steps": health.steps}
        print_json(
            _facts(tenant_record) | {"tokens": active_tokens, "used_today": usage_today, "stored": stored_counts}
        )
        return
    retention = tenant_record.retention
    rows = [
        ("stored", f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}"),
        ("tokens", f"{active_tokens} active"),
        *(
            (f"{measure} per day", f"{limit:,}, {usage_today.get(measure, 0):,} used today")
            for measure, limit in tenant_record.quotas.items()
        ),
        *((name.replace("_", " "), _format_age(getattr(retention, name))) for name in RETENTION_FIELDS),
        ("unredacted arguments", ", ".join(tenant_record.unredacted_arguments) or "-"),
        ("alerts", ", ".join(filter(None, (tenant_record.alert_command, tenant_record.alert_webhook))) or "-"),
    ]
    click.echo(f"{name}{f': {tenant_record.note}' if tenant_record.note else ''}\n")
    print_lines(render_columns([(name, to_line(text, 200)) for name, text in rows], width=terminal_width()))


@tenant.command(
    "set",
    epilog="Examples:\n\n  mulligan tenant set acme --records 5m --keep-failures forever\n\n"
    "  mulligan tenant set acme --unredacted-arguments query,path --alert-webhook https://chat.example.com/hook",
)
@click.argument("name")
@tenant_options
def set_(name: str, store: str | None, as_json: bool, **options: Any) -> None:
    """Change the settings of a tenant. A server applies them within a second."""
    if all(value is None for value in options.values()):
        raise click.UsageError("Nothing to change. Pass an option, such as --records 2m.")
    updated_tenant = Tenants(_open_store(store)).set(name, lambda before: _apply_options(before, options))
    if as_json:
        print_json(_facts(updated_tenant))
    else:
        click.echo(f"Changed tenant {name}. Show it: mulligan tenant show {name}")


@tenant.command(epilog="Examples:\n\n  mulligan tenant remove acme\n\n  mulligan tenant remove acme --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@as_json
def remove(name: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Revoke a tenant's tokens and delete all its records. This cannot be undone.

    Its entries in the audit log stay.
    """
    existing_store = _open_store(store)
    if name == DEFAULT_TENANT:
        raise SettingsError("The tenant `local` cannot be removed. To delete its records: mulligan forget")
    tenants, tokens = Tenants(existing_store), Tokens(existing_store)
    has_record = tenants.find(name) is not None
    if not has_record and not any(token.tenant == name for token in tokens.load_all()):
        raise unknown_tenant(name)
    runs = existing_store.health(name).runs
    if not yes:
        if not sys.stdin.isatty():
            raise SettingsError("This cannot be undone, and there is no terminal for a confirmation. Add --yes.")
        click.confirm(f"Delete tenant {name} with {format_count(runs, 'run')} permanently?", abort=True, err=True)
    revoked = tokens.revoke_all(name, now_ms())
    if revoked:
        time.sleep(REFRESH_INTERVAL_SECONDS * 1.5)  # until every server has noticed the revocation
    rows = existing_store.erase(name)
    if has_record:
        tenants.remove(name)
    if as_json:
        print_json({"tenant": name, "runs": runs, "rows": rows, "tokens": len(revoked)})
    else:
        click.echo(
            f"Removed tenant {name}: {format_count(runs, 'run')} deleted, {format_count(len(revoked), 'token')} "
            "revoked."
        )


def _facts(tenant: Tenant) -> dict[str, Any]:
    names = ("note", "quotas", "unredacted_arguments", "alert_command", "alert_webhook", "created_at")
    ages = {name: getattr(tenant.retention, name) for name in RETENTION_FIELDS}
    days = {name: None if age is None else age // DAY for name, age in ages.items()}
    return to_facts(tenant, *names) | {"retention_days": days}


def _format_age(millis: int | None) -> str:
    return "forever" if millis is None else f"{millis // DAY} days"


def _count_active_tokens(tokens: list[Token], tenant: str) -> int:
    return sum(token.tenant == tenant and token.state(now_ms()) == "active" for token in tokens)
