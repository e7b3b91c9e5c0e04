"""mulligan tenant, mulligan token and mulligan audit: who may use a server, how much, and who changed what."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import click
from msgspec.structs import replace

from mulligan.cli import CommandGroup
from mulligan.cli.options import CommandContext, add_options, command, confirm, has_filters, list_options
from mulligan.contract.store import DAY, DEFAULT_TENANT
from mulligan.core.failure import SettingsError
from mulligan.core.records import to_builtins
from mulligan.report.alerts import Alerts
from mulligan.report.resources import AUDIT_SPEC
from mulligan.report.tables import format_age, format_count, render_columns, to_facts, to_line
from mulligan.server.tenants import (
    MEASURES,
    REFRESH_INTERVAL_SECONDS,
    RETENTION_FIELDS,
    ROLES,
    TENANT_NAME_PATTERN,
    Measure,
    Role,
    Tenant,
    Tenants,
    Token,
    Tokens,
    unknown_tenant,
    with_quotas,
    with_retention_days,
)
from mulligan.store.urls import is_remote

_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_UNITS = {"h": 3600, "d": 86400, "w": 604800}
TENANT_OPTIONS = (
    ("note", "TEXT", "Note about the tenant."),
    ("keep-failures", "DAYS", "Days to keep failed runs; `forever` or `default` (90)."),
    ("keep-successes", "DAYS", "Days to keep successful runs; `forever` or `default` (30)."),
    ("keep-hourly", "DAYS", "Days to keep hourly rollups; `forever` or `default` (35)."),
    ("requests", "N", "Requests per day, such as 500k, or `unlimited`."),
    ("records", "N", "Records per day, such as 2m, or `unlimited`."),
    ("bytes", "N", "Bytes per day, such as 5g, or `unlimited`."),
    ("unredacted-arguments", "NAMES", "Arguments stored with their values, separated by commas; +NAMES adds to them."),
    ("alert-command", "CMD", "Run this command for each alert of this tenant."),
    ("alert-webhook", "URL", "Post alerts of this tenant to this URL."),
)
tenant_options = add_options(
    *(click.option(f"--{name}", metavar=metavar, help=help) for name, metavar, help in TENANT_OPTIONS)
)


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
    quotas: dict[Measure, int | None] = {name: _parse_amount(name, texts[name]) for name in MEASURES if name in texts}
    fields: dict[str, Any] = {name: texts[name] for name in ("alert_command", "alert_webhook") if name in texts}
    if "note" in texts:
        fields["note"] = to_line(texts["note"], 200)
    if "unredacted_arguments" in texts:
        text = texts["unredacted_arguments"]
        names = {name.strip() for name in text.removeprefix("+").split(",")} - {""}
        names |= set(tenant.unredacted_arguments) if text.startswith("+") else set()
        fields["unredacted_arguments"] = tuple(sorted(names))
    tenant = replace(with_quotas(with_retention_days(tenant, days, default_fields), quotas), **fields)
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


def _check_local(context: CommandContext) -> None:
    url = context.settings.store_url
    if is_remote(url):
        raise SettingsError(f"Tenants cannot be managed through the server {url}. Name its store: --store PATH")


@command(
    "mulligan tenant create acme --records 2m --unredacted-arguments query,path --keep-failures 180", parent=tenant
)
@click.argument("name")
@tenant_options
def create(context: CommandContext, name: str, **options: str | None) -> None:
    """Create a tenant. To give it access: mulligan token create --tenant NAME."""
    if not TENANT_NAME_PATTERN.fullmatch(name):
        raise SettingsError(f"Invalid tenant name {name!r}. Use up to 80 letters, digits and . _ @ : / -")
    new_tenant = _apply_options(Tenant(name=name, created_at=context.now), options)
    _check_local(context)
    with contextlib.closing(context.create_store()) as store:
        Tenants(store).create(new_tenant)
    advice = f"Give it access: mulligan token create --role ingest --tenant {name}"
    context.print(_tenant_facts(new_tenant), f"Created tenant {name}. {advice}")


@command("mulligan tenant list --json", parent=tenant, name="list")
def _list_tenants(context: CommandContext) -> None:
    """List all tenants, including those that only a token names."""
    _check_local(context)
    store = context.find_store(may_be_missing=True)
    stored_tenants = {tenant.name: tenant for tenant in Tenants(store).load_all()} if store is not None else {}
    tokens = Tokens(store).load_all() if store is not None else []
    facts, rows = [], [("tenant", "created", "tokens", "daily quota", "note")]
    for name in sorted({DEFAULT_TENANT, *stored_tenants, *(token.tenant for token in tokens)}):
        tenant = stored_tenants.get(name) or Tenant(name=name)
        active_tokens = _count_active_tokens(context, tokens, name)
        facts.append(_tenant_facts(tenant) | {"tokens": active_tokens})
        created = format_age(tenant.created_at, context.now) if tenant.created_at else "-"
        quotas = ", ".join(f"{limit:,} {measure}" for measure, limit in tenant.quotas.items()) or "-"
        rows.append((to_line(name, 40), created, str(active_tokens), quotas, to_line(tenant.note, 60)))
    context.print(facts, render_columns(rows, width=context.width))


@command("mulligan tenant show acme --json", parent=tenant, name="show")
@click.argument("name")
def _show_tenant(context: CommandContext, name: str) -> None:
    """Show one tenant: its settings, its usage today and its stored records."""
    from mulligan.server import limits  # needs the server extra, unlike tokens and the audit log

    _check_local(context)
    store = context.require_store()
    tokens = [token for token in Tokens(store).load_all() if token.tenant == name]
    stored_tenant = Tenants(store).find(name)
    if stored_tenant is None and not tokens:
        raise unknown_tenant(name)
    tenant = stored_tenant or Tenant(name=name)
    usage_today = limits.load_usage(store, name).days.get(limits.day_of(context.now), {})
    health = store.health(name)
    active_tokens = _count_active_tokens(context, tokens, name)
    facts = _tenant_facts(tenant) | {
        "tokens": active_tokens,
        "used_today": usage_today,
        "stored": {"runs": health.runs, "steps": health.steps},
    }
    rows = {
        "stored": f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}",
        "tokens": f"{active_tokens} active",
    }
    for measure, limit in tenant.quotas.items():
        rows[f"{measure} per day"] = f"{limit:,}, {usage_today.get(measure, 0):,} used today"
    for field in RETENTION_FIELDS:
        age = getattr(tenant.retention, field)
        rows[field.replace("_", " ")] = "forever" if age is None else f"{age // DAY} days"
    rows["unredacted arguments"] = ", ".join(tenant.unredacted_arguments) or "-"
    rows["alerts"] = ", ".join(filter(None, (tenant.alert_command, tenant.alert_webhook))) or "-"
    table = render_columns([(label, to_line(text, 200)) for label, text in rows.items()], width=context.width)
    context.print(facts, [f"{name}{f': {tenant.note}' if tenant.note else ''}", "", *table])


@command(
    "mulligan tenant set acme --records 5m --keep-failures forever",
    "mulligan tenant set acme --unredacted-arguments query,path --alert-webhook https://chat.example.com/hook",
    parent=tenant,
    name="set",
)
@click.argument("name")
@tenant_options
def _set_tenant(context: CommandContext, name: str, **options: str | None) -> None:
    """Change the settings of a tenant. A server applies them within a second."""
    if all(value is None for value in options.values()):
        raise click.UsageError("Nothing to change. Pass an option, such as --records 2m.")
    _check_local(context)
    tenant = Tenants(context.require_store()).set(name, lambda before: _apply_options(before, options))
    context.print(_tenant_facts(tenant), f"Changed tenant {name}. Show it: mulligan tenant show {name}")


@command("mulligan tenant remove acme", "mulligan tenant remove acme --yes", parent=tenant)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(context: CommandContext, name: str, yes: bool) -> None:
    """Revoke a tenant's tokens and delete all its records. This cannot be undone.

    Its entries in the audit log stay.
    """
    _check_local(context)
    store = context.require_store()
    if name == DEFAULT_TENANT:
        raise SettingsError("The tenant `local` cannot be removed. To delete its records: mulligan forget")
    tenants, tokens = Tenants(store), Tokens(store)
    has_record = tenants.find(name) is not None
    if not has_record and not any(token.tenant == name for token in tokens.load_all()):
        raise unknown_tenant(name)
    runs = store.health(name).runs
    confirm(f"Delete tenant {name} with {format_count(runs, 'run')} permanently?", yes)
    revoked = tokens.revoke_all(name, context.now)
    if revoked:
        time.sleep(REFRESH_INTERVAL_SECONDS * 1.5)  # until every server has noticed the revocation
    rows = store.erase(name)
    if has_record:
        tenants.remove(name)
    counts = f"{format_count(runs, 'run')} deleted, {format_count(len(revoked), 'token')} revoked"
    facts = {"tenant": name, "runs": runs, "rows": rows, "tokens": len(revoked)}
    context.print(facts, f"Removed tenant {name}: {counts}.")


def _tenant_facts(tenant: Tenant) -> dict[str, Any]:
    names = ("note", "quotas", "unredacted_arguments", "alert_command", "alert_webhook", "created_at")
    ages = {name: getattr(tenant.retention, name) for name in RETENTION_FIELDS}
    days = {name: None if age is None else age // DAY for name, age in ages.items()}
    return to_facts(tenant, *names) | {"retention_days": days}


def _count_active_tokens(context: CommandContext, tokens: list[Token], tenant: str) -> int:
    return sum(token.tenant == tenant and token.state(context.now) == "active" for token in tokens)


# Tokens


@click.group(
    cls=CommandGroup,
    epilog="Examples:\n\n  mulligan token create --role ingest --name ci --expires 90d\n\n  mulligan token list\n\n"
    "  mulligan token revoke tok_8f2c",
)
def token() -> None:
    """Create, list and revoke server tokens.

    The store of the server holds only their hashes.
    """


@command("mulligan token create --role ingest --name ci --expires 90d", parent=token, name="create")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="ingest sends records and looks up fixes; read queries; admin may do everything, including decisions.",
)
@click.option("--name", default="", help="Note about its use.")
@click.option("--expires", metavar="90d", help="Lifetime in h, d or w. Default: no expiry.")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Tenant of the records.")
@click.option(
    "--principal", default="", help="Name under which records are stored; several tokens of one person may share it."
)
def _create_token(context: CommandContext, role: Role, expires: str | None, **names: str) -> None:
    """Create a token and print it. It is shown only once."""
    for option, text in names.items():
        if text and not TENANT_NAME_PATTERN.fullmatch(text):
            raise SettingsError(f"Invalid --{option} {text!r}. Use letters, digits and . _ @ : / - only.")
    expires_at = None
    if expires is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", expires)
        if match is None:
            raise SettingsError(f"Invalid --expires {expires!r}. Use a number and h, d or w, such as 90d.")
        expires_at = context.now + int(match[1]) * _UNITS[match[2]] * 1000
    tenant = names["tenant"]
    with contextlib.closing(context.create_store()) as store:
        if Tenants(store).find(tenant) is None:
            raise SettingsError(f"Unknown tenant {tenant!r}. Create it first: mulligan tenant create {tenant}")
        new_token, secret = Tokens(store).create(role, context.now, expires=expires_at, **names)
    context.print({"token": secret, **_token_facts(context, new_token)}, secret)
    if not context.as_json:
        click.echo(f"{new_token.id}, role {role}, tenant {tenant}. The token is not shown again.", err=True)


@command("mulligan token list --json", parent=token, name="list")
def _list_tokens(context: CommandContext) -> None:
    """List all tokens, without their secrets."""
    store = context.find_store(may_be_missing=True)
    tokens = Tokens(store).load_all() if store is not None else []
    rows = [("token", "role", "state", "tenant", "created", "expires (UTC)", "name")]
    for token in tokens:
        expiry = "never"
        if token.expires_at is not None:
            expiry = time.strftime("%Y-%m-%d %H:%M", time.gmtime(token.expires_at / 1000))
        created = format_age(token.created_at, context.now)
        state = token.state(context.now)
        rows.append((token.id, token.role, state, to_line(token.tenant, 30), created, expiry, to_line(token.name, 60)))
    facts = [_token_facts(context, token) for token in tokens]
    hint = "No tokens. Create one: mulligan token create --role ingest"
    context.print(facts, render_columns(rows, width=context.width) if tokens else hint)


@command("mulligan token revoke tok_8f2c", parent=token)
@click.argument("token")
def revoke(context: CommandContext, token: str) -> None:
    """Revoke a token; servers follow within a second. TOKEN is its id, a prefix of it, or its name."""
    store = context.find_store(may_be_missing=True)
    if store is None:
        raise SettingsError(f"No token matches {token!r}. List tokens: mulligan token list")
    revoked_token = Tokens(store).revoke(token, context.now)
    context.print(_token_facts(context, revoked_token), f"{revoked_token.id} is revoked.")


def _token_facts(context: CommandContext, token: Token) -> dict[str, Any]:
    facts: dict[str, Any] = to_builtins(token)
    facts.pop("hash")
    return {**facts, "tenant": token.tenant, "state": token.state(context.now)}


@command(
    "mulligan audit --since 7d",
    "mulligan audit --tenant acme --action token. --json",
    "mulligan audit --by ann --csv",
)
@click.option("--tenant", metavar="NAME", help="Tenant to read. Default: your own.")
@list_options(AUDIT_SPEC)
def audit(context: CommandContext, tenant: str | None, limit: int, as_csv: bool, **filters: Any) -> None:
    """Show the audit log: who changed what, and when.

    It lists decisions about fixes, patterns and lessons, and changes by token, tenant, forget and prune. Entries are
    never removed.
    """
    url = context.settings.store_url
    if tenant is not None and is_remote(url):
        raise SettingsError(f"The server at {url} sets the tenant from your token. Remove --tenant.")
    _, entries = context.read_list(AUDIT_SPEC, filters, limit, tenant or DEFAULT_TENANT)
    if not context.print_list(AUDIT_SPEC, entries, limit, as_csv):
        click.echo("No audit entry matches." if has_filters(filters) else "The audit log is empty.")
