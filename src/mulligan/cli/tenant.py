"""mulligan tenant: manage tenants, retention, quotas and unredacted arguments."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from mulligan.cli.groups import CommandGroup
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
from mulligan.core.records import to_builtins
from mulligan.report.alerts import Alerts
from mulligan.report.tables import format_age, format_count, render_columns, to_line
from mulligan.server import quotas
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
from mulligan.server.tokens import REFRESH_INTERVAL_SECONDS, Token, Tokens
from mulligan.store.base import DAY, DEFAULT_TENANT, Store
from mulligan.store.urls import is_remote, open_store

F = TypeVar("F", bound=Callable[..., Any])
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@click.group(
    cls=CommandGroup,
    epilog="Examples:\n\n  mulligan tenant create acme --records 2m --listed query,path\n\n"
    "  mulligan token create --role ingest --tenant acme\n\n  mulligan tenant set acme --failures 180\n\n"
    "  mulligan tenant remove acme",
)
def tenant() -> None:
    """Tenants of a server: make, list, show, change, remove.

    Tenants see nothing of each other. Whoever can open the store itself, as these commands do, is its owner; over HTTP
    nobody can make or change a tenant.
    """


def _add_tenant_options(function: F) -> F:
    """Add the options that define a tenant."""
    for option in reversed((
        click.option("--note", help="What it is for."),
        click.option("--failures", metavar="DAYS", help="Keep runs that failed so long; `ever`, or `usual` (90)."),
        click.option("--successes", metavar="DAYS", help="Keep runs that worked so long; `ever`, or `usual` (30)."),
        click.option("--hours", metavar="DAYS", help="Keep figures by the hour so long; `ever`, or `usual` (35)."),
        click.option("--requests", metavar="N", help="Requests a day, such as 500k; `any` lifts the limit."),
        click.option("--records", metavar="N", help="Records a day, such as 2m; `any` lifts the limit."),
        click.option("--bytes", "bytes_", metavar="N", help="Bytes sent a day, such as 5g; `any` lifts the limit."),
        click.option("--listed", metavar="NAMES", help="Arguments whose values may be kept, with commas between."),
        click.option("--alert-command", metavar="CMD", help="Tell this command of what its people should know."),
        click.option("--alert-webhook", metavar="URL", help="Post it to this address."),
    )):  # fmt: skip
        function = option(function)
    return function


def _apply_options(
    tenant: Tenant,
    note: str | None,
    requests: str | None,
    records: str | None,
    bytes_: str | None,
    listed: str | None,
    alert_command: str | None,
    alert_webhook: str | None,
    **retention_texts: str | None,
) -> Tenant:
    """Apply the given options to a tenant. Raise an error for invalid values."""
    ages = {name: text for name in RETENTION_FIELDS if (text := retention_texts.get(name)) is not None}
    default_fields = [name for name, text in ages.items() if text == "usual"]
    days = {name: _parse_days(name, text) for name, text in ages.items() if text != "usual"}
    quota_texts = dict(zip(MEASURES, (requests, records, bytes_), strict=True))
    limits: dict[Measure, int | None] = {
        name: _parse_amount(name, text) for name, text in quota_texts.items() if text is not None
    }
    tenant = with_quotas(with_retention_days(tenant, days, default_fields), limits)
    if note is not None:
        tenant = msgspec.structs.replace(tenant, note=to_line(note, 200))
    if listed is not None:
        names = tuple(sorted({name.strip() for name in listed.split(",") if name.strip()}))
        tenant = msgspec.structs.replace(tenant, listed=names)
    if alert_command is not None:
        tenant = msgspec.structs.replace(tenant, alert_command=alert_command)
    if alert_webhook is not None:
        tenant = msgspec.structs.replace(tenant, alert_webhook=alert_webhook)
    if tenant.alert_command or tenant.alert_webhook:
        try:
            Alerts(command=tenant.alert_command, webhook=tenant.alert_webhook)
        except ValueError as error:
            raise SettingsError(f"--alert-command {tenant.alert_command!r} is no command ({error}).") from None
    return tenant


def _parse_days(name: str, text: str) -> int | None:
    if text == "ever":
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise SettingsError(f"--{name} takes a number of days, `ever` or `usual`, got {text!r}.")
    return int(text)


def _parse_amount(name: str, text: str) -> int | None:
    if text == "any":
        return None
    match = re.fullmatch(r"([0-9]{1,12})([kmg]?)", text.casefold())
    if match is None:
        raise SettingsError(f"--{name} takes a number a day, such as 500k or 2m, or `any`, got {text!r}.")
    return int(match[1]) * _FACTORS[match[2]]


def _check_name(name: str) -> str:
    if not TENANT_NAME_PATTERN.fullmatch(name):
        raise SettingsError(f"a tenant is called by letters, digits and . _ @ : / - only, up to 80, got {name!r}.")
    return name


def _local_store_url(store: str | None) -> str:
    url = load_settings(store).store_url
    if is_remote(url):
        raise SettingsError(f"tenants are managed where the store is, not through {url}. Name the store: --store PATH")
    return url


def _open_store(store: str | None) -> Store:
    _local_store_url(store)
    return require_store(load_settings(store))


@tenant.command(epilog="Examples:\n\n  mulligan tenant create acme --records 2m --listed query,path --failures 180")
@click.argument("name")
@_add_tenant_options
@store_option
@as_json
def create(name: str, store: str | None, as_json: bool, **tenant_options: Any) -> None:
    """Make a tenant. It comes in by its tokens: mulligan token create --tenant NAME."""
    new_tenant = _apply_options(Tenant(name=_check_name(name), created=now_ms()), **tenant_options)
    url = _local_store_url(store)
    if url.startswith("memory:"):
        raise SettingsError("a store in memory is gone when the command ends. Name a file: --store PATH")
    opened_store = open_store(url)
    try:
        Tenants(opened_store).create(new_tenant)
    finally:
        opened_store.close()
    if as_json:
        print_json(_facts(new_tenant))
    else:
        click.echo(f"{name} is made. Let somebody in: mulligan token create --role ingest --tenant {name}")


@tenant.command("list", epilog="Examples:\n\n  mulligan tenant list --json")
@store_option
@as_json
def list_(store: str | None, as_json: bool) -> None:
    """The tenants there are, and those that only a token names."""
    _local_store_url(store)
    existing_store = open_existing_store(load_settings(store))
    stored_tenants = {
        tenant.name: tenant for tenant in (Tenants(existing_store).load_all() if existing_store is not None else [])
    }
    tokens = Tokens(existing_store).load_all() if existing_store is not None else []
    token_tenants = {token.tenant for token in tokens}
    tenants = [
        stored_tenants.get(name) or Tenant(name=name)
        for name in sorted({DEFAULT_TENANT, *stored_tenants, *token_tenants})
    ]
    if as_json:
        print_json([_facts(tenant) | {"tokens": _count_active_tokens(tokens, tenant.name)} for tenant in tenants])
        return
    rows = [("tenant", "made", "tokens", "a day at most", "note")]
    rows += [
        (to_line(tenant.name, 40), format_age(tenant.created, now_ms()) if tenant.created else "-",
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
    """One tenant: what holds for it, what it has used today, and how much is kept of it."""
    existing_store = _open_store(store)
    tenant_record = Tenants(existing_store).find(name)
    tokens = [token for token in Tokens(existing_store).load_all() if token.tenant == name]
    if tenant_record is None and not tokens:
        raise unknown_tenant(name)
    tenant_record = tenant_record or Tenant(name=name)
    usage_today = quotas.load_usage(existing_store, name).days.get(quotas.day_of(now_ms()), {})
    health = existing_store.health(name)
    active_tokens = _count_active_tokens(tokens, name)
    if as_json:
        stored_counts = {"runs": health.runs, "steps": health.steps}
        print_json(_facts(tenant_record) | {"tokens": active_tokens, "used_today": usage_today, "kept": stored_counts})
        return
    retention = tenant_record.retention
    rows = [
        ("kept", f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}"),
        ("tokens", f"{active_tokens} in force"),
        *(
            (f"{measure} a day", f"{tenant_record.quotas[measure]:,}, {usage_today.get(measure, 0):,} taken today")
            for measure in tenant_record.quotas
        ),
        *(
            (f"{retention_field} kept", _format_age(getattr(retention, retention_field)))
            for retention_field in RETENTION_FIELDS
        ),
        ("listed", ", ".join(tenant_record.listed) or "-"),
        ("alerts", ", ".join(filter(None, (tenant_record.alert_command, tenant_record.alert_webhook))) or "-"),
    ]
    click.echo(f"{name}{f': {tenant_record.note}' if tenant_record.note else ''}\n")
    print_lines(render_columns([(name, to_line(text, 200)) for name, text in rows], width=terminal_width()))


@tenant.command(
    "set",
    epilog="Examples:\n\n  mulligan tenant set acme --records 5m --failures ever\n\n"
    "  mulligan tenant set acme --listed query,path --alert-webhook https://chat.example.com/hook",
)
@click.argument("name")
@_add_tenant_options
@store_option
@as_json
def set_(name: str, store: str | None, as_json: bool, **tenant_options: Any) -> None:
    """Change what holds for a tenant. A server follows within a second."""
    if all(value is None for value in tenant_options.values()):
        raise click.UsageError("say what to change, such as --records 2m.")
    updated_tenant = Tenants(_open_store(store)).set(name, lambda before: _apply_options(before, **tenant_options))
    if as_json:
        print_json(_facts(updated_tenant))
    else:
        click.echo(f"{name} is changed. See it: mulligan tenant show {name}")


@tenant.command(epilog="Examples:\n\n  mulligan tenant remove acme\n\n  mulligan tenant remove acme --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@as_json
def remove(name: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Revoke a tenant's tokens and remove everything that is kept of it. It cannot be undone.

    What people changed stays in the audit log.
    """
    existing_store = _open_store(store)
    if name == DEFAULT_TENANT:
        raise SettingsError("`local` is the store's own, and stays. To remove what is in it: mulligan forget")
    tenants, tokens = Tenants(existing_store), Tokens(existing_store)
    has_record = tenants.find(name) is not None
    if not has_record and not any(token.tenant == name for token in tokens.load_all()):
        raise unknown_tenant(name)
    runs = existing_store.health(name).runs
    if not yes:
        if not sys.stdin.isatty():
            raise SettingsError("this cannot be undone, and there is nobody to ask. Add --yes.")
        click.confirm(f"Remove {name} with {format_count(runs, 'run')} for ever?", abort=True, err=True)
    revoked = tokens.revoke_all(name, now_ms())
    if revoked:
        time.sleep(REFRESH_INTERVAL_SECONDS * 1.5)  # until every server has noticed the revocation
    rows = existing_store.erase(name)
    if has_record:
        tenants.remove(name)
    if as_json:
        print_json({"tenant": name, "runs": runs, "rows": rows, "tokens": len(revoked)})
    else:
        click.echo(f"{name} is removed: {format_count(runs, 'run')}, {format_count(len(revoked), 'token')} revoked.")


def _facts(tenant: Tenant) -> dict[str, Any]:
    retention = tenant.retention
    defaults = {"note": "", "quotas": {}, "listed": [], "alert_command": "", "alert_webhook": "", "created": 0}
    tenant_facts: dict[str, Any] = {**defaults, **to_builtins(tenant)}
    ages = {
        retention_field: None if (age := getattr(retention, retention_field)) is None else age // DAY
        for retention_field in RETENTION_FIELDS
    }
    return tenant_facts | {"keeps": ages}


def _format_age(millis: int | None) -> str:
    return "for ever" if millis is None else f"{millis // DAY} days"


def _count_active_tokens(tokens: list[Token], tenant: str) -> int:
    return sum(token.tenant == tenant and token.state(now_ms()) == "active" for token in tokens)
